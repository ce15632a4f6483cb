// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
)

func TestFlows(t *testing.T) {
	r := newFlowRig(t, []string{replier(t, "b0"), replier(t, "b1")}, nil)
	with := map[string]int{}
	var all []*net.UDPConn
	for i := range 20 {
		c := r.client()
		all = append(all, c)
		with[asks(t, c, fmt.Sprint("hello ", i))]++
	}
	if with["b0"] != 10 || with["b1"] != 10 {
		t.Errorf("flows fell %v", with)
	}
	for _, size := range []int{0, 1, 1400, 1500, 9000, 65000, 65505} {
		c := all[size%len(all)]
		first := asks(t, c, strings.Repeat("x", size))
		if again := asks(t, c, "again"); again != first {
			t.Errorf("a flow moved from %s to %s", first, again)
		}
	}
	if n := r.s.Count(); n != 20 {
		t.Errorf("%d flows, want 20", n)
	}
}

// TestFlowIsPickedAgain: a backend without a process is passed over, and the client
// that has asked it gets its answer all the same.
func TestFlowIsPickedAgain(t *testing.T) {
	r := newFlowRig(t, []string{deadUDP(t), replier(t, "b1"), deadUDP(t)}, func(s *flowSetup) { s.rt.Retry = retryOf(3) })
	for i := range 10 {
		if got := asks(t, r.client(), fmt.Sprint(i)); got != "b1" {
			t.Errorf("answered by %s", got)
		}
	}
	r.relay.Close()
	tries := 0
	for range 10 {
		rec := r.want(message.DrainCut, 1, 1)
		tries += rec.Redispatches
	}
	if tries == 0 {
		t.Error("nobody met a dead backend")
	}
}

// TestFlowWithoutBackend: nobody answers, and it is said why; the next datagram may
// find somebody.
func TestFlowWithoutBackend(t *testing.T) {
	r := newFlowRig(t, []string{deadUDP(t)}, nil)
	_, _ = r.client().Write([]byte("hello"))
	rec := r.want(message.ConnectRefused, 1, 0)
	if rec.Attempts == 0 || rec.Backend != "b0" {
		t.Errorf("record %+v", rec)
	}
}

// TestFlowLosesBackend: who has got answers cannot be moved unseen: its flow ends, and
// what it sends next begins another one.
func TestFlowLosesBackend(t *testing.T) {
	b := replierAt(t, "b0", "127.0.0.1:0")
	r := newFlowRig(t, []string{b.LocalAddr().String(), replier(t, "b1")}, nil)
	c := r.client()
	if got := asks(t, c, "one"); got != "b0" {
		c = r.client()
		if got = asks(t, c, "one"); got != "b0" {
			t.Fatalf("answered by %s", got)
		}
	}
	_ = b.Close()
	_, _ = c.Write([]byte("two"))
	r.want(message.ResetMidResponse, 2, 1)
	if got := asks(t, c, "three"); got != "b1" {
		t.Errorf("answered by %s", got)
	}
}

