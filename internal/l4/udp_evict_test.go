// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// settle has a client come back after two answers.
func settle(t *testing.T, c net.Conn) {
	t.Helper()
	for _, s := range []string{"one", "two", "three"} {
		asks(t, c, s)
	}
}

// TestFlowSettles: a client is believed when it came back after two answers in a flow
// that is old enough, and not for sending twice.
func TestFlowSettles(t *testing.T) {
	ms := func(n int) balance.Instant { return balance.Instant(0).Add(time.Duration(n) * time.Millisecond) }
	type step struct {
		at   int  // ms
		send bool // else it is answered
		want bool
	}
	for name, steps := range map[string][]step{
		"forged twice":      {{1, false, false}, {200, true, false}, {201, false, false}},
		"forged twice late": {{1, false, false}, {2500, true, false}},
		"quick":             {{1, false, false}, {2, true, false}, {3, false, false}, {4, true, false}, {5, false, false}, {1999, true, false}, {2000, true, true}},
		"late":              {{1, false, false}, {2000, true, false}, {2001, false, false}, {2002, true, true}},
		"one answer":        {{1, false, false}, {2100, true, false}, {2200, true, false}, {2300, true, false}},
		"no answer":         {{2100, true, false}, {2200, true, false}, {2300, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &Flow{asking: true}
			for i, s := range steps {
				if !s.send {
					f.asking, f.answeredAfter = false, 1
					continue
				}
				if got := f.settles(ms(s.at), settledAfter); got != s.want {
					t.Errorf("step %d: settled %v, want %v", i, got, s.want)
				}
				f.asking = true
			}
		})
	}
}

// TestFlowsYoungOnesMakeRoom: clients that talk are not out of reach before their time,
// so that others find room.
func TestFlowsYoungOnesMakeRoom(t *testing.T) {
	r := newFlowRig(t, []string{replier(t, "b0")}, func(s *flowSetup) { s.most, s.sockets, s.settle = 4, 1, time.Hour })
	for range 4 {
		settle(t, r.client())
	}
	for i := range 8 {
		asks(t, r.client(), fmt.Sprint("another ", i))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.s.Counts().Evicted; n != 8 || len(r.evicted) != 8 {
		t.Errorf("%d flows made room, and %v was told of, want 8", n, r.evicted)
	}
}

// TestEvictOrder: overdue answers first, then who was silent for longest.
func TestEvictOrder(t *testing.T) {
	const ms = balance.Instant(time.Millisecond)
	now := 10000 * ms
	for _, c := range []struct {
		name            string
		fresh, answered balance.Instant // when they were heard of last; 0: there is none
		want            string
	}{
		{"none", 0, 0, ""},
		{"fresh", now, 0, "fresh"},
		{"answered", 0, now, "answered"},
		{"overdue", now - 1000*ms, 1 * ms, "fresh"},
		{"on its way", now - 999*ms, now - 1000*ms, "answered"},
		{"longer", now - 999*ms, now - 998*ms, "fresh"},
	} {
		s := &shelf{}
		names := map[*Flow]string{nil: ""}
		if c.fresh > 0 {
			f := &Flow{last: c.fresh}
			names[f] = "fresh"
			s.unsettled(f).push(f)
		}
		if c.answered > 0 {
			f := &Flow{last: c.answered, answeredAfter: 1}
			names[f] = "answered"
			s.unsettled(f).push(f)
		}
		if got := names[s.spare(now)]; got != c.want {
			t.Errorf("%s: %q makes room, want %q", c.name, got, c.want)
		}
	}
}

// twoLoops has relays of the test have two loops.
func twoLoops(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// admitted sends until an answer comes.
func admitted(t *testing.T, c *net.UDPConn) {
	t.Helper()
	b := make([]byte, 100)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		_, _ = c.Write([]byte("hello"))
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Read(b); err == nil {
			return
		}
	}
	t.Fatal("it finds no room")
}

// TestEvictOnAnotherLoop: a flow of another loop makes room where the loop that clients
// come to has settled ones alone.
func TestEvictOnAnotherLoop(t *testing.T) {
	twoLoops(t)
	r := newFlowRig(t, []string{replier(t, "b0")}, func(s *flowSetup) { s.settle = 1 })
	loops := map[*flowLoop][]*net.UDPConn{}
	var here, there []*net.UDPConn
	for range 200 { // where a client comes to is the kernel's choice
		c := r.client()
		asks(t, c, "where")
		port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		l := r.loopOf(port)
		loops[l] = append(loops[l], c)
		for a := range loops {
			for b := range loops {
				if a != b && len(loops[a]) >= 3 {
					here, there = loops[a], loops[b]
				}
			}
		}
		if here != nil {
			break
		}
	}
	if here == nil {
		t.Fatal("the kernel does not spread clients")
	}
	r.mu.Lock()
	for f := range r.known {
		f.End(1, 0)
	}
	r.mu.Unlock()
	r.eventually("all have ended", func() bool { return r.s.Count() == 0 })
	if n := r.s.loose.n.Load() + r.relay.loose.n.Load(); n != 0 {
		t.Errorf("%d flows are counted as loose that are no more", n)
	}
	r.mu.Lock()
	r.most = 3
	r.mu.Unlock()
	settle(t, here[0])
	settle(t, here[1])
	asks(t, there[0], "once")
	admitted(t, here[2])
	if n := r.s.Counts().Evicted; n != 1 {
		t.Errorf("%d flows made room, want 1", n)
	}
	asks(t, here[0], "still there")
	asks(t, here[1], "still there")
}

// loopOf is the loop of the flow of a client's port.
func (r *flowRig) loopOf(port uint16) *flowLoop {
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.known {
		if f.key.from().Port() == port {
			return f.port.loop
		}
	}
	return nil
}

// TestEvictOfAnotherListener: where the process is full a flow of any listener makes
// room, of the same loop or of another one.
func TestEvictOfAnotherListener(t *testing.T) {
	for i, where := range []string{"another loop", "the same loop"} {
		t.Run(where, func(t *testing.T) {
			twoLoops(t)
			r := newFlowRig(t, []string{replier(t, "b0")}, func(s *flowSetup) { s.most, s.full, s.sockets = 4, FullProcess, 1 })
			opt := r.s.opt
			rt := *r.rt
			opt.Route = func() *Route { return &rt }
			other := NewFlows(opt)
			var group *testGroup
			for range 1 + i { // loops get sockets in turn
				group = bindGroup(t, "127.0.0.1", 1)
				if err := other.Open(group); err != nil {
					t.Fatal(err)
				}
			}
			for range 4 {
				asks(t, r.client(), "fills")
			}
			r.addr = netip.AddrPortFrom(group.bound.Addr(), group.bound.Port()).String()
			admitted(t, r.client())
			if r.s.Counts().Evicted != 1 || other.Counts().Evicted != 0 {
				t.Errorf("%d and %d flows made room, want 1 of the first", r.s.Counts().Evicted, other.Counts().Evicted)
			}
			if n := r.relay.loose.n.Load(); n != 4 {
				t.Errorf("%d flows are loose, want 4", n)
			}
		})
	}
}
