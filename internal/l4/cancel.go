// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
)

// PostgreSQL ends a query by a connection of its own, which names the session by a
// number and a secret that the server gave out inside TLS: nothing in it says which
// server. But it comes from the client that has the session, and servers that do not
// know the pair ignore it, so that it is passed on to every server that the client
// has a session with.

// cancelTime bounds the passing on of one CancelRequest, and cancelMost is to how
// many backends it goes.
const (
	cancelTime = 5 * time.Second
	cancelMost = 16
)

// askers are the open sessions of clients that asked for TLS first, by client. The
// zero value is ready; it is safe for concurrent use.
type askers struct {
	mu  sync.Mutex // guards what follows
	all map[netip.Addr]map[*Session]struct{}
}

func (a *askers) enter(s *Session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	who := s.cl.Peer.Addr()
	if a.all == nil {
		a.all = make(map[netip.Addr]map[*Session]struct{})
	}
	if a.all[who] == nil {
		a.all[who] = make(map[*Session]struct{})
	}
	a.all[who][s] = struct{}{}
}

func (a *askers) leave(s *Session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	who := s.cl.Peer.Addr()
	if delete(a.all[who], s); len(a.all[who]) == 0 {
		delete(a.all, who)
	}
}

// backends returns where a client's sessions lead, with the route of one that leads
// there.
func (a *askers) backends(who netip.Addr) map[*balance.Backend]*Route {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[*balance.Backend]*Route)
	for s := range a.all[who] {
		if len(out) < cancelMost {
			out[s.b] = s.rt
		}
	}
	return out
}

// Cancel passes a CancelRequest on, for which ReadHello has read it, to the backends
// that its client has sessions with, and ends the client's connection when they have
// ended theirs, as a server does. none is as for Refuse.
func (p *Proxy) Cancel(c *netconn.Conn, ci *Client, none *Route, request []byte) {
	to := p.asked.backends(ci.Peer.Addr())
	if len(to) == 0 {
		p.Refuse(c, ci, none, message.BadRequest, "a CancelRequest of a client that has no session here")
		return
	}
	p.wg.Add(1)
	defer p.wg.Done()
	r := records.Get().(*observe.Record)
	p.fill(r, none, ci)
	began := clock.Now()
	if r.Start == 0 {
		r.Start = began
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	reached := 0
	for b, rt := range to {
		r.Backend = b.ID()
		all.Go(func() {
			if p.cancelAt(b, rt, ci, request, began.Add(cancelTime)) {
				mu.Lock()
				reached++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	r.Attempts, r.Sent, r.BytesIn = len(to), reached > 0, int64(len(request))
	r.Detail = fmt.Sprintf("a CancelRequest, passed on to %d of %d backends", reached, len(to))
	if reached == 0 {
		r.Reason = message.Unreachable
	}
	_ = c.Close()
	p.record(r, none, clock.Now())
}

// cancelAt passes a CancelRequest on to one backend and waits until that has taken it.
func (p *Proxy) cancelAt(b *balance.Backend, rt *Route, ci *Client, request []byte, by balance.Instant) bool {
	t := p.opt.Backend(b)
	if t == nil {
		return false
	}
	var as upstream.Opening
	text := request
	switch h := rt.ProxyHeader; {
	case h == nil:
	case t.Secure(): // before TLS, as that of the session
		as.Header = h(nil, ci)
	default:
		text = append(h(nil, ci), request...)
	}
	nc, _, err := t.OpenWith(clock.Now(), by, p.quit, as)
	if err != nil {
		return false
	}
	defer nc.Close() //nolint:errcheck // there is nothing more to be had from it
	nc.SetWriteDeadline(by)
	nc.SetReadDeadline(by)
	if _, err := nc.Write(text); err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{nc}) // the end is the answer; a reset is one, too
	return true
}
