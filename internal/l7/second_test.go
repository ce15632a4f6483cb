// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// onlyOnce is a pool in which nobody is left for a second attempt.
type onlyOnce struct{ r *rig }

func (p onlyOnce) BeginRequest(now balance.Instant) { p.r.pool.BeginRequest(now) }

func (p onlyOnce) Pick(l *pool.Lease, q *balance.Request) pool.Refusal {
	if q.Tried.Len() > 0 {
		return pool.AllBroken
	}
	return p.r.pool.Pick(l, q)
}

func (p onlyOnce) Wait(l *pool.Lease, q *balance.Request, by balance.Instant, abort <-chan struct{}) pool.Refusal {
	return p.r.pool.Wait(l, q, by, abort)
}

func (p onlyOnce) Next(now balance.Instant, rr *pool.RetryRules, t *pool.Try, f pool.Failure, rnd uint64) pool.Decision {
	return p.r.pool.Next(now, rr, t, f, rnd)
}

func (p onlyOnce) HedgeAfter(rr *pool.RetryRules) time.Duration { return p.r.pool.HedgeAfter(rr) }

func (p onlyOnce) Hedge(now balance.Instant, rr *pool.RetryRules, t *pool.Try, by balance.Instant) bool {
	return p.r.pool.Hedge(now, rr, t, by)
}

var nobodyElse = rigOptions{edit: func(r *rig) { r.rt.Pool = onlyOnce{r} }}

// metered gives the rig's route metrics.
func metered(m *observe.Metrics) rigOptions {
	return rigOptions{edit: func(r *rig) { r.rt.Series, r.rt.PoolSeries = m.Route("web", "r", "app"), m.Pool("app") }}
}

// series returns the lines of a family that are not zero.
func series(m *observe.Metrics, family string) []string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	var out []string
	for line := range strings.Lines(w.Body.String()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, family+"{") && !strings.HasSuffix(line, " 0") {
			out = append(out, strings.TrimPrefix(line, family))
		}
	}
	slices.Sort(out)
	return out
}

// TestAnswerInHand checks that an answer which is to be retried is given up only
// for another backend: when there is none, it is passed on as it came.
func TestAnswerInHand(t *testing.T) {
	var executed atomic.Int64
	t.Run("nobody left", func(t *testing.T) {
		bad := killer(t, answer503, &executed, nil)
		r := newRig(t, []string{bad.Addr()}, firstPick, nobodyElse)
		if m := r.roundTrip(get); m.Status() != 503 || m.Body != "busy" {
			t.Errorf("answer %+v", m)
		}
		if rec := r.want(503, message.OK, true); rec.Attempts != 1 || rec.Retries != 0 {
			t.Errorf("record %+v", rec)
		}
	})
	for n := 1; n <= 2; n++ {
		t.Run(fmt.Sprintf("all %d answer so", n), func(t *testing.T) {
			var executed atomic.Int64
			m := observe.NewMetrics(observe.MetricsOptions{})
			addrs := []string{killer(t, answer503, &executed, nil).Addr(), killer(t, answer503, &executed, nil).Addr()}
			r := newRig(t, addrs[:n], firstPick, metered(m), edit(func(r *rig) { r.rt.Retry.Attempts = 5 }))
			if m := r.roundTrip(get); m.Status() != 503 || m.Body != "busy" {
				t.Errorf("answer %+v", m)
			}
			if rec := r.want(503, message.OK, true); rec.Attempts != n || rec.Retries != n-1 || executed.Load() != int64(n) {
				t.Errorf("executed %d times, record %+v", executed.Load(), rec)
			}
			// What the second one says is passed on, but the retry did no good.
			want := []string{`{cause="503",outcome="failure",pool="app"} 1`}[:n-1]
			if got := series(m, "weir_retries_total"); !slices.Equal(got, want) {
				t.Errorf("counted %q, want %q", got, want)
			}
		})
	}
	t.Run("the others are full", func(t *testing.T) {
		bad, good := killer(t, answer503, &executed, nil), weirtest.Always(t, ok2)
		r := newRig(t, []string{bad.Addr(), good.Addr()}, firstPick, fullPool(4, 0))
		var l pool.Lease
		q := balance.Request{}
		q.Tried.Add(balance.IDOf("b0"))
		if got := r.pool.Pick(&l, &q); got != pool.Granted || l.Backend().ID() != "b1" {
			t.Fatal(got)
		}
		if m := r.roundTrip(get); m.Status() != 503 || m.Body != "busy" {
			t.Errorf("answer %+v", m)
		}
		l.Done(pool.Outcome{Kind: pool.Canceled})
		r.want(503, message.OK, true)
		if m := r.roundTrip(get); m.Status() != 200 {
			t.Errorf("with room: answer %+v", m)
		}
		if rec := r.want(200, message.OK, true); rec.Attempts != 2 || rec.Retries != 1 || rec.Backend != "b1" ||
			len(rec.Tried) != 1 || rec.Tried[0].Backend != "b0" || rec.Tried[0].Status != 503 {
			t.Errorf("record %+v", rec)
		}
	})
}

