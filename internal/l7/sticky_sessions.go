// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/weirlb/weir/balance"
)

// Sessions knows which values of a cookie stand for which backend of one pool. A
// value is made of the pool's name, the backend's id and a key, and of nothing
// else: weirs with the same keys agree without talking to each other, and there is
// nothing to hand over to a successor. It is as long-lived as the pool and safe
// for concurrent use; readers take no lock.
//
// With a key a value is the first half of an HMAC-SHA-256 (RFC 2104), so that
// nobody can make one who has not been given it. Without, it is as much of a
// SHA-256: whoever guesses a pool and an id can make it, and whoever sees it can
// find both by trying.
type Sessions struct {
	pool  string // constant
	table atomic.Pointer[stickyTable]
	on    atomic.Bool // somebody uses them

	mu      sync.Mutex // guards what follows
	keys    [][]byte   // the first makes values; none: they are not signed
	members []*balance.Backend
	known   map[string][]stickyToken // by id: of each key
}

// stickyTable is what requests read: immutable.
type stickyTable struct {
	by    map[uint64]stickySeat // by the first half of a value
	given map[balance.BackendID]stickyToken
}

// stickySeat is whom a value stands for.
type stickySeat struct {
	rest    uint64 // the other half
	backend balance.BackendID
	old     bool // another key makes values by now
}

// stickyToken is a value: 128 bits.
type stickyToken struct{ first, rest uint64 }

// NewSessions returns the sessions of a pool without members, not signed.
func NewSessions(pool string) *Sessions {
	s := &Sessions{pool: pool, known: map[string][]stickyToken{}}
	s.table.Store(&stickyTable{})
	return s
}

// SetKeys makes keys those that values are signed with: the first one makes
// them, all recognise them. None: values are not signed. Values that no key made
// mean nothing from then on.
func (s *Sessions) SetKeys(keys [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = keys
	s.on.Store(true)
	clear(s.known)
	s.build()
}

// Off says that values mean nothing until SetKeys.
func (s *Sessions) Off() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on.Store(false)
	s.keys, s.members = nil, nil
	clear(s.known)
	s.build()
}

// On reports whether SetMembers is of use: keys, or none, were set.
func (s *Sessions) On() bool { return s.on.Load() }

// SetMembers says which backends values may stand for. Those of others mean
// nothing from then on.
func (s *Sessions) SetMembers(members []*balance.Backend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = members
	s.build()
}

// build makes the table anew. Values that were made already are kept: in a pool of
// thousands one newcomer costs one hash for each key, and a copy.
func (s *Sessions) build() {
	t := &stickyTable{
		by:    make(map[uint64]stickySeat, len(s.members)*max(len(s.keys), 1)),
		given: make(map[balance.BackendID]stickyToken, len(s.members)),
	}
	known := make(map[string][]stickyToken, len(s.members))
	for _, b := range s.members {
		list := s.known[b.ID()]
		if list == nil {
			list = s.make(b.ID())
		}
		known[b.ID()] = list
		for i := len(list) - 1; i >= 0; i-- {
			t.by[list[i].first] = stickySeat{rest: list[i].rest, backend: b.Hash(), old: i > 0}
		}
		t.given[b.Hash()] = list[0]
	}
	s.known = known
	s.table.Store(t)
}

// make computes the values of a backend, one for each key.
func (s *Sessions) make(id string) []stickyToken {
	text := []byte("weir sticky cookie\x00" + s.pool + "\x00" + id)
	if len(s.keys) == 0 {
		sum := sha256.Sum256(text)
		return []stickyToken{tokenOf(sum[:])}
	}
	out := make([]stickyToken, len(s.keys))
	for i, k := range s.keys {
		h := hmac.New(sha256.New, k)
		_, _ = h.Write(text) // no hash fails
		out[i] = tokenOf(h.Sum(nil))
	}
	return out
}

func tokenOf(sum []byte) stickyToken {
	return stickyToken{binary.BigEndian.Uint64(sum), binary.BigEndian.Uint64(sum[8:])}
}

// find returns whom a value stands for, 0 when it means nothing; old says that
// another key makes values by now.
func (s *Sessions) find(t stickyToken) (b balance.BackendID, old bool) {
	// A map with a seed of its own is no oracle: how long it looks tells nothing of
	// the values in it, and the other half is compared at once.
	seat, ok := s.table.Load().by[t.first]
	if !ok || seat.rest != t.rest {
		return 0, false
	}
	return seat.backend, seat.old
}

// token returns the value that stands for a backend. One that has just been added
// may not be in the table yet; then the value is computed.
func (s *Sessions) token(b *balance.Backend) stickyToken {
	if t, ok := s.table.Load().given[b.Hash()]; ok {
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.make(b.ID())[0]
}

// A value is 22 characters of base64url (RFC 4648, section 5, without padding),
// and, where it is renewed, a dot and the second when it was made, in eight
// hexadecimal digits.
const (
	tokenChars = 22
	timedChars = tokenChars + 1 + 8
)

const (
	base64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	hexLower  = "0123456789abcdef"
)

// unbase64 is base64URL turned around; 0xff: not in it.
var unbase64 = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range len(base64URL) {
		t[base64URL[i]] = byte(i)
	}
	return t
}()

// parseValue reads a value, which must be exactly as appendValue writes it. made
// is 0 when it does not say.
func parseValue(v []byte) (t stickyToken, made int64, ok bool) {
	if len(v) != tokenChars && len(v) != timedChars {
		return t, 0, false
	}
	// 21 characters of six bits are 126, and the last one holds two more above four
	// that are zero.
	for i, c := range v[:tokenChars] {
		d := uint64(unbase64[c])
		switch {
		case d == 0xff:
			return t, 0, false
		case i == tokenChars-1:
			if d&0xf != 0 {
				return t, 0, false
			}
			t = t.shift(2, d>>4)
		default:
			t = t.shift(6, d)
		}
	}
	if len(v) == tokenChars {
		return t, 0, true
	}
	if v[tokenChars] != '.' {
		return t, 0, false
	}
	for _, c := range v[tokenChars+1:] {
		d, ok := unhex(c)
		if !ok || 'A' <= c && c <= 'F' {
			return t, 0, false
		}
		made = made<<4 | int64(d)
	}
	return t, made, true
}

// shift makes room for n bits on the right.
func (t stickyToken) shift(n uint, bits uint64) stickyToken {
	return stickyToken{t.first<<n | t.rest>>(64-n), t.rest<<n | bits}
}

// appendValue writes a value, with the time in seconds if timed.
func appendValue(b []byte, t stickyToken, now int64, timed bool) []byte {
	for at := 122; at >= 2; at -= 6 {
		b = append(b, base64URL[t.bits(uint(at))&0x3f])
	}
	b = append(b, base64URL[t.rest&3<<4])
	if timed {
		b = append(b, '.')
		for at := 28; at >= 0; at -= 4 {
			b = append(b, hexLower[now>>at&0xf])
		}
	}
	return b
}

// bits returns the value without its last at bits.
func (t stickyToken) bits(at uint) uint64 {
	if at >= 64 {
		return t.first >> (at - 64)
	}
	return t.first<<(64-at) | t.rest>>at
}
