// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// entry is one line of a table of HPACK. Text of static entries is constant.
type entry struct {
	name, value []byte
	id          message.FieldID // of a name that is no pseudo-field
}

// statics is the static table (RFC 7541 appendix A); index 0 is unused.
var statics = buildStatics()

// staticName leads from a name to the lowest index that has it.
var staticName = buildStaticNames()

func buildStatics() (t [62]entry) {
	for i, f := range [...][2]string{
		{":authority", ""}, {":method", "GET"}, {":method", "POST"}, {":path", "/"}, {":path", "/index.html"},
		{":scheme", "http"}, {":scheme", "https"}, {":status", "200"}, {":status", "204"}, {":status", "206"},
		{":status", "304"}, {":status", "400"}, {":status", "404"}, {":status", "500"}, {"accept-charset", ""},
		{"accept-encoding", "gzip, deflate"}, {"accept-language", ""}, {"accept-ranges", ""}, {"accept", ""},
		{"access-control-allow-origin", ""}, {"age", ""}, {"allow", ""}, {"authorization", ""}, {"cache-control", ""},
		{"content-disposition", ""}, {"content-encoding", ""}, {"content-language", ""}, {"content-length", ""},
		{"content-location", ""}, {"content-range", ""}, {"content-type", ""}, {"cookie", ""}, {"date", ""},
		{"etag", ""}, {"expect", ""}, {"expires", ""}, {"from", ""}, {"host", ""}, {"if-match", ""},
		{"if-modified-since", ""}, {"if-none-match", ""}, {"if-range", ""}, {"if-unmodified-since", ""},
		{"last-modified", ""}, {"link", ""}, {"location", ""}, {"max-forwards", ""}, {"proxy-authenticate", ""},
		{"proxy-authorization", ""}, {"range", ""}, {"referer", ""}, {"refresh", ""}, {"retry-after", ""},
		{"server", ""}, {"set-cookie", ""}, {"strict-transport-security", ""}, {"transfer-encoding", ""},
		{"user-agent", ""}, {"vary", ""}, {"via", ""}, {"www-authenticate", ""},
	} {
		t[i+1] = entry{name: []byte(f[0]), value: []byte(f[1])}
		if f[0][0] != ':' {
			t[i+1].id = http1.FieldID(t[i+1].name)
		}
	}
	return t
}

func buildStaticNames() map[string]uint8 {
	m := make(map[string]uint8, len(statics))
	for i := len(statics) - 1; i > 0; i-- {
		m[string(statics[i].name)] = uint8(i)
	}
	return m
}

// defaultTable is the size of a dynamic table until SETTINGS say otherwise.
const defaultTable = 4096

// entryOverhead is what an entry counts beyond its text (RFC 7541 section 4.1).
const entryOverhead = 32

// table is a decoder's dynamic table. Text lies in one buffer, the oldest entry
// first; that buffer never holds more than twice what the table may. The zero
// value is an empty table of size 0 that holds no memory.
type table struct {
	limit int // greatest size in the sense of RFC 7541 section 4.1
	size  int
	text  []byte
	list  []span
	first int // index of the oldest entry in list
}

// span is where an entry lies in the text.
type span struct {
	start, value, end uint32
	id                message.FieldID
}

func (t *table) len() int { return len(t.list) - t.first }

// at returns the entry i, 0 being the newest.
func (t *table) at(i int) entry {
	s := &t.list[len(t.list)-1-i]
	return entry{name: t.text[s.start:s.value:s.value], value: t.text[s.value:s.end:s.end], id: s.id}
}

// resize changes the greatest size and evicts what no longer fits.
func (t *table) resize(limit int) {
	t.limit = limit
	t.evict(0)
}

// evict makes room for an entry of the size, as far as there can be.
func (t *table) evict(room int) {
	for t.len() > 0 && t.size+room > t.limit {
		s := &t.list[t.first]
		t.size -= int(s.end-s.start) + entryOverhead
		t.first++
	}
	if t.len() == 0 {
		t.list, t.first, t.text = t.list[:0], 0, t.text[:0]
	}
}

// add puts an entry in; one that is larger than the table empties it (RFC 7541
// section 4.4). Neither part may lie in the table itself.
func (t *table) add(name, value []byte, id message.FieldID) {
	n := len(name) + len(value)
	t.evict(n + entryOverhead)
	if n+entryOverhead > t.limit {
		return
	}
	if len(t.text)+n > 2*t.limit || len(t.list) == cap(t.list) && t.first > len(t.list)/2 {
		t.compact()
	}
	start := uint32(len(t.text))
	t.text = append(append(t.text, name...), value...)
	t.list = append(t.list, span{start: start, value: start + uint32(len(name)), end: uint32(len(t.text)), id: id})
	t.size += n + entryOverhead
}

// compact moves the live entries to the front.
func (t *table) compact() {
	if t.len() == 0 {
		return // evict has emptied it
	}
	base := t.list[t.first].start
	t.text = t.text[:copy(t.text, t.text[base:])]
	t.list = t.list[:copy(t.list, t.list[t.first:])]
	t.first = 0
	for i := range t.list {
		s := &t.list[i]
		s.start, s.value, s.end = s.start-base, s.value-base, s.end-base
	}
}
