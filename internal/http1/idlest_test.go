// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// TestIdlest: of connections that wait for a request, on a goroutine or parked, the
// one that asked longest ago comes first and can be ended; one that is new, and one
// that is being served, is left alone.
func TestIdlest(t *testing.T) {
	s := &Server{Handler: echo, Timeouts: Timeouts{ParkAfter: time.Millisecond, Idle: time.Minute, Header: time.Minute}}
	park(t, s)
	r := newRig(t, s)
	first, second, fresh := r.dial(), r.dial(), r.dial()
	for _, c := range []*client{first, second, first} {
		c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
		c.expect(ok("GET /1 "))
	}
	busy := r.dial()
	busy.send("GET /2 HTTP/1.1\r\n")
	eventually(t, "three wait", func() bool { return s.Counts() == Counts{Active: 1, Parked: 3} })
	x := netconn.Idlest{Most: 4, Before: clock.Now().Add(1)}
	s.Idlest(&x)
	if n := len(x.List()); n != 2 || x.List()[0].Since >= x.List()[1].Since {
		t.Fatalf("%d are offered: %v", n, x.List())
	}
	if i := x.List()[0]; !i.End() || i.End() {
		t.Error("it is not ended, or ended twice")
	}
	second.expectEnd("") // it asked once, before the other asked again
	first.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
	first.expect(ok("GET /1 "))
	busy.send("Host: x\r\n\r\n")
	busy.expect(ok("GET /2 "))
	fresh.send("GET /3 HTTP/1.1\r\nHost: x\r\n\r\n")
	fresh.expect(ok("GET /3 "))
}
