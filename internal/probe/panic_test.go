// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
)

// TestPanics: a probe that panics says nothing about its backend and is told of, and so is
// one whose result is taken by somebody who panics. The others go on, by the goroutines
// that carried it.
func TestPanics(t *testing.T) {
	both(t, func(t *testing.T, create func(Options) *Prober) {
		var panics atomic.Int32
		var broken atomic.Bool
		p := create(Options{
			MaxAtOnce: 1, // what follows waits for the place of what panicked
			Observe: func(string, time.Duration) {
				if broken.Load() {
					panic("an observer")
				}
			},
			Resolve: func(context.Context, string) ([]netip.Addr, error) {
				panic("a resolver")
			},
			OnPanic: func(_ any, stack []byte) {
				if len(stack) == 0 {
					t.Error("no stack")
				}
				panics.Add(1)
			},
		})
		address := scripted(t, silent)
		if r := one(t, p, Target{Address: "app.example:80"}, patienceOfPanics); !r.Retry || r.Outcome != health.NoAnswer || r.Error == "" {
			t.Errorf("a resolver that panics: %+v", r)
		}
		if n := panics.Load(); n != 1 {
			t.Errorf("%d panics were told of, want 1", n)
		}
		broken.Store(true)
		told := make(chan struct{})
		p.Probe(Target{Address: address}, patienceOfPanics, func(health.ProbeResult) {
			close(told)
			panic("a pool")
		})
		select {
		case <-told:
		case <-time.After(patienceOfPanics):
			t.Fatal("nobody hears of a probe because its observer panics")
		}
		broken.Store(false)
		if r := one(t, p, Target{Address: address}, patienceOfPanics); r.Outcome != health.Pass {
			t.Errorf("the next one: %+v", r)
		}
		if n := panics.Load(); n != 3 {
			t.Errorf("%d panics were told of, want 3", n)
		}
	})
}

const patienceOfPanics = 10 * time.Second

// TestSharedPanic: of those who wait for one answer, one that panics does not keep the
// others from hearing it.
func TestSharedPanic(t *testing.T) {
	var panics atomic.Int32
	p := newProber(t, Options{OnPanic: func(any, []byte) { panics.Add(1) }})
	address, release := mute(t)
	target := Target{Address: address, Key: "k"}
	heard := make(chan health.ProbeResult, 2)
	p.Probe(target, patienceOfPanics, func(health.ProbeResult) { panic("the first") })
	p.Probe(target, patienceOfPanics, func(health.ProbeResult) { panic("the second") })
	p.Probe(target, patienceOfPanics, func(r health.ProbeResult) { heard <- r })
	release()
	select {
	case <-heard:
	case <-time.After(2 * patienceOfPanics):
		t.Fatal("the third hears nothing")
	}
	if n := panics.Load(); n != 2 {
		t.Errorf("%d panics were told of, want 2", n)
	}
	done := make(chan health.ProbeResult, 1)
	p.Probe(target, patienceOfPanics, func(r health.ProbeResult) { done <- r })
	select {
	case <-done:
	case <-time.After(2 * patienceOfPanics):
		t.Fatal("the next one is never made")
	}
}