func TestFlowTimes(t *testing.T) {
	quiet, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = quiet.Close() })
	t.Run("idle", func(t *testing.T) {
		r := newFlowRig(t, []string{replier(t, "b0")}, func(s *flowSetup) { s.rt.Idle = 50 * time.Millisecond })
		asks(t, r.client(), "hello")
		rec := r.want(message.OK, 1, 1)
		if rec.FirstByte <= 0 || rec.Total < 50*time.Millisecond || rec.BytesIn != 5 || rec.BytesOut != 7 {
			t.Errorf("record %+v", rec)
		}
	})
	t.Run("unanswered", func(t *testing.T) {
		r := newFlowRig(t, []string{quiet.LocalAddr().String()}, func(s *flowSetup) { s.rt.Idle = 50 * time.Millisecond })
		_, _ = r.client().Write([]byte("hello"))
		r.want(message.ResponseTimeout, 1, 0)
		for _, b := range r.pool.Snapshot().Backends {
			if b.Share < 1 {
				t.Errorf("silence has cost %s its share", b.ID)
			}
		}
	})
	t.Run("total", func(t *testing.T) {
		r := newFlowRig(t, []string{replier(t, "b0")}, func(s *flowSetup) { s.rt.Total = 100 * time.Millisecond })
		c := r.client()
		for {
			_, _ = c.Write([]byte("hello"))
			select {
			case rec := <-r.records:
				if rec.Reason != message.MaxAge || rec.Total < 100*time.Millisecond || rec.DatagramsOut == 0 {
					t.Errorf("ended %s after %v with %d answers", rec.Reason, rec.Total, rec.DatagramsOut)
				}
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	t.Run("told", func(t *testing.T) {
		r := newFlowRig(t, []string{replier(t, "b0")}, nil)
		c := r.client()
		asks(t, c, "hello")
		r.flow().End(observe.TunnelByDrain, 0)
		r.want(message.DrainCut, 1, 1)
		asks(t, c, "another flow")
	})
}

// TestFlowsAreBounded: clients that were never heard of again make room, the oldest
// first; those that talk are not touched, however many come.
func TestFlowsAreBounded(t *testing.T) {
	r := newFlowRig(t, []string{replier(t, "b0")}, func(s *flowSetup) { s.most, s.sockets, s.settle = 8, 1, 1 })
	var talk []*net.UDPConn
	for range 4 {
		c := r.client()
		settle(t, c)
		talk = append(talk, c)
	}
	for i := range 200 {
		asks(t, r.client(), fmt.Sprint("flood ", i))
	}
	if n := r.s.Count(); n != 8 {
		t.Errorf("%d flows, want 8", n)
	}
	if n := r.s.Counts().Evicted; n != 196 {
		t.Errorf("%d flows made room, want 196", n)
	}
	for _, c := range talk {
		asks(t, c, "three")
	}
	for range 4 {
		settle(t, r.client())
	}
	_, _ = r.client().Write([]byte("no room"))
	r.eventually("the last one is refused", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.refused) == 1 && r.refused[0] == FullListener
	})
	for _, c := range talk {
		asks(t, c, "four")
	}
}

// TestAnswersComeFromWhereAsked: a socket of all addresses answers from the one that
// was sent to; connected clients take answers from no other one.
func TestAnswersComeFromWhereAsked(t *testing.T) {
	for _, c := range []struct{ bind, ask string }{
		{"0.0.0.0", "127.0.0.1"},
		{"0.0.0.0", "127.0.0.2"},
		{"0.0.0.0", "127.1.2.3"},
		{"::", "::1"},
		{"::", "127.0.0.3"},
		{"::1", "::1"},
	} {
		t.Run(c.bind+" "+c.ask, func(t *testing.T) {
			r := newFlowRig(t, []string{replier(t, "b0")}, func(s *flowSetup) { s.bind = c.bind })
			r.addr = netip.AddrPortFrom(netip.MustParseAddr(c.ask), r.group.bound.Port()).String()
			cl := r.client()
			asks(t, cl, "hello")
			asks(t, cl, strings.Repeat("y", 20000))
			burst(t, cl, 40, 1000)
		})
	}
}

// burst sends many datagrams at once and wants them all back, in their order.
func burst(t *testing.T, c net.Conn, n, size int) {
	t.Helper()
	for i := range n {
		_, _ = c.Write(append([]byte{byte(i)}, bytes.Repeat([]byte("z"), size-1)...))
	}
	b := make([]byte, 70000)
	for i := range n {
		k, err := c.Read(b)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if k != size+2 || b[2] != byte(i) {
			t.Fatalf("answer %d has %d bytes and number %d", i, k, b[2])
		}
	}
}

// TestBursts: what comes together is passed on whole, in order, whatever its sizes,
// with what the kernel offers and without.
func TestBursts(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprint("plain ", plain), func(t *testing.T) {
			r := newFlowRig(t, []string{replier(t, "b0")}, func(s *flowSetup) { s.plain = plain })
			c := r.client()
			_ = c.SetReadBuffer(4 << 20)
			for range 20 {
				burst(t, c, 60, 1200)
				burst(t, c, 20, 200)
				burst(t, c, 5, 9000)
			}
			for i := range 3 {
				segmented(t, c, 1200+i, 30)
			}
		})
	}
}

