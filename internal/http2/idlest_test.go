// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// TestIdlest: a connection without a stream is told to end when it is chosen, once,
// and is not offered again; one that came just now, or is being served, is not at all.
func TestIdlest(t *testing.T) {
	var release chan struct{}
	s := &Server{Handler: answers{"/wait": func(s *ServerStream) { <-release; ok(s) }}.serve}
	play(t, s, func(p *peer) {
		release = make(chan struct{})
		idlest := func() []netconn.Idle {
			x := netconn.Idlest{Most: 2, Before: clock.Now().Add(1)}
			s.Idlest(&x)
			return x.List()
		}
		p.begin()
		if list := idlest(); len(list) != 0 {
			t.Errorf("a new one is offered: %v", list)
		}
		time.Sleep(2 * firstGrace)
		p.headers(1, true, get("/wait")...)
		p.wait()
		if list := idlest(); len(list) != 0 {
			t.Errorf("one that is served is offered: %v", list)
		}
		close(release)
		p.wait()
		p.take()
		list := idlest()
		if len(list) != 1 || list[0].End() {
			t.Fatalf("offered: %v", list)
		}
		time.Sleep(2 * leaveTime)
		if !p.ended() {
			t.Error("it goes on")
		}
		if list := idlest(); len(list) != 0 {
			t.Errorf("it is offered again: %v", list)
		}
	})
}
