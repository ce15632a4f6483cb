// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clienthello"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/proxyproto"
)

// Greeting is what a client says before anybody is chosen for it.
type Greeting struct {
	clienthello.Hello
	// Prefix is what was read, the hello and whatever came with it; it belongs to
	// the backend. It is valid until Release.
	Prefix []byte
	// Asked says that the client asked for TLS by PostgreSQL's SSLRequest, and that
	// it was answered: the backend is to be asked, too, and the request is not in
	// Prefix.
	Asked bool
	// Cancel says that it is PostgreSQL's CancelRequest, which is in Prefix, and no
	// hello: see Proxy.Cancel.
	Cancel bool

	buf *[]byte
}

// Release gives the memory of Prefix back.
func (g *Greeting) Release() {
	if g.buf != nil {
		*g.buf = (*g.buf)[:0]
		if cap(*g.buf) <= helloKept {
			helloBufs.Put(g.buf)
		}
		g.buf, g.Prefix = nil, nil
	}
}

// Unread is why there is no hello.
type Unread struct {
	Reason message.Reason
	Detail string
	// Forged says that a PROXY header came in its place.
	Forged bool
}

const (
	helloSize = 4 << 10 // what nearly every hello fits
	helloKept = 16 << 10
)

var helloBufs = sync.Pool{New: func() any {
	b := make([]byte, 0, helloSize)
	return &b
}}

// greetings are the connections whose hello is being read.
type greetings struct {
	mu    sync.Mutex // guards what follows
	conns map[*netconn.Conn]struct{}
	over  bool // none is read any more
}

func (g *greetings) enter(c *netconn.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns == nil {
		g.conns = make(map[*netconn.Conn]struct{})
	}
	if g.conns[c] = struct{}{}; g.over {
		c.Abort()
	}
}

func (g *greetings) leave(c *netconn.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

func (g *greetings) quit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	for c := range g.conns {
		c.Abort()
	}
}

// ReadHello is the function of that name for a connection that Serve or Refuse
// gets next; Quit ends it.
func (p *Proxy) ReadHello(c *netconn.Conn, by balance.Instant, postgres bool) (Greeting, *Unread) {
	p.wg.Add(1)
	defer p.wg.Done()
	p.greet.enter(c)
	defer p.greet.leave(c)
	return ReadHello(c, by, postgres)
}

// ReadHello reads the ClientHello of a client, whose bytes are looked at and not
// changed. by is when it has to be complete; 0: whenever. With postgres a client
// may ask for TLS as those of PostgreSQL do, and one that does not is told so.
// Nothing is sent to anybody else. On a failure the client has been told what is
// told by its protocol, and the connection is still the caller's.
func ReadHello(c *netconn.Conn, by balance.Instant, postgres bool) (g Greeting, bad *Unread) {
	g.buf = helloBufs.Get().(*[]byte)
	c.SetReadDeadline(by)
	r := greeter{c: c, g: &g, postgres: postgres}
	bad = r.read()
	c.SetReadDeadline(0)
	g.Prefix = *g.buf
	if bad != nil {
		g.Release()
	}
	return g, bad
}

// greeter reads one hello.
type greeter struct {
	c        *netconn.Conn
	g        *Greeting
	s        clienthello.Scanner
	fed      int  // of the bytes read, what the scanner has
	postgres bool // what comes may be a message of PostgreSQL
	declined bool // Kerberos was asked for
}

func (r *greeter) read() *Unread {
	for {
		buf := *r.g.buf
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), 2*cap(buf))
			copy(grown, buf)
			buf = grown
		}
		n, err := r.c.Read(buf[len(buf):cap(buf)])
		*r.g.buf = buf[:len(buf)+n]
		if err != nil && n == 0 {
			return r.ended(err)
		}
		if r.postgres {
			more, bad := r.ask()
			if bad != nil {
				return bad
			}
			if r.g.Cancel {
				return nil
			}
			if more {
				continue
			}
		}
		buf = *r.g.buf
		done, err := r.s.Add(buf[r.fed:])
		r.fed = len(buf)
		if err != nil {
			return r.refused(err)
		}
		if done {
			r.g.Hello = r.s.Hello()
			return nil
		}
	}
}

