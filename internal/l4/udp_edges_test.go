// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
)

// silent is a backend that hears and does not answer.
func silent(t *testing.T) net.PacketConn {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// question opens the only flow by a question that has come to the backend.
func (r *flowRig) question(b net.PacketConn) (*net.UDPConn, *Flow, net.Addr) {
	r.t.Helper()
	c := r.client()
	_, _ = c.Write([]byte("question"))
	p := make([]byte, 100)
	n, from, err := b.ReadFrom(p)
	if err != nil || string(p[:n]) != "question" {
		r.t.Fatal(n, err)
	}
	return c, r.flow(), from
}

// TestFlowFailsWithAnswerUnsent: a flow whose answer has come is an answered one, also
// before the answer has left for the client.
func TestFlowFailsWithAnswerUnsent(t *testing.T) {
	b := silent(t)
	r := newFlowRig(t, []string{b.LocalAddr().String()}, func(s *flowSetup) { s.rt.Retry = retryOf(3) })
	c, f, _ := r.question(b)
	l := f.port.loop
	l.await(func() {
		l.flush()
		l.outPort = f.port
		l.down.msgs[0].n = uint32(copy(l.down.mem, "answer"))
		l.answer(f, 0, 1)
		l.used = 1
		if l.failed(f, unix.ECONNREFUSED) {
			t.Error("an answered flow goes on elsewhere")
		}
	})
	r.want(message.ResetMidResponse, 1, 1)
	p := make([]byte, 100)
	if n, err := c.Read(p); err != nil || string(p[:n]) != "answer" {
		t.Errorf("%q, %v", p[:n], err)
	}
}

// TestFlowToldToEndIsTakenBack: a flow that waited for its last answer when it was given
// away still ends when it is taken back.
func TestFlowToldToEndIsTakenBack(t *testing.T) {
	b := silent(t)
	r := newFlowRig(t, []string{b.LocalAddr().String()}, nil)
	_, f, _ := r.question(b)
	f.End(observe.TunnelByDrain, 0)
	turn := func() { f.port.loop.await(func() {}) }
	turn()
	states := r.relay.Pause()
	if len(states) != 1 || !states[0].Asking {
		t.Fatalf("handed over as %+v", states)
	}
	r.relay.GiveAway(func(Group) bool { return false })
	turn()
	turn()
	if n := r.s.Count(); n != 1 {
		t.Fatalf("%d flows, want 1", n)
	}
	r.relay.TakeBack()
	r.want(message.DrainCut, 1, 0)
}

// TestFlowWaitsForName: what is sent before the name of the backend is known waits for
// it, and is not to be sent again.
func TestFlowWaitsForName(t *testing.T) {
	b := replierAt(t, "b0", ":0")
	_, port, err := net.SplitHostPort(b.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	r := newFlowRig(t, []string{"localhost:" + port}, nil)
	c := r.client()
	for _, s := range []string{"one", "two"} {
		_, _ = c.Write([]byte(s))
	}
	p := make([]byte, 100)
	for _, want := range []string{"b0one", "b0two"} {
		if n, err := c.Read(p); err != nil || string(p[:n]) != want {
			t.Fatalf("%q, %v, want %s", p[:n], err, want)
		}
	}
	if n := r.s.Counts().Refused; n != 0 {
		t.Errorf("%d datagrams were dropped", n)
	}
}

// TestFlowWithoutName: where nobody can be asked for a name nothing is held.
func TestFlowWithoutName(t *testing.T) {
	names := upstream.NewResolver()
	names.Close()
	r := newFlowRig(t, []string{"nobody.invalid:53"}, func(s *flowSetup) { s.ups.Resolver = names })
	for range 3 {
		_, _ = r.client().Write([]byte("hello"))
		r.want(message.DNSFailed, 0, 0)
	}
}

// TestRelieve: flows that may be ended for others give their descriptors back.
func TestRelieve(t *testing.T) {
	r := newFlowRig(t, []string{replier(t, "b0")}, func(s *flowSetup) { s.settle = 1 })
	for range 4 {
		settle(t, r.client())
	}
	for range 6 {
		asks(t, r.client(), "once")
	}
	if n := r.relay.Relieve(4); n != 4 {
		t.Errorf("%d are asked for, want 4", n)
	}
	r.eventually("four have gone", func() bool { return r.s.Count() == 6 })
	if n := r.relay.Relieve(100); n != 2 {
		t.Errorf("%d are asked for, want 2", n)
	}
	r.eventually("the settled ones are left", func() bool { return r.s.Count() == 4 })
	if n := r.s.Counts().Evicted; n != 6 {
		t.Errorf("%d made room, want 6", n)
	}
}
