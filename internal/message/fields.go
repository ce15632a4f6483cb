// SPDX-License-Identifier: Apache-2.0

package message

import (
	"slices"
	"unsafe"
)

// FieldID names the fields that weir itself looks at. Codecs set it while
// parsing so that later stages compare integers, not text.
type FieldID uint8

// The known fields. Other is every field that has no ID of its own.
const (
	Other FieldID = iota
	Host
	ContentLength
	TransferEncoding
	Connection
	KeepAlive
	ProxyConnection
	TE
	Trailer
	Upgrade
	Expect
	Via
	XForwardedFor
	XForwardedProto
	XForwardedHost
	XForwardedPort
	XRealIP
	Forwarded
	XRequestID
	Traceparent
	Tracestate
	Authorization
	ProxyAuthorization
	ProxyAuthenticate
	Cookie
	SetCookie
	RetryAfter
	Date
	Server
	ContentType
	IdempotencyKey
	HTTP2Settings
	WeirAny // any field whose name starts with X-Weir-
	UserAgent
	Referer
	MaxForwards
	LoadReport    // endpoint-load-metrics
	LoadReportBin // endpoint-load-metrics-bin
	// ClientCert is what says which certificate a client showed:
	// X-Forwarded-Client-Cert, Client-Cert and Client-Cert-Chain (RFC 9440).
	ClientCert
	// Lookalike is a name that differs from an identity field's only by "_" or
	// another such character for "-": some servers read both as one (S13).
	Lookalike
	GRPCTimeout  // grpc-timeout
	GRPCStatusOf // grpc-status
	GRPCPushback // grpc-retry-pushback-ms
	fieldIDs     // number of ids
)

// Field is one field line: offsets into the text of its Fields, and what is
// known about it.
type Field struct {
	nameStart, nameEnd   uint32
	valueStart, valueEnd uint32
	lineEnd              uint32 // behind the line's CRLF; only for lines that came off the wire
	ID                   FieldID
	own                  bool // text is in Fields.own, not Fields.src
	removed              bool
}

// Fields is an ordered list of field lines. Names keep the case and the order
// in which they arrived. The zero value is empty and ready for use.
type Fields struct {
	src  []byte // borrowed: the codec's buffer
	own  []byte // lines added here, in wire form
	list []Field
}

// Reset forgets all lines and borrows src as the text of those to come. The
// backing arrays are kept.
func (f *Fields) Reset(src []byte) {
	f.src, f.own, f.list = src, f.own[:0], f.list[:0]
}

// Grow makes room for so many lines with so much text, names, separators and
// line ends included, so that adding them allocates nothing. It is for Fields
// that live long: what grows bit by bit ends up larger and leaves garbage.
func (f *Fields) Grow(lines, text int) {
	f.list = slices.Grow(f.list, lines)
	f.own = slices.Grow(f.own, text)
}

// Holds is how much memory the backing arrays take: those who keep Fields for later
// bound it.
func (f *Fields) Holds() int { return cap(f.own) + cap(f.list)*int(unsafe.Sizeof(Field{})) }

// AddWire appends a line that lies in the borrowed text. It is for codecs:
// offsets are into the slice given to Reset; lineEnd is the offset behind its
// CRLF.
func (f *Fields) AddWire(id FieldID, nameStart, nameEnd, valueStart, valueEnd, lineEnd int) {
	f.list = append(f.list, Field{
		nameStart: uint32(nameStart), nameEnd: uint32(nameEnd),
		valueStart: uint32(valueStart), valueEnd: uint32(valueEnd),
		lineEnd: uint32(lineEnd), ID: id,
	})
}

// Add appends a line, copying its text. The caller vouches that neither part
// holds CR, LF or NUL.
func (f *Fields) Add(id FieldID, name, value string) {
	f.add(id, name)
	f.own = append(f.own, value...)
	f.endAdd()
}

// AddBytes is Add for a value held as bytes.
func (f *Fields) AddBytes(id FieldID, name string, value []byte) {
	f.add(id, name)
	f.own = append(f.own, value...)
	f.endAdd()
}

// AddRaw is Add for a name and a value held as bytes.
func (f *Fields) AddRaw(id FieldID, name, value []byte) {
	start := len(f.own)
	f.own = append(f.own, name...)
	end := len(f.own)
	f.own = append(f.own, ':', ' ')
	f.own = append(f.own, value...)
	f.list = append(f.list, Field{
		nameStart: uint32(start), nameEnd: uint32(end),
		valueStart: uint32(end + 2), valueEnd: uint32(len(f.own)), ID: id, own: true,
	})
	f.endAdd()
}

// AddFunc is Add for a value that write appends piece by piece, so that no
// intermediate string is needed.
func (f *Fields) AddFunc(id FieldID, name string, write func([]byte) []byte) {
	f.add(id, name)
	f.own = write(f.own)
	f.endAdd()
}

