// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// asking is a pool that notes how much requests matter.
type asking struct {
	*rig
	asked []balance.Priority
}

func (a *asking) BeginRequest(now balance.Instant) { a.pool.BeginRequest(now) }
func (a *asking) Pick(l *pool.Lease, r *balance.Request) pool.Refusal {
	a.asked = append(a.asked, r.Priority)
	return a.pool.Pick(l, r)
}

func (a *asking) Wait(l *pool.Lease, r *balance.Request, by balance.Instant, abort <-chan struct{}) pool.Refusal {
	return a.pool.Wait(l, r, by, abort)
}

func (a *asking) HedgeAfter(rr *pool.RetryRules) time.Duration { return a.pool.HedgeAfter(rr) }
func (a *asking) Hedge(now balance.Instant, rr *pool.RetryRules, t *pool.Try, by balance.Instant) bool {
	return a.pool.Hedge(now, rr, t, by)
}

func (a *asking) Next(now balance.Instant, rr *pool.RetryRules, t *pool.Try, f pool.Failure, rnd uint64) pool.Decision {
	return a.pool.Next(now, rr, t, f, rnd)
}

// TestPriority: how much a request matters is the word of a trusted weir in front,
// else the route's; backends that are weirs are told, and nobody else is who did
// not hear it from a trusted one.
func TestPriority(t *testing.T) {
	const high, normal, low = balance.HighPriority, balance.NormalPriority, balance.LowPriority
	for _, c := range []struct {
		name        string
		route       balance.Priority
		weir, trust bool
		said        string // X-Weir-Priority of the client
		want        balance.Priority
		passed      []string // to the backend
	}{
		{name: "by default it is normal, and nothing is said", weir: true, want: normal},
		{name: "the route's", route: high, want: high},
		{name: "the route's, said to weirs", route: low, weir: true, want: low, passed: []string{"low"}},
		{name: "a stranger's word counts for nothing", said: "high", weir: true, want: normal},
		{name: "nor against the route's", route: low, said: "high", weir: true, want: low, passed: []string{"low"}},
		{name: "a trusted weir's is before the route's", route: low, weir: true, trust: true, said: "high", want: high, passed: []string{"high"}},
		{name: "normal is a word, too", route: high, weir: true, trust: true, said: "normal", want: normal, passed: []string{"normal"}},
		{name: "in any case", weir: true, trust: true, said: "LOW", want: low, passed: []string{"LOW"}},
		{name: "another word is none", route: high, weir: true, trust: true, said: "urgent", want: high, passed: []string{"urgent", "high"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			good := weirtest.Always(t, ok2)
			p := &asking{}
			r := newRig(t, []string{good.Addr()}, edit(func(r *rig) {
				p.rig, r.rt.Pool = r, p
				r.rt.Priority, r.rt.Weir = c.route, c.weir
				if c.trust {
					trustsWeirs(r)
				}
			}))
			request := get
			if c.said != "" {
				request = "GET / HTTP/1.1\r\nHost: h\r\nX-Weir-Priority: " + c.said + "\r\n\r\n"
			}
			if m := r.roundTrip(request); m.Status() != 200 {
				t.Errorf("answer %+v", m)
			}
			r.want(200, message.OK, true)
			if !slices.Equal(p.asked, []balance.Priority{c.want}) {
				t.Errorf("the pool was asked at %v, want %v", p.asked, c.want)
			}
			if got := good.Seen()[0].Values(priorityName); !slices.Equal(got, c.passed) {
				t.Errorf("the backend hears %q, want %q", got, c.passed)
			}
		})
	}
}

// TestPriorityDecides: at an adaptive limit, the route that matters less is refused
// and the one that matters more finds room.
func TestPriorityDecides(t *testing.T) {
	slow := newMute(t)
	for _, c := range []struct {
		p      balance.Priority
		status int
	}{{balance.LowPriority, 503}, {balance.NormalPriority, 503}, {balance.HighPriority, 200}} {
		r := newRig(t, []string{slow.Addr()}, rigOptions{
			pool: func(c *pool.Config) { c.Limits.Adaptive = pool.Adaptive{Enabled: true, Floor: 10, Ceiling: 10} },
			edit: func(r *rig) { r.rt.Priority = c.p },
		})
		leases := make([]pool.Lease, 9)
		for i := range leases {
			if got := r.pool.Pick(&leases[i], &balance.Request{Priority: balance.HighPriority}); got != pool.Granted {
				t.Fatal(got)
			}
		}
		slow.answer <- ok2
		m := r.roundTrip(get)
		if m.Status() != c.status || c.status == 503 && m.Get("Retry-After") == "" {
			t.Errorf("%v: answer %q", c.p, m.Head())
		}
		if c.status == 503 {
			r.want(503, message.Shed, false)
			<-slow.answer
		}
		for i := range leases {
			leases[i].Return(0)
		}
	}
}
