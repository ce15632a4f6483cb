// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// pupil is p2c that writes down what it is taught.
type pupil struct {
	balance.Policy
	seen []balance.Observation
}

func (*pupil) UsesTotal() bool { return true }

func (p *pupil) Learn(_ *balance.Backend, o balance.Observation) { p.seen = append(p.seen, o) }

// TestLearnersAreTaught goes through every way an attempt can end.
func TestLearnersAreTaught(t *testing.T) {
	policy := &pupil{Policy: balance.NewP2C(2)}
	p := benchPool(0, func(c *Config) { c.Policy = policy })
	defer p.Close()
	p.Update(benchSpecs(2))
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		o      Outcome
		taught bool
		want   balance.Observation
	}{
		{"an answer", Outcome{Status: 200, FirstByte: 3 * ms, Total: 9 * ms}, true, balance.Observation{FirstByte: 3 * ms}},
		{"an answer without a first byte's time", Outcome{Status: 404, Total: 9 * ms}, true, balance.Observation{FirstByte: 9 * ms}},
		{"500", Outcome{Status: 500, FirstByte: ms}, true, balance.Observation{FirstByte: ms, Failed: true}},
		{"503", Outcome{Status: 503, FirstByte: ms}, true, balance.Observation{FirstByte: ms, Failed: true}},
		{"503 with Retry-After", Outcome{Status: 503, RetryAfter: true, FirstByte: ms}, true, balance.Observation{FirstByte: ms}},
		{"a tunnel", Outcome{Status: 101, Tunnel: true, FirstByte: ms, Total: time.Hour}, false, balance.Observation{}},
		{"refused", Outcome{Kind: ConnectRefused, Total: ms}, true, balance.Observation{FirstByte: ms, Failed: true}},
		{"a timeout", Outcome{Kind: ResponseTimeout, Sent: true, Total: 30 * ms}, true, balance.Observation{FirstByte: 30 * ms, Failed: true}},
		{"a reset", Outcome{Kind: Reset, Sent: true, Total: ms}, true, balance.Observation{FirstByte: ms, Failed: true}},
		{"a connection that died of age", Outcome{Kind: Reset, Sent: true, Stale: true, Total: ms}, false, balance.Observation{}},
		{"a reset before anything was sent", Outcome{Kind: Reset, Total: ms}, false, balance.Observation{}},
		{"a tunnel that broke", Outcome{Kind: Reset, Sent: true, Tunnel: true, Total: time.Hour}, false, balance.Observation{}},
		{"the client's fault", Outcome{Kind: ClientFault, Sent: true, Total: ms}, false, balance.Observation{}},
		{"weir's fault", Outcome{Kind: LocalFault, Total: ms}, false, balance.Observation{}},
		{"canceled", Outcome{Kind: Canceled, Sent: true, Total: ms}, false, balance.Observation{}},
	} {
		policy.seen = nil
		var l Lease
		if got := p.Pick(&l, &balance.Request{}); got != Granted {
			t.Fatalf("%s: %v", c.name, got)
		}
		if b := l.Backend(); b.Total() != &p.total || p.total.InFlight() != 1 {
			t.Fatalf("the pool's total is %d, the backend's own %p of %p", p.total.InFlight(), b.Total(), &p.total)
		}
		c.o.Now, c.want.Now = 7, 7
		l.Done(c.o)
		if (len(policy.seen) == 1) != c.taught || c.taught && policy.seen[0] != c.want {
			t.Errorf("%s: taught %+v, want %v %+v", c.name, policy.seen, c.taught, c.want)
		}
	}
	if n := p.total.InFlight(); n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
	if plain := benchPool(1, nil); plain.core.order[0].b.Total() != nil {
		t.Error("a policy that does not ask got a total")
	}
}

// TestTickets: a place in the queue without a goroutine.
func TestTickets(t *testing.T) {
	p := benchPool(0, func(c *Config) { c.Limits = Limits{BackendRequests: 1, Queue: 2} })
	defer p.Close()
	p.Update(benchSpecs(1))
	var held, second, third Lease
	if ticket, got := p.Enqueue(&held, &balance.Request{}); ticket != nil || got != Granted || !held.Held() {
		t.Fatalf("with room: %v %v", ticket, got)
	}
	a, got := p.Enqueue(&second, &balance.Request{})
	b, also := p.Enqueue(&third, &balance.Request{})
	if got != Full || also != Full {
		t.Fatal(got, also)
	}
	var late Lease
	if ticket, got := p.Enqueue(&late, &balance.Request{}); ticket != nil || got != QueueFull {
		t.Errorf("a third one: %v", got)
	}
	if _, ok := a.Poll(); ok {
		t.Error("answered too early")
	}
	held.Done(Outcome{Status: 200})
	for range 2 {
		if got, ok := a.Poll(); !ok || got != Granted || !second.Held() {
			t.Errorf("the oldest: %v %v", got, ok)
		}
	}
	if p.Abandon(a) {
		t.Error("a granted ticket was abandoned")
	}
	if !p.Abandon(b) || p.Abandon(b) {
		t.Error("a waiting ticket can be abandoned once")
	}
	second.Done(Outcome{Status: 200})
	if third.Held() {
		t.Error("an abandoned request got a slot")
	}
}