func (f *Fields) add(id FieldID, name string) {
	start := len(f.own)
	f.own = append(f.own, name...)
	end := len(f.own)
	f.own = append(f.own, ':', ' ')
	f.list = append(f.list, Field{
		nameStart: uint32(start), nameEnd: uint32(end),
		valueStart: uint32(len(f.own)), ID: id, own: true,
	})
}

func (f *Fields) endAdd() {
	l := &f.list[len(f.list)-1]
	l.valueEnd = uint32(len(f.own))
	f.own = append(f.own, '\r', '\n')
	l.lineEnd = uint32(len(f.own))
}

// AddAll appends the lines that were added to o (those that o only borrows from
// a wire, and removed ones, are left out). It copies the text of all of them at
// once: lines that rarely change are kept in a Fields of their own and cost one
// copy per message.
func (f *Fields) AddAll(o *Fields) {
	base := uint32(len(f.own))
	f.own = append(f.own, o.own...)
	for i := range o.list {
		l := o.list[i]
		if !l.own || l.removed {
			continue
		}
		l.nameStart += base
		l.nameEnd += base
		l.valueStart += base
		l.valueEnd += base
		l.lineEnd += base
		f.list = append(f.list, l)
	}
}

// Len returns the number of lines, removed ones included; index with it.
func (f *Fields) Len() int { return len(f.list) }

// ID returns the known id of line i.
func (f *Fields) ID(i int) FieldID { return f.list[i].ID }

// Removed reports whether line i has been removed.
func (f *Fields) Removed(i int) bool { return f.list[i].removed }

// Name returns the name of line i as it arrived. The slice is borrowed.
func (f *Fields) Name(i int) []byte {
	l := &f.list[i]
	return f.text(l)[l.nameStart:l.nameEnd]
}

// Value returns the value of line i without surrounding white space. The slice
// is borrowed.
func (f *Fields) Value(i int) []byte {
	l := &f.list[i]
	return f.text(l)[l.valueStart:l.valueEnd]
}

func (f *Fields) text(l *Field) []byte {
	if l.own {
		return f.own
	}
	return f.src
}

// Rewrite replaces the value of line i, which keeps its name and its place, by
// what write appends. The value until now may be read meanwhile.
func (f *Fields) Rewrite(i int, write func([]byte) []byte) {
	name, id := f.Name(i), f.list[i].ID
	start := len(f.own)
	f.own = append(f.own, name...)
	end := len(f.own)
	f.own = append(f.own, ':', ' ')
	l := Field{nameStart: uint32(start), nameEnd: uint32(end), valueStart: uint32(len(f.own)), ID: id, own: true}
	f.own = write(f.own)
	l.valueEnd = uint32(len(f.own))
	f.own = append(f.own, '\r', '\n')
	l.lineEnd = uint32(len(f.own))
	f.list[i] = l
}

// Remove marks line i as removed: it is skipped by Get, Lookup and AppendWire.
func (f *Fields) Remove(i int) { f.list[i].removed = true }

// Restore takes Remove back.
func (f *Fields) Restore(i int) { f.list[i].removed = false }

// RemoveID removes every line with the id.
func (f *Fields) RemoveID(id FieldID) {
	for i := range f.list {
		if f.list[i].ID == id {
			f.list[i].removed = true
		}
	}
}

// RemoveName removes every line with the name, in any case.
func (f *Fields) RemoveName(name string) {
	for i := range f.list {
		if EqualFold(f.Name(i), name) {
			f.list[i].removed = true
		}
	}
}

// Get returns the value of the first remaining line with the id.
func (f *Fields) Get(id FieldID) ([]byte, bool) {
	for i := range f.list {
		if f.list[i].ID == id && !f.list[i].removed {
			return f.Value(i), true
		}
	}
	return nil, false
}

// Has reports whether a line with the id remains.
func (f *Fields) Has(id FieldID) bool {
	_, ok := f.Get(id)
	return ok
}

// Lookup returns the value of the first remaining line with the name, in any
// case.
func (f *Fields) Lookup(name string) ([]byte, bool) {
	for i := range f.list {
		if !f.list[i].removed && EqualFold(f.Name(i), name) {
			return f.Value(i), true
		}
	}
	return nil, false
}

// AppendWire appends the remaining lines in HTTP/1.1 form, each with its CRLF.
// Runs of untouched lines are copied as they arrived.
func (f *Fields) AppendWire(dst []byte) []byte {
	for i := 0; i < len(f.list); {
		l := &f.list[i]
		if l.removed {
			i++
			continue
		}
		start, end := l.nameStart, l.lineEnd
		j := i + 1
		for j < len(f.list) && !f.list[j].removed && f.list[j].own == l.own && f.list[j].nameStart == end {
			end = f.list[j].lineEnd
			j++
		}
		dst = append(dst, f.text(l)[start:end]...)
		i = j
	}
	return dst
}

// EqualFold compares a name with a known one, ignoring ASCII case.
func EqualFold(a []byte, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(b) {
		if a[i] != b[i] && lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}