// TestFlowEndsAfterAnswer: a flow that is told to end while a question is on its way
// waits for the answer.
func TestFlowEndsAfterAnswer(t *testing.T) {
	b, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	r := newFlowRig(t, []string{b.LocalAddr().String()}, nil)
	c := r.client()
	_, _ = c.Write([]byte("question"))
	p := make([]byte, 100)
	n, from, err := b.ReadFrom(p)
	if err != nil || string(p[:n]) != "question" {
		t.Fatal(n, err)
	}
	r.flow().End(observe.TunnelByDrain, 0)
	r.relay.running()[0].await(func() {})
	r.relay.running()[1].await(func() {})
	if _, err := b.WriteTo([]byte("answer"), from); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(p); err != nil || string(p[:n]) != "answer" {
		t.Fatal(n, err)
	}
	r.want(message.DrainCut, 1, 1)
}

// TestFlowsGoToAnotherProcess: a second relay goes on with the flows of the first one,
// with what had come meanwhile, and the first one can take them back.
func TestFlowsGoToAnotherProcess(t *testing.T) {
	r := newFlowRig(t, []string{replier(t, "b0"), replier(t, "b1")}, func(s *flowSetup) { s.settle = 1 })
	var all []net.Conn
	with := map[net.Conn]string{}
	for i := range 30 {
		c := r.client()
		all = append(all, c)
		with[c] = asks(t, c, "one")
		if i%2 == 0 {
			asks(t, c, "two")
			asks(t, c, "settled")
		}
	}
	states := r.relay.Pause()
	if len(states) != 30 {
		t.Fatalf("%d flows, want 30", len(states))
	}
	settled := 0
	for i := range states {
		if states[i].Settled {
			settled++
		}
	}
	if settled != 15 {
		t.Errorf("%d flows are handed over as settled, want 15", settled)
	}
	for _, c := range all {
		_, _ = c.Write([]byte("meanwhile"))
	}
	second := newFlowRig(t, []string{r.targetAddr(0), r.targetAddr(1)}, func(s *flowSetup) { s.expect, s.group = states, r.group })
	hear := func(text string) {
		t.Helper()
		b := make([]byte, 100)
		for _, c := range all {
			if n, err := c.Read(b); err != nil || string(b[:n]) != with[c]+text {
				t.Fatalf("%q, %v, want %s by %s", b[:n], err, text, with[c])
			}
		}
	}
	hear("meanwhile")
	if n := second.s.Count(); n != 30 {
		t.Errorf("%d flows have gone on, want 30", n)
	}
	r.relay.GiveAway(func(Group) bool { return false })
	for _, c := range all {
		if got := asks(t, c, "two"); got != with[c] {
			t.Fatalf("a flow moved to %s", got)
		}
	}
	// The other one is dead: its sockets are gone with it, those of this one are not.
	second.relay.Close()
	for range 30 {
		rec := <-second.records
		if rec.Reason != message.DrainCut || rec.DatagramsIn < 3 || rec.DatagramsIn != rec.DatagramsOut {
			t.Errorf("recorded with %d in, %d out", rec.DatagramsIn, rec.DatagramsOut)
		}
	}
	r.relay.TakeBack()
	for _, c := range all {
		if got := asks(t, c, "three"); got != with[c] {
			t.Fatalf("a flow moved to %s", got)
		}
	}
	r.relay.Pause()
	r.relay.GiveAway(func(Group) bool { return false })
	r.relay.Abandon()
	if n := r.s.Count(); n != 0 {
		t.Errorf("%d flows are left", n)
	}
	if len(r.records) > 0 {
		t.Error("flows that are another process's were recorded")
	}
}