// ask answers a message of PostgreSQL. more says that what was read is no part of
// a hello, or not known to be.
func (r *greeter) ask() (more bool, bad *Unread) {
	buf := *r.g.buf
	switch clienthello.Postgres(buf) {
	case clienthello.AskMore:
		return true, nil
	case clienthello.AskTLS:
		if len(buf) > clienthello.AskSize {
			// Sent before TLS began, so by anybody: as the server itself has it.
			return false, &Unread{Reason: message.BadRequest, Detail: "bytes came behind SSLRequest before it was answered"}
		}
		r.postgres, r.g.Asked = false, true
		return true, r.answer('S')
	case clienthello.AskGSS:
		if len(buf) > clienthello.AskSize || r.declined {
			return false, &Unread{Reason: message.BadRequest, Detail: "GSSENCRequest was sent twice, or bytes behind it"}
		}
		r.declined = true
		return true, r.answer('N')
	case clienthello.AskCancel:
		r.g.Cancel = len(buf) == int(binary.BigEndian.Uint32(buf))
		if !r.g.Cancel && len(buf) > int(binary.BigEndian.Uint32(buf)) {
			return false, &Unread{Reason: message.BadRequest, Detail: "bytes came behind CancelRequest"}
		}
		return true, nil
	case clienthello.AskPlain:
		r.tell(clienthello.PostgresError("28000", "this address takes connections with TLS only: use sslmode=require or stronger"))
		return false, &Unread{Reason: message.BadRequest, Detail: "a client of PostgreSQL did not ask for TLS"}
	}
	r.postgres = false
	return false, nil
}

// answer says one byte and forgets what it answers.
func (r *greeter) answer(b byte) *Unread {
	*r.g.buf = (*r.g.buf)[:0]
	if _, err := r.c.Write([]byte{b}); err != nil {
		return &Unread{Reason: message.ClientAbort, Detail: "before its hello"}
	}
	return nil
}

// ended says why nothing more comes.
func (r *greeter) ended(err error) *Unread {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &Unread{Reason: message.HeaderTimeout, Detail: "no whole ClientHello in time"}
	case errors.Is(err, netconn.ErrAborted):
		return &Unread{Reason: message.DrainCut, Detail: "before its hello"}
	case errors.Is(err, io.EOF) && len(*r.g.buf) > 0:
		return &Unread{Reason: message.ClientAbort, Detail: "in the middle of its hello"}
	default:
		return &Unread{Reason: message.ClientAbort, Detail: "before its hello"}
	}
}

// refused says why what came is no hello.
func (r *greeter) refused(err error) *Unread {
	switch {
	case errors.Is(err, clienthello.ErrTooLong):
		r.tell(alert(alertDecode))
		return &Unread{Reason: message.HeaderTooLarge, Detail: err.Error()}
	case errors.Is(err, clienthello.ErrMalformed):
		r.tell(alert(alertDecode))
	}
	var g proxyproto.Guard
	if g.Forged(*r.g.buf) {
		return &Unread{Reason: message.BadRequest, Detail: forgedDetail, Forged: true}
	}
	return &Unread{Reason: message.BadRequest, Detail: err.Error()}
}

// tell sends a client why it is refused, if that can be had without waiting, and
// ends the connection so that it arrives.
func (r *greeter) tell(b []byte) { tell(r.c, b) }

func tell(c *netconn.Conn, b []byte) {
	if _, err := c.Write(b); err == nil { // the first bytes on a fresh socket: they fit
		_ = c.Close()
	}
}

// The alerts that are sent (RFC 8446, section 6.2).
const (
	alertDecode  = 50
	alertUnknown = 112 // unrecognized_name (RFC 6066, section 3)
)

// alert is a fatal alert in clear, as a server sends it that knows no version yet.
func alert(what byte) []byte { return []byte{21, 3, 1, 0, 2, 2, what} }

// TellUnknown says to a client that nobody is served by the name that it asks for,
// and ends its connection; Refuse is to be called for the rest.
func TellUnknown(c *netconn.Conn) { tell(c, alert(alertUnknown)) }
