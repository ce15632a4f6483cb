// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// TestSharing: who asks the same joins the probe under way, or takes what passed a
// moment ago; a failure is told to those who wait and to nobody later.
func TestSharing(t *testing.T) {
	var s sharing
	var got []health.ProbeResult
	done := func(r health.ProbeResult) { got = append(got, r) }
	target := &Target{Key: "a", Within: time.Second}
	at := func(d time.Duration) balance.Instant { return balance.Instant(0).Add(d) }
	first := s.join(target, at(0), done)
	if first == nil || s.join(target, at(1), done) != nil || s.join(&Target{Key: "b"}, at(1), done) == nil {
		t.Fatal("one probe for each key")
	}
	first(health.ProbeResult{Outcome: health.Pass, Sent: at(0)})
	if len(got) != 2 || got[0].Shared || !got[1].Shared {
		t.Fatalf("%+v", got)
	}
	if s.join(target, at(time.Second), done) != nil || len(got) != 3 || !got[2].Shared || got[2].Sent != at(0) {
		t.Fatalf("what passed a second ago is taken: %+v", got)
	}
	if s.join(&Target{Key: "a"}, at(time.Second), done) == nil {
		t.Fatal("who wants it fresh must ask")
	}
	got = nil
	if s.join(target, at(2*time.Second), done) != nil { // joins that one
		t.Fatal("not joined")
	}
	s.mu.Lock()
	s.entries["a"].running = false // its done was dropped above: begin anew
	s.entries["a"].waiters = nil
	s.mu.Unlock()
	fails := s.join(target, at(3*time.Second), done)
	s.join(target, at(3*time.Second), done)
	fails(health.ProbeResult{Outcome: health.NoAnswer, Sent: at(3 * time.Second)})
	if len(got) != 2 || s.join(target, at(3*time.Second), done) == nil {
		t.Fatalf("a failure is taken later: %+v", got)
	}
}

// TestSharingForgets: backends that are gone leave nothing behind.
func TestSharingForgets(t *testing.T) {
	var s sharing
	for i := range 10_000 {
		now := balance.Instant(0).Add(time.Duration(i) * time.Second)
		if d := s.join(&Target{Key: fmt.Sprint(i)}, now, func(health.ProbeResult) {}); d != nil {
			d(health.ProbeResult{Outcome: health.Pass, Sent: now})
		}
	}
	if n := len(s.entries); n > 4*sharedSweep {
		t.Errorf("%d entries", n)
	}
}
