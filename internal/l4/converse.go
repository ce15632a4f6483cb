// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
)

// converse carries a session on goroutines: one side has TLS, or no descriptor.
func (o *opening) converse(server *netconn.Conn, prefix []byte) {
	s := o.s
	stop := make(chan struct{})
	s.ask = sync.OnceFunc(func() { close(stop) })
	s.px.opt.Sessions.Enter(s)
	if v := s.cl.Via; v != nil {
		v.asked.enter(s)
	}
	var ripe atomic.Bool
	if o.rt.Total > 0 {
		t := time.AfterFunc(max(s.cl.Began.Add(o.rt.Total).Sub(clock.Now()), 0), func() {
			ripe.Store(true)
			s.ask()
		})
		defer t.Stop()
	}
	var in int64
	var moved netconn.TunnelResult
	var err error
	if len(prefix) > 0 {
		server.SetWriteDeadline(o.now.Add(prefixTime))
		n, werr := server.Write(prefix)
		server.SetWriteDeadline(0)
		if in = int64(n); n > 0 {
			s.moved(client, n)
		}
		if werr != nil {
			err = &netconn.TunnelError{Conn: server, Err: werr}
		}
	}
	if err == nil {
		opt := netconn.TunnelOptions{Idle: o.rt.Idle, Stop: stop, Moved: s.movedOn}
		if s.guarded {
			opt.Look = s.unforged
		}
		moved, err = netconn.Tunnel(o.c, server, opt)
		in += moved.ToB
	}
	e := s.endOf(err, server, ripe.Load())
	if moved.First == server {
		e.side = max(e.side, backend)
	}
	s.words = inTLS(err, server)
	if e.how == endDone || e.how == endIdle {
		_ = o.c.Close()
		_ = server.Close()
	} else {
		_ = o.c.Reset()
		_ = server.Reset()
	}
	s.over(e, in, moved.ToA)
}

// movedOn is moved of goroutines: what it writes of the backend's side belongs to the
// one that moves the backend's bytes.
func (s *Session) movedOn(ofClient bool, n int64) {
	from := backend
	if ofClient {
		from = client
	}
	s.moved(from, int(n))
}

// prefixTime bounds the sending of what was read before; it fits the buffer of a
// fresh socket.
const prefixTime = 10 * time.Second

var errForged = errors.New("a PROXY header")

// unforged looks at the client's first bytes.
func (s *Session) unforged(b []byte) (enough bool, err error) {
	if s.guard.Forged(b) {
		return false, errForged
	}
	return s.guard.Over(), nil
}

// inTLS is what TLS says of an end that the bytes alone do not tell: the alert that a
// peer ended it with, such as one that no certificate of ours pleases it, which TLS 1.3
// says when the handshake is over; and that a backend has ended without one, as anybody
// on the way can have it.
func inTLS(err error, server *netconn.Conn) string {
	var alert *net.OpError
	switch {
	case errors.As(err, &alert) && alert.Op == "remote error": // crypto/tls's word for alerts
		return alert.Error()
	case err == nil && server.Truncated():
		return "the backend ended TLS without a closing alert"
	}
	return ""
}

// endOf says how a conversation ended.
func (s *Session) endOf(err error, server *netconn.Conn, ripe bool) end {
	var t *netconn.TunnelError
	var errno syscall.Errno
	errors.As(err, &errno)
	switch {
	case err == nil:
		return end{how: endDone}
	case errors.Is(err, errForged):
		return end{how: endForged, side: client}
	case errors.Is(err, netconn.ErrIdle):
		return end{how: endIdle}
	case s.why.Load() != uint32(observe.TunnelByPeer):
		return end{how: endTold}
	case ripe:
		return end{how: endTotal}
	case s.cut():
		return end{how: endTold}
	case errors.As(err, &t) && t.Conn == server:
		return end{endReset, backend, errno}
	default:
		return end{endReset, client, errno}
	}
}
