// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/upstream"
)

// OverHTTP1 makes a Target of upstream's connections, which speak HTTP/1.1.
func OverHTTP1(t *upstream.Target) Target { return http1Target{t} }

type http1Target struct{ t *upstream.Target }

// Get implements Target. A nil connection becomes a nil interface.
func (h http1Target) Get(now balance.Instant, unsafe bool) Upstream {
	if c := h.t.Get(now, unsafe); c != nil {
		return c
	}
	return nil
}

// Dial implements Target.
func (h http1Target) Dial(now, deadline balance.Instant, abort <-chan struct{}) (Upstream, error) {
	c, err := h.t.Dial(now, deadline, abort)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// For implements Introducing.
func (h http1Target) For(header []byte) Target { return introduced{h, header} }

// introduced are the connections that began with a PROXY header.
type introduced struct {
	http1Target
	header []byte
}

// Get implements Target.
func (i introduced) Get(now balance.Instant, unsafe bool) Upstream {
	if c := i.t.GetFor(now, unsafe, i.header); c != nil {
		return c
	}
	return nil
}

// Dial implements Target.
func (i introduced) Dial(now, deadline balance.Instant, abort <-chan struct{}) (Upstream, error) {
	c, err := i.t.DialFor(now, deadline, abort, i.header)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Put implements Target.
func (h http1Target) Put(u Upstream, now balance.Instant) {
	c, ok := u.(*upstream.Conn)
	if !ok {
		u.Close()
		return
	}
	h.t.Put(c, now)
}
