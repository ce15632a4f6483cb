// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/internal/message"
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
