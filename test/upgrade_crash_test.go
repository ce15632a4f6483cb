// SPDX-License-Identifier: Apache-2.0

package test

import (
	"slices"
	"syscall"
	"testing"
	"time"
)

// successorOf returns the process that was started last.
func (r *upgradeRig) successorOf(pid int) int {
	r.t.Helper()
	var next int
	eventually(r.t, 10*time.Second, "a successor has been started", func() bool {
		all := slices.DeleteFunc(r.processes(), func(p int) bool { return p == pid })
		if len(all) == 1 {
			next = all[0]
		}
		return next != 0
	})
	return next
}

// TestKilledInTheMiddle: whichever process dies during an upgrade, the other
// one serves, and nobody is refused.
func TestKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	r := newUpgradeRig(t, "")
	l := r.loaded(2)
	type answer struct {
		out  string
		code int
	}
	ask := func() chan answer {
		done := make(chan answer, 1)
		go func() {
			out, code := r.run("upgrade")
			done <- answer{out, code}
		}()
		return done
	}
	// The successor dies while it builds: no client notices.
	r.install(slowBinary)
	done := ask()
	_ = syscall.Kill(r.successorOf(r.pid), syscall.SIGKILL)
	if a := <-done; a.code != 1 {
		t.Errorf("exit code %d\n%s", a.code, a.out)
	}
	if s := r.ask(); s.PID != r.pid || !s.Ready {
		t.Errorf("after the death of a successor: %+v", s)
	}
	r.must("reload")
	l.quiet() // no fault until here

	// It dies when it serves already: what it was at is lost, and the old one
	// takes its place again.
	r.install("")
	first := r.pid
	r.upgrade(false)
	_ = syscall.Kill(r.pid, syscall.SIGKILL)
	l2 := newLoad(t) // from now on nobody may be refused
	l2.web, l2.tls, l2.trust, l2.handover = r.web, r.tls, r.trust, true
	l2.addStreams(2, "")
	eventually(t, 5*time.Second, "the old process serves again", func() bool {
		s := r.ask() // it may still answer on an old connection that it has handed over
		return s.PID == first && s.Ready && s.State == "serving"
	})
	r.pid = first
	r.must("weight", "app/"+r.world.backends[0], "3")
	nonblocking(t, r.pid, 5)

	// The predecessor dies while its successor builds: the successor has the
	// sockets, so that nobody is refused, and serves as soon as it can.
	r.install(slowBinary)
	done = ask()
	next := r.successorOf(r.pid)
	time.Sleep(100 * time.Millisecond) // for the sockets to be sent
	for _, l := range []*load{l, l2} { // what it serves dies with it
		l.forgive()
	}
	_ = syscall.Kill(r.pid, syscall.SIGKILL)
	<-done
	r.pid = next
	r.reap(next)
	l3 := newLoad(t)
	l3.web, l3.tls, l3.trust = r.web, r.tls, r.trust
	l3.addStreams(1, "")
	if s := r.ask(); s.PID != next || !s.Ready {
		t.Errorf("after the death of the predecessor: %+v", s)
	}
	r.install("")
	old := r.upgrade(false)
	l3.end(r.world)
	r.gone(20*time.Second, old)
}

// TestStopDuringUpgrade: SIGTERM to the new process ends the old one as well,
// in the time of a shutdown and with exit code 0.
func TestStopDuringUpgrade(t *testing.T) {
	t.Parallel()
	r := newUpgradeRig(t, "")
	l := newLoad(t)
	l.web, l.handover = r.web, true
	l.addStreams(2, "")
	old := r.upgrade(true)
	l.addStreams(2, "")
	l.forgive() // these are cut, and may be
	_ = syscall.Kill(r.pid, syscall.SIGTERM)
	r.gone(12*time.Second, old, r.pid)
	if all := r.processes(); len(all) != 0 {
		t.Errorf("processes %v are left", all)
	}
	l.end(r.world)
}
