// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/message"
)

// holdOne has a loop hold a datagram for a name that never becomes known.
func (r *flowRig) holdOne() {
	r.t.Helper()
	l := r.relay.running()[0]
	l.await(func() {
		p := l.ports[0]
		k := flowKey{client: words(r.group.bound.Addr()), rest: 4242}
		one := [1]unix.Iovec{piece([]byte("question"))}
		l.unresolved = make(chan struct{})
		l.hold(p, &k, one[:], 0)
		if n := len(l.held.all); n != 1 {
			r.t.Errorf("%d are held", n)
		}
	})
}

// TestHeldDatagramIsLost: a datagram that waits for the name of its backend when its
// socket is given to another process, closed, or taken no new flows from, is counted and
// told of.
func TestHeldDatagramIsLost(t *testing.T) {
	for name, end := range map[string]func(r *flowRig){
		"given away": func(r *flowRig) {
			r.relay.Pause()
			r.relay.GiveAway(func(Group) bool { return false })
		},
		"the end of the process": func(r *flowRig) { r.relay.Close() },
		"the end of the listener": func(r *flowRig) {
			gone := make(chan struct{})
			r.s.Close(r.group, func() { close(gone) })
			<-gone
			for _, l := range r.relay.running() {
				l.await(l.offer)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFlowRig(t, []string{replier(t, "b0")}, nil)
			r.holdOne()
			end(r)
			if n := r.s.Counts().Refused; n != 1 {
				t.Errorf("%d datagrams are counted as dropped, want 1", n)
			}
			if rec := r.want(message.DrainCut, 0, 0); rec.Detail != lostDetail {
				t.Errorf("said of it: %q", rec.Detail)
			}
		})
	}
}

// TestHeldDatagramOutlivesPause: a handover that comes to nothing loses none of them.
func TestHeldDatagramOutlivesPause(t *testing.T) {
	r := newFlowRig(t, []string{replier(t, "b0")}, nil)
	r.holdOne()
	r.relay.Pause()
	r.relay.Resume()
	r.eventually("it is passed on", func() bool { return r.s.Count() == 1 }) // its backend has an address
	if n := r.s.Counts().Refused; n != 0 {
		t.Errorf("%d datagrams were dropped", n)
	}
}
