// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// judging is a pool that says of every retry that it comes too late.
type judging struct {
	*rig
	by chan time.Duration // how much time was left
}

func (j *judging) BeginRequest(now balance.Instant) { j.pool.BeginRequest(now) }
func (j *judging) Pick(l *pool.Lease, r *balance.Request) pool.Refusal {
	return j.pool.Pick(l, r)
}

func (j *judging) Wait(l *pool.Lease, r *balance.Request, by balance.Instant, abort <-chan struct{}) pool.Refusal {
	return j.pool.Wait(l, r, by, abort)
}

func (j *judging) HedgeAfter(*pool.RetryRules) time.Duration { return 0 }
func (j *judging) Hedge(balance.Instant, *pool.RetryRules, *pool.Try, balance.Instant) bool {
	return false
}

func (j *judging) Next(now balance.Instant, _ *pool.RetryRules, _ *pool.Try, f pool.Failure, _ uint64) pool.Decision {
	j.by <- f.By.Sub(now)
	return pool.Decision{Why: pool.TooLate, Declined: true}
}

// TestTooLate: the pool is told when the answer is due; what it then says is too
// late is not tried, the client gets the first attempt's answer, and the record
// says why.
func TestTooLate(t *testing.T) {
	for _, c := range []struct {
		name   string
		first  *weirtest.Backend
		status int
		reason message.Reason
	}{
		{"answer", weirtest.Always(t, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), 503, message.OK},
		{"reset", weirtest.NewBackend(t, func(s *weirtest.Conn) { _ = s.ReadHead(); s.Reset() }), 502, message.ResetBeforeResponse},
	} {
		t.Run(c.name, func(t *testing.T) {
			good := weirtest.Always(t, ok2)
			j := &judging{by: make(chan time.Duration, 1)}
			m := observe.NewMetrics(observe.MetricsOptions{})
			r := newRig(t, []string{c.first.Addr(), good.Addr()}, firstPick, metered(m), rigOptions{edit: func(r *rig) {
				j.rig, r.rt.Pool = r, j
			}})
			if m := r.roundTrip("GET / HTTP/1.1\r\nHost: h\r\nX-Weir-Attempt: 1\r\n\r\n"); m.Status() != c.status || m.Get(retryName) != "no" {
				t.Errorf("answer %q", m.Head())
			}
			rec := r.want(c.status, c.reason, true)
			if rec.Attempts != 1 || rec.Detail != "too little time left for a retry" || len(good.Seen()) != 0 {
				t.Errorf("record %+v, %d requests on the second backend", rec, len(good.Seen()))
			}
			if got := series(m, "weir_retries_total"); len(got) != 1 || !strings.Contains(got[0], `outcome="too_late"`) {
				t.Errorf("counted %q", got)
			}
			if left := <-j.by; left <= 0 || left > r.rt.Timeouts.Request {
				t.Errorf("the pool was told that %v are left", left)
			}
		})
	}
}
