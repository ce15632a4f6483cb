// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/observe"
)

// lasts is a LongLived of nothing.
type lasts struct {
	b *balance.Backend
	n int
}

func (l *lasts) Backend() *balance.Backend              { return l.b }
func (l *lasts) Since() balance.Instant                 { return balance.Instant(l.n) }
func (l *lasts) Facts() observe.LongLived               { return observe.LongLived{Kind: "session"} }
func (l *lasts) End(observe.TunnelCause, time.Duration) {}

// TestEach: all that stay are seen once, while others come and go, and who was told to
// end is known.
func TestEach(t *testing.T) {
	s := NewTunnels()
	on := []*balance.Backend{new(balance.Backend), new(balance.Backend)}
	stay := map[LongLived]bool{}
	for n := range 3*eachAtOnce + 1 {
		x := &lasts{on[n%2], n}
		stay[x] = true
		s.Enter(x)
	}
	told := s.EndOldest(on[0], 5, 0, observe.TunnelByRebalance, 0)
	var others sync.WaitGroup
	others.Go(func() {
		for n := range 5000 {
			x := &lasts{on[n%2], n}
			s.Enter(x)
			s.Leave(x)
		}
	})
	for range 20 {
		seen, ending := map[LongLived]int{}, 0
		s.Each(func(b *balance.Backend, x LongLived, told bool) {
			if seen[x]++; b != x.Backend() {
				t.Error("of another backend")
			}
			if told {
				ending++
			}
		})
		for x := range stay {
			if seen[x] != 1 {
				t.Fatalf("seen %d times", seen[x])
			}
		}
		if ending != told {
			t.Fatalf("%d were told to end, want %d", ending, told)
		}
	}
	others.Wait()
	for x := range stay {
		s.Leave(x)
	}
	s.Each(func(*balance.Backend, LongLived, bool) { t.Error("one that has left") })
}
