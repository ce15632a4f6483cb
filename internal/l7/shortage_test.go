// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

// TestShortage: memory becomes short before a request, before it dials, or while
// it does. It is refused, by one attempt at most, and the backend gets nothing and
// no blame; one that has a kept connection is served.
func TestShortage(t *testing.T) {
	for looks, attempts := range []int{0, 1, 1} {
		t.Run(fmt.Sprint(looks), func(t *testing.T) {
			var requests, left atomic.Int64
			left.Store(1 << 30)
			b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
				for s.Request() != nil {
					requests.Add(1)
					s.Send(ok2)
				}
			})
			r := newRig(t, []string{b.Addr()}, rigOptions{edit: func(r *rig) {
				r.short = func() bool { return left.Add(-1) < 0 }
			}})
			left.Store(int64(looks))
			m := r.roundTrip(get)
			if m.Status() != 503 || !strings.HasPrefix(m.Body, "weir: 503 local_memory") {
				t.Errorf("answer %+v", m)
			}
			if rec := r.want(503, message.LocalMemory, false); rec.Attempts != attempts {
				t.Errorf("%d attempts, want %d", rec.Attempts, attempts)
			}
			if n := requests.Load(); n != 0 {
				t.Errorf("the backend got %d requests", n)
			}
			left.Store(1 << 30)
			if m := r.roundTrip(get); m.Status() != 200 {
				t.Errorf("with memory again: %+v", m)
			}
			r.want(200, message.OK, true)
			left.Store(1) // there is a kept connection now, for which nobody asks again
			if m := r.roundTrip(get); m.Status() != 200 {
				t.Errorf("over a kept connection: %+v", m)
			}
			r.want(200, message.OK, true)
		})
	}
}

// TestShortageGrow: who needs a new connection to a backend asks for the memory
// first and is refused without blame for the backend; content on its way asks, too,
// and a request over a kept connection does not.
func TestShortageGrow(t *testing.T) {
	var mu sync.Mutex
	var asked []int64
	var refuse atomic.Bool
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		for s.Request() != nil {
			s.Send(ok2)
		}
	})
	r := newRig(t, []string{b.Addr()}, rigOptions{edit: func(r *rig) {
		r.grow = func(n int64) bool {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, n)
			return !refuse.Load()
		}
	}})
	wants := func(when string, want ...int64) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(asked, want) {
			t.Errorf("%s: asked for %v, want %v", when, asked, want)
		}
		asked = nil
	}
	refuse.Store(true)
	if m := r.roundTrip(get); m.Status() != 503 || !strings.HasPrefix(m.Body, "weir: 503 local_memory") {
		t.Errorf("refused: %+v", m)
	}
	r.want(503, message.LocalMemory, false)
	wants("refused", dialGrowth)
	refuse.Store(false)
	for i, want := range [][]int64{{dialGrowth}, nil} {
		if m := r.roundTrip(get); m.Status() != 200 {
			t.Errorf("%d: %+v", i, m)
		}
		r.want(200, message.OK, true)
		wants("served", want...)
	}
	if m := r.roundTrip("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n" + strings.Repeat("b", 40_000)); m.Status() != 200 {
		t.Errorf("content: %+v", m)
	}
	r.want(200, message.OK, true)
	wants("content", pumpGrowth)
}

// TestGiveUpKeeping: content of which a piece could not be kept holds nothing of
// what came before, is not sent again, and neither is taken for whole content; an
// empty last piece costs nothing.
func TestGiveUpKeeping(t *testing.T) {
	piece := make([]byte, 600)
	for _, c := range []struct {
		name   string
		pieces []int
		short  bool // before the last piece
		kept   int
		whole  bool
	}{
		{"room", []int{300, 600}, false, 900, true},
		{"budget", []int{600, 600}, false, 0, false},
		{"budget, then the end", []int{600, 600, 0}, false, 0, false},
		{"short", []int{300, 300}, true, 0, false},
		{"short at the end", []int{300, 0}, true, 300, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var budget netconn.Budget
			budget.SetLimit(1000)
			short := false
			e := &exchange{x: &Exchanger{budget: &budget, short: func() bool { return short }}, rt: &Route{RetryBody: 64 << 10}}
			b := &e.body
			b.keeping = true
			for i, n := range c.pieces {
				short = c.short && i == len(c.pieces)-1
				b.retain(piece[:n], e.mayRetain(n))
			}
			if len(b.keep) != c.kept || cap(b.keep) > 0 != (c.kept > 0) || b.keeping != c.whole || b.lost == c.whole || budget.Used() != int64(c.kept) || b.charged != int64(c.kept) {
				t.Errorf("%d kept in %d, keeping %v, lost %v, charged %d and %d", len(b.keep), cap(b.keep), b.keeping, b.lost, b.charged, budget.Used())
			}
		})
	}
}