// TestEveryConnectionCounts checks that weir_upstream_connections_total knows the
// connections of all attempts, and none of those that had none.
func TestEveryConnectionCounts(t *testing.T) {
	var executed atomic.Int64
	for name, c := range map[string]struct {
		first, second func() string
		status        int
		want          []string
	}{
		"refused, then answered": {
			first: func() string { return weirtest.Dead(t) }, second: func() string { return weirtest.Always(t, ok2).Addr() },
			status: 200, want: []string{`{backend="b1",pool="app",reused="false"} 1`},
		},
		"reset, then answered": {
			first: func() string { return killer(t, killAfterHead, &executed, nil).Addr() }, second: func() string { return weirtest.Always(t, ok2).Addr() },
			status: 200, want: []string{`{backend="b0",pool="app",reused="false"} 1`, `{backend="b1",pool="app",reused="false"} 1`},
		},
		"reset, then refused": {
			first: func() string { return killer(t, killAfterHead, &executed, nil).Addr() }, second: func() string { return weirtest.Dead(t) },
			status: 502, want: []string{`{backend="b0",pool="app",reused="false"} 1`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := observe.NewMetrics(observe.MetricsOptions{})
			r := newRig(t, []string{c.first(), c.second()}, firstPick, metered(m))
			if a := r.roundTrip(get); a.Status() != c.status {
				t.Errorf("answer %+v", a)
			}
			<-r.done
			if got := series(m, "weir_upstream_connections_total"); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	for how, cause := range map[kill]string{answer503: "503", killAfterHead: "reset_before_response"} {
		t.Run("retried for "+cause, func(t *testing.T) {
			m := observe.NewMetrics(observe.MetricsOptions{})
			r := newRig(t, []string{killer(t, how, &executed, nil).Addr(), weirtest.Always(t, ok2).Addr()}, firstPick, metered(m))
			r.roundTrip(get)
			<-r.done
			want := fmt.Sprintf(`{cause=%q,outcome="success",pool="app"} 1`, cause)
			if got := series(m, "weir_retries_total"); !slices.Equal(got, []string{want}) {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
	t.Run("reset, then nobody", func(t *testing.T) {
		m := observe.NewMetrics(observe.MetricsOptions{})
		r := newRig(t, []string{killer(t, killAfterHead, &executed, nil).Addr()}, firstPick, nobodyElse, metered(m))
		r.roundTrip(get)
		<-r.done
		if got := series(m, "weir_upstream_connections_total"); !slices.Equal(got, []string{`{backend="b0",pool="app",reused="false"} 1`}) {
			t.Errorf("%q", got)
		}
		if got := series(m, "weir_retries_total"); len(got) != 0 {
			t.Errorf("a retry that was granted and found nobody: %q", got)
		}
		if rec := r.records[0]; rec.Attempts != 1 || rec.Retries != 0 || len(rec.Tried) != 0 || rec.Backend != "b0" {
			t.Errorf("record %+v", rec)
		}
	})
}
