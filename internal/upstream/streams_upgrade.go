// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/http2"
)

// GetUpgrade is GetStream for a request that asks for a WebSocket: over HTTP/2 a
// backend has to have said that it takes those (RFC 8441). nil as well where another
// connection may do better than those that there are.
func (t *Target) GetUpgrade(now balance.Instant, header []byte) *http2.ClientStream {
	if t.muxed.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	s := t.openUpgrade(now, header)
	t.mu.Unlock()
	if s != nil {
		t.reused.Add(1)
	} else if t.set.Load().plainTLS == nil {
		s = t.GetStream(now, true, header)
	}
	return s
}

// openUpgrade opens an exchange on a connection that takes WebSockets. Called with mu
// held.
func (t *Target) openUpgrade(now balance.Instant, header []byte) *http2.ClientStream {
	var best *Conn
	for _, c := range t.mux.conns {
		if c.mux.Room() <= 0 || c.header != string(header) || !c.mux.Connects() ||
			c.dies != 0 && now >= c.dies || c.epoch != t.set.Load().epoch || t.moved(c) {
			continue
		}
		if best == nil || c.mux.Streams() < best.mux.Streams() {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	return best.mux.Open(now)
}

// declines reports that there are connections over HTTP/2, and that none of them takes
// WebSockets. What a backend has said is forgotten with the connection that it has
// said it on: the next one that takes its place is asked.
func (t *Target) declines() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.mux.conns {
		if c.mux.Connects() {
			return false
		}
	}
	return len(t.mux.conns) > 0
}

// DialUpgrade is DialStream for a request that asks for a WebSocket. A backend that
// leaves the choice between HTTP/2 and HTTP/1.1, and does not take WebSockets over
// HTTP/2, gives a Conn. One that speaks only HTTP/2 gives a stream in any case, which
// says so.
func (t *Target) DialUpgrade(now, deadline balance.Instant, abort <-chan struct{}, header []byte) (*http2.ClientStream, *Conn, error) {
	o := t.set.Load()
	if o.plainTLS == nil || !t.declines() {
		s, c, err := t.DialStream(now, deadline, abort, header)
		if err != nil || c != nil || s.Connects() || o.plainTLS == nil {
			return s, c, err
		}
		s.Close()
	}
	c, err := t.fetch(now, deadline, abort, header, o.plainTLS)
	if err != nil {
		return nil, nil, err
	}
	c.ClientConn = http1.NewClientConn(c.nc, o.Limits)
	return nil, c, nil
}
