// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"testing"

	"github.com/weirlb/weir/internal/clock"
)

// TestReconfigure: what is idle stays unless it was made with what has changed;
// what is on loan then is not kept when it comes back.
func TestReconfigure(t *testing.T) {
	opt := options(always(t).Addr())
	target := newTarget(t, opt)
	dial := func() *Conn {
		t.Helper()
		c := mustDial(t, target)
		if err := exchange(c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := dial()
	target.Put(c, clock.Now())
	opt.MaxRequests = 100
	target.Reconfigure(opt, false)
	if got := target.Get(clock.Now(), false); got != c {
		t.Fatalf("a connection that may stay is gone: %v", got)
	}
	target.Reconfigure(opt, true)
	target.Put(c, clock.Now())
	if s := target.Stats(); s.Open != 0 {
		t.Errorf("made with what has changed, and kept: %+v", s)
	}
	c = dial()
	target.Put(c, clock.Now())
	target.Reconfigure(opt, true)
	if s := target.Stats(); s.Open != 0 || target.Get(clock.Now(), false) != nil {
		t.Errorf("idle with what has changed, and kept: %+v", s)
	}
	c = dial()
	if target.Put(c, clock.Now()); target.Stats().Idle != 1 {
		t.Error("a connection made since is not kept")
	}
}
