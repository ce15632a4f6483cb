// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// Timeouts bound what the serving half waits for (semantics.md S7). 0 means no
// bound, but for ParkAfter and Linger, where it means the default.
type Timeouts struct {
	Header      time.Duration // a whole head, from its first byte; the first one from accept
	Idle        time.Duration // from an answer to the next request's first byte
	Write       time.Duration // a write without progress
	BodyMinRate int64         // bytes per second, while content is waited for, or Write goes on because of progress
	BodyGrace   time.Duration // how far behind that rate a client may fall
	ParkAfter   time.Duration // idle time after which a goroutine is given up; 250 ms
	Linger      time.Duration // how long a closing connection is read from; 5 s
	MaxAge      time.Duration // of a connection, less up to a tenth, as it is when that comes: then the next answer ends it
	AgeGrace    time.Duration // after it: what is still under way is cut
}

// least is what a client has to take within Write.
func (t *Timeouts) least() int64 {
	return int64(min(float64(t.BodyMinRate)*t.Write.Seconds(), 1<<40))
}

const (
	defaultParkAfter = 250 * time.Millisecond
	defaultLinger    = 5 * time.Second
)

// Settings are what can be changed while a server serves.
type Settings struct {
	Limits   Limits
	Timeouts Timeouts
	HTTP2    bool // Server.HTTP2 is asked
}

// Server serves HTTP/1.x on connections that somebody else accepts. Its fields
// are set before the first Serve and not changed afterwards, but see Change. Its methods may be
// called from any goroutine. The zero value with a Handler works.
type Server struct {
	Limits   Limits
	Timeouts Timeouts

	// Handler serves one exchange on the calling goroutine. It must have ended
	// the answer, aborted, or taken the connection over when it returns, and not
	// use the ServerConn afterwards. After a takeover the connection is closed
	// when it returns, but see ServerConn.Detach.
	Handler func(*ServerConn)

	// HTTP2 serves a plain connection that begins with the preface of HTTP/2 (prior
	// knowledge, RFC 9113 section 3.3) on the calling goroutine. ahead is what was
	// read of it, the preface included. Nil, or where the settings say so: such a
	// connection gets 505.
	HTTP2 func(nc *netconn.Conn, ahead []byte, info any)

	// Park waits for bytes on an idle plain connection that has given up its
	// goroutine. It calls resume exactly once, on a goroutine that may block:
	// with true when there is something to read, with false when the deadline
	// (0: none) has passed or the connection was aborted. Nil: idle connections
	// keep their goroutines.
	Park func(c *netconn.Conn, deadline balance.Instant, resume func(ready bool))

	// Closing reports that answers should say Connection: close. Nil: only
	// after Drain.
	Closing func() bool

	// Short reports that there is no memory for more: a head that its first buffer
	// does not hold is refused. Nil: there always is.
	Short func() bool

	// Budget is what heads that the first buffer does not hold take together with
	// others; where it is used up they are refused like that. Nil: no bound.
	Budget *netconn.Budget

	// OnBadRequest hears of requests that never become an exchange, before they
	// are answered (or, when e.Silent, closed without an answer). It may read
	// c.Request, which holds what was parsed, and add fields to c.ErrorHead.
	OnBadRequest func(c *ServerConn, e *Error)

	// OnPanic hears of a panic of the handler, which costs its connection only.
	// Nil: the panic goes on.
	OnPanic func(v any, stack []byte)

	registry
	changed  atomic.Pointer[Settings] // nil: nobody has asked yet
	draining atomic.Bool
	drained  atomic.Bool // the spread is over: what becomes idle is closed
	loops    sync.WaitGroup
}

// Change puts other settings into force: on connections that are open with the
// next request's head, or where the wait for one begins (Idle). What is being
// served goes on under those it began with.
func (s *Server) Change(to Settings) { s.changed.Store(&to) }

// now returns the settings in force. They are not written to.
func (s *Server) now() *Settings {
	if c := s.changed.Load(); c != nil {
		return c
	}
	s.changed.CompareAndSwap(nil, &Settings{s.Limits, s.Timeouts, s.HTTP2 != nil})
	return s.changed.Load()
}

// Serve serves a connection until it is closed, taken over, or parked: then
// Serve returns and the connection goes on elsewhere. info is for the handler.
func (s *Server) Serve(nc *netconn.Conn, info any) {
	l := &link{srv: s, nc: nc, info: info, tls: nc.TLS() != nil, since: clock.Now()}
	l.first.Store(true)
	l.beginAge(&s.now().Timeouts)
	s.add(l)
	s.run(l)
}

// run is one stretch of a connection's life on one goroutine. It ends with the
// connection closed or parked.
func (s *Server) run(l *link) {
	c := conns.Get().(*ServerConn)
	c.attach(l)
	parked := false
	defer func() {
		if parked { // c and l belong to others already, or to nobody
			return
		}
		if v := recover(); v != nil {
			c.shrunk()
			s.panicked(l, v) // c is in an unknown state and not used again
			return
		}
		l.nc.Close()
		s.remove(l)
		c.detach()
	}()
	for {
		switch c.awaitRequest() {
		case waitClosed:
			return
		case waitParked:
			parked = true
			c.park()
			return
		case waitOther:
			parked = true
			c.giveAway()
			return
		}
		s.Handler(c)
		if l.gone {
			parked = true
			return
		}
		if !c.finish() {
			return
		}
	}
}

func (s *Server) panicked(l *link, v any) {
	_ = l.nc.Reset() // nothing can be done about a failed reset
	s.remove(l)
	if s.OnPanic == nil {
		panic(v)
	}
	s.OnPanic(v, debug.Stack())
}

// giveAway lets another version's server have the connection.
func (c *ServerConn) giveAway() {
	l, ahead := c.link, c.in.takeAhead()
	c.detach()
	l.srv.remove(l)
	l.srv.HTTP2(l.nc, ahead, l.info)
}

// park hands an idle connection to the waiter and gives everything else up.
func (c *ServerConn) park() {
	l, deadline := c.link, c.idleUntil
	if l.resume == nil {
		l.resume = l.unpark
	}
	c.detach()
	if l.state.CompareAndSwap(stateIdle, stateParked) {
		l.srv.Park(l.nc, deadline, l.resume)
		return
	}
	l.nc.Close() // drained meanwhile
	l.srv.remove(l)
}

// unpark is the resume function of a parked connection.
func (l *link) unpark(ready bool) {
	if ready && l.state.CompareAndSwap(stateParked, stateIdle) {
		l.srv.run(l)
		return
	}
	l.expire()
}

// expire closes a parked connection whose time is over.
func (l *link) expire() {
	s := l.srv
	timedOut := l.state.CompareAndSwap(stateParked, stateClosing)
	if timedOut && l.first.Load() && !l.nc.Aborted() && s.OnBadRequest != nil {
		c := conns.Get().(*ServerConn)
		c.attach(l)
		s.OnBadRequest(c, errNoRequest)
		c.detach()
	}
	l.nc.Close()
	s.remove(l)
}

func (s *Server) isShort() bool { return s.Short != nil && s.Short() }

// isClosing reports whether answers say Connection: close.
func (s *Server) isClosing() bool {
	return s.draining.Load() || s.Closing != nil && s.Closing()
}
