// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/http2"
)

// GetUpgrade is GetStream for a request that asks for a WebSocket: over HTTP/2 a
// backend has to have said that it takes those (RFC 8441).
func (t *Target) GetUpgrade(now balance.Instant, header []byte) *http2.ClientStream {
	s := t.GetStream(now, true, header)
	if s != nil && !s.Connects() && t.set.Load().plainTLS != nil {
		s.Close() // HTTP/1.1 can be asked for
		return nil
	}
	return s
}

// DialUpgrade is DialStream for a request that asks for a WebSocket. A backend that
// leaves the choice between HTTP/2 and HTTP/1.1, and does not take WebSockets over
// HTTP/2, gives a Conn. One that speaks only HTTP/2 gives a stream in any case, which
// says so.
func (t *Target) DialUpgrade(now, deadline balance.Instant, abort <-chan struct{}, header []byte) (*http2.ClientStream, *Conn, error) {
	o := t.set.Load()
	if o.plainTLS == nil || !t.refuses.Load() {
		s, c, err := t.DialStream(now, deadline, abort, header)
		if err != nil || c != nil || s.Connects() || o.plainTLS == nil {
			return s, c, err
		}
		s.Close()
		t.refuses.Store(true)
	}
	c, err := t.fetch(now, deadline, abort, header, o.plainTLS)
	if err != nil {
		return nil, nil, err
	}
	c.ClientConn = http1.NewClientConn(c.nc, o.Limits)
	return nil, c, nil
}
