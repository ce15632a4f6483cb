// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/netconn"
)

// DefaultStreams is how many streams of a connection may be open at once unless
// Settings say otherwise: nginx's number, and more than any browser opens.
const DefaultStreams = 128

// Settings are what can be changed while a server serves. Limits and Timeouts
// mean what they mean for HTTP/1.1; Idle runs while no stream is open, Header
// bounds the preface, the answer to SETTINGS and every frame but DATA.
type Settings struct {
	Limits     http1.Limits
	Timeouts   http1.Timeouts
	MaxStreams int // open at once on a connection; 0: DefaultStreams
	// MaxAge is after what time a connection is told to end, and AgeGrace after what further
	// time it is cut. 0: never. Each connection takes up to a tenth off at random.
	MaxAge, AgeGrace time.Duration
}

// Server serves HTTP/2 on connections that somebody else accepts. Its fields are
// set before the first Serve and not changed afterwards, but see Change. Its
// methods may be called from any goroutine. The zero value with a Handler works.
type Server struct {
	Settings Settings

	// Handler serves one exchange on the calling goroutine. It must have ended
	// the answer, aborted, or taken the stream over when it returns, and not use
	// the ServerStream afterwards.
	Handler func(*ServerStream)

	// Info makes what ServerStream.Info returns, out of what Serve was given. It
	// is called for each stream that serves at the same time as others of its
	// connection, and kept for those that follow. Nil: it is the same for all.
	Info func(conn any) any

	// Closing reports that connections should end after the streams they have.
	// Nil: only after Drain.
	Closing func() bool

	// OnBadRequest hears of requests that never become an exchange, before they
	// are answered. It may read s.Request, which holds what was understood, and
	// add fields to s.ErrorHead.
	OnBadRequest func(s *ServerStream, e *http1.Error)

	// OnPanic hears of a panic of the handler, which costs its stream only. Nil:
	// the panic goes on.
	OnPanic func(v any, stack []byte)

	// OnCalm hears of connections that were ended because of what their peer
	// sent too much of; conn is what Serve was given. Nil: nobody.
	OnCalm func(conn any, c Cause)

	// Budget bounds the content that is held, with what others who share it hold: as
	// it is used up, windows shrink. Nil: there is no bound.
	Budget *netconn.Budget

	registry
	workers  workers
	changed  atomic.Pointer[Settings] // nil: nobody has asked yet
	draining atomic.Bool
	loops    sync.WaitGroup
}

// Change puts other settings into force: for connections that are open with the
// next request's head, or where the wait for one begins. MaxStreams and MaxAge
// are of the connections that come.
func (s *Server) Change(to Settings) { s.changed.Store(&to) }

// now returns the settings in force. They are not written to.
func (s *Server) now() *Settings {
	if c := s.changed.Load(); c != nil {
		return c
	}
	s.changed.CompareAndSwap(nil, &s.Settings)
	return s.changed.Load()
}

func (s *Settings) streams() int {
	if s.MaxStreams > 0 {
		return s.MaxStreams
	}
	return DefaultStreams
}

// Serve serves a connection until it is closed and the last of its streams has
// ended. ahead is what was read of it already; info is for the handler.
func (s *Server) Serve(nc *netconn.Conn, ahead []byte, info any) {
	c := newConn(s, nc, info)
	s.add(c)
	defer s.remove(c)
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		_ = nc.Reset() // nothing can be done about a failed reset
		c.kill(errClosed)
		c.settle()
		s.panicked(v)
	}()
	c.serve(ahead)
}

func (s *Server) panicked(v any) {
	if s.OnPanic == nil {
		panic(v)
	}
	s.OnPanic(v, debug.Stack())
}

// isClosing reports whether connections are to end.
func (s *Server) isClosing() bool {
	return s.draining.Load() || s.Closing != nil && s.Closing()
}

// firstGrace is how long Drain leaves a new connection the time to ask.
const firstGrace = time.Second

// isNew reports that the first request may still be on its way.
func (c *conn) isNew() bool {
	return c.first.Load() && clock.Now().Sub(c.since) < firstGrace
}
