// SPDX-License-Identifier: Apache-2.0

package clienthello

import "errors"

// Bounds on what a client may send before its name is known.
const (
	// MaxMessage is the largest ClientHello with its header of four bytes. Hellos
	// of browsers are of 500 to 2,200 bytes, those with post-quantum keys included.
	MaxMessage = 16<<10 + handshakeHeader
	// MaxBytes is how much the records that carry it may take together: spread over
	// records of one byte a message is six times as long.
	MaxBytes = 64 << 10
)

const (
	recordHeader    = 5
	handshakeHeader = 4
	maxRecord       = 16 << 10 // RFC 8446, section 5.1

	typeHandshake   = 22
	typeClientHello = 1
)

// What Add returns, wrapped with what exactly is wrong.
var (
	// ErrNotTLS says that the bytes are of another protocol. It comes with the first
	// byte that no ClientHello has, so that nobody waits for more.
	ErrNotTLS = errors.New("not a TLS ClientHello")
	// ErrMalformed says that it is TLS, and against its rules.
	ErrMalformed = errors.New("malformed ClientHello")
	// ErrTooLong says that it exceeds MaxMessage or MaxBytes.
	ErrTooLong = errors.New("ClientHello too long")
)

// A fault is one of the errors above with what is wrong.
type fault struct {
	kind error
	what string
}

func (f *fault) Error() string { return f.kind.Error() + ": " + f.what }
func (f *fault) Unwrap() error { return f.kind }

func notTLS(what string) error    { return &fault{ErrNotTLS, what} }
func malformed(what string) error { return &fault{ErrMalformed, what} }
func tooLong(what string) error   { return &fault{ErrTooLong, what} }

// Scanner puts a ClientHello together from the bytes of a connection. The zero
// value is ready; Reset makes it so again and keeps its memory. One goroutine may
// use it.
type Scanner struct {
	head  [recordHeader]byte
	nhead int // of head that have come
	left  int // of the record at hand that are still to come
	total int // seen until the message was complete
	msg   []byte
	want  int // length of the message with its header; 0: not known yet
	hello Hello
	err   error
	done  bool
}

// Add takes the next bytes. done says that the hello is complete and Hello tells
// it; bytes behind it, which a client may have sent early, are not looked at. After
// an error or done, further calls say the same.
func (s *Scanner) Add(p []byte) (done bool, err error) {
	for len(p) > 0 && s.err == nil && !s.done {
		var n int
		if s.left == 0 {
			n, s.err = s.addHead(p)
		} else {
			n, s.err = s.addBody(p)
		}
		p = p[n:]
		s.total += n
	}
	return s.done, s.err
}

// Hello returns what was said; the zero value before Add has said done. It stays
// valid after Reset.
func (s *Scanner) Hello() Hello { return s.hello }

// Begun reports that the bytes so far begin a record of TLS.
func (s *Scanner) Begun() bool { return s.total > 0 && !errors.Is(s.err, ErrNotTLS) }

// Reset makes the scanner ready for another connection.
func (s *Scanner) Reset() { *s = Scanner{msg: s.msg[:0]} }

// addHead takes bytes of a record's header.
func (s *Scanner) addHead(p []byte) (n int, err error) {
	n = copy(s.head[s.nhead:], p)
	s.nhead += n
	switch {
	case s.head[0] != typeHandshake && s.first():
		return n, notTLS("the first byte is that of another protocol")
	case s.nhead > 1 && s.head[1] != 3 && s.first():
		return n, notTLS("the second byte is that of another protocol")
	case s.head[0] != typeHandshake:
		return n, malformed("another record is between its parts")
	case s.nhead > 1 && s.head[1] != 3:
		return n, malformed("a record is of another version")
	case s.nhead < recordHeader:
		return n, nil
	}
	s.nhead, s.left = 0, int(s.head[3])<<8|int(s.head[4])
	switch {
	case s.left == 0:
		return n, malformed("a record is empty") // RFC 8446, section 5.1
	case s.left > maxRecord:
		return n, malformed("a record is longer than 16 KiB")
	case s.total+n+s.left > MaxBytes:
		return n, tooLong("its records take more than 64 KiB")
	}
	return n, nil
}

// first reports that the record at hand is the first one.
func (s *Scanner) first() bool { return len(s.msg) == 0 }

// addBody takes bytes of the message.
func (s *Scanner) addBody(p []byte) (n int, err error) {
	n = min(len(p), s.left)
	if s.want > 0 {
		n = min(n, s.want-len(s.msg))
	} else {
		n = min(n, handshakeHeader-len(s.msg))
	}
	s.msg = append(s.msg, p[:n]...)
	s.left -= n
	if s.msg[0] != typeClientHello {
		return n, notTLS("the first message is another one")
	}
	if s.want == 0 && len(s.msg) == handshakeHeader {
		s.want = handshakeHeader + (int(s.msg[1])<<16 | int(s.msg[2])<<8 | int(s.msg[3]))
		if s.want > MaxMessage {
			return n, tooLong("it says that it has more than 16 KiB")
		}
	}
	if s.want == 0 || len(s.msg) < s.want {
		return n, nil
	}
	if s.left > 0 {
		return n, malformed("more is behind it in its record")
	}
	err = s.hello.parse(s.msg[handshakeHeader:])
	if err != nil {
		s.hello = Hello{}
		return n, err
	}
	s.done = true
	return n, nil
}
