// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/upstream"
)

// OverHTTP2 makes a Target of upstream's connections, of which each carries many
// exchanges at once; where the backend has chosen HTTP/1.1 in TLS, one.
func OverHTTP2(t *upstream.Target) Target { return http2Target{t: t} }

type http2Target struct {
	t      *upstream.Target
	header []byte // of the PROXY protocol
}

// For implements Introducing.
func (h http2Target) For(header []byte) Target { return http2Target{h.t, header} }

// Get implements Target.
func (h http2Target) Get(now balance.Instant, unsafe bool) Upstream {
	if s := h.t.GetStream(now, unsafe, h.header); s != nil {
		return s
	}
	if c := h.t.GetFor(now, unsafe, h.header); c != nil {
		return c
	}
	return nil
}

// Dial implements Target.
func (h http2Target) Dial(now, deadline balance.Instant, abort <-chan struct{}) (Upstream, error) {
	return dialed(h.t.DialStream(now, deadline, abort, h.header))
}

// Put implements Target.
func (h http2Target) Put(u Upstream, now balance.Instant) {
	switch u := u.(type) {
	case *http2.ClientStream:
		u.Done()
	case *upstream.Conn:
		h.t.Put(u, now)
	default:
		u.Close()
	}
}

// Upgrading is a Target that takes requests for WebSockets on connections of their
// own choice.
type Upgrading interface {
	// ForUpgrade returns the Target of such a request.
	ForUpgrade() Target
}

// ForUpgrade implements Upgrading.
func (h http2Target) ForUpgrade() Target { return upgradeTarget{h} }

type upgradeTarget struct{ http2Target }

// Get implements Target.
func (u upgradeTarget) Get(now balance.Instant, unsafe bool) Upstream {
	if s := u.t.GetUpgrade(now, u.header); s != nil {
		return s
	}
	if c := u.t.GetFor(now, unsafe, u.header); c != nil {
		return c
	}
	return nil
}

// Dial implements Target.
func (u upgradeTarget) Dial(now, deadline balance.Instant, abort <-chan struct{}) (Upstream, error) {
	return dialed(u.t.DialUpgrade(now, deadline, abort, u.header))
}

// dialed is what a dial has led to: a stream, or a connection where the backend
// does not speak HTTP/2.
func dialed(s *http2.ClientStream, c *upstream.Conn, err error) (Upstream, error) {
	switch {
	case err != nil:
		return nil, err
	case c != nil:
		return c, nil
	}
	return s, nil
}
