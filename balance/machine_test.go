// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/balance/balancetest"
)

// machine is a pool as its owner sees it: backends come and go, change weight,
// share and state, requests are picked, held and done. After every action each
// policy must still agree with the oracle and the books must balance.
//
// A failure prints its seed; -rapid.seed repeats it.
type machine struct {
	policies []balance.Policy
	pickers  []balance.Picker
	set      *balance.Set
	members  []balance.Member
	held     []*balance.Backend
	requests map[*balance.Backend]int64
	panicked bool
	stale    bool
	now      balance.Instant
	next     int
}

func newMachine() *machine {
	m := &machine{requests: map[*balance.Backend]int64{}, stale: true}
	eachPolicy(func(_ string, build func() balance.Policy) { m.policies = append(m.policies, build()) })
	m.policies = append(m.policies, balance.NewP2C(3), balance.NewP2C(100))
	return m
}

func (m *machine) member(t *rapid.T) *balance.Member {
	if len(m.members) == 0 {
		t.Skip("nobody there")
	}
	return &m.members[rapid.IntRange(0, len(m.members)-1).Draw(t, "member")]
}

func (m *machine) Add(t *rapid.T) {
	for range rapid.SampledFrom([]int{1, 1, 2, 40}).Draw(t, "how many") {
		b := balance.NewBackend(fmt.Sprintf("b%d", m.next), "")
		m.next++
		w := rapid.SampledFrom([]uint32{1, 1, 1, 2, 5, 100, 1<<32 - 1, 0}).Draw(t, "weight")
		m.members = append(m.members, balance.Member{Backend: b, Weight: w})
	}
	m.stale = true
}

func (m *machine) Remove(t *rapid.T) {
	gone := m.member(t).Backend
	for i := range m.members {
		if m.members[i].Backend == gone {
			m.members = append(m.members[:i:i], m.members[i+1:]...)
			break
		}
	}
	m.stale = true
}

func (m *machine) Weight(t *rapid.T) {
	m.member(t).Weight = rapid.Uint32Range(0, 20).Draw(t, "weight")
	m.stale = true
}

func (m *machine) Panic(*rapid.T) { m.panicked, m.stale = !m.panicked, true }

func (m *machine) Share(t *rapid.T) {
	m.member(t).Backend.SetShare(rapid.SampledFrom([]float64{0, 0.1, 0.5, 0.999, 1, 1}).Draw(t, "share"))
}

func (m *machine) Admin(t *rapid.T) {
	m.member(t).Backend.SetAdmin(rapid.SampledFrom([]balance.Admin{balance.Enabled, balance.Draining, balance.Disabled}).Draw(t, "admin"))
}

func (m *machine) Facts(t *rapid.T) {
	b := m.member(t).Backend
	b.SetSuspect(rapid.Bool().Draw(t, "suspect"))
	b.SetUnreachable(rapid.Bool().Draw(t, "unreachable"))
}

func (m *machine) Limit(t *rapid.T) {
	m.member(t).Backend.SetLimit(rapid.Int64Range(0, 3).Draw(t, "limit"))
}

func (m *machine) Charge(t *rapid.T) {
	m.member(t).Backend.Charge(m.now, 100*time.Millisecond, time.Duration(rapid.IntRange(0, 120).Draw(t, "ms"))*time.Millisecond)
}

func (m *machine) Wait(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "ms")) * time.Millisecond)
}

func (m *machine) Pick(t *rapid.T) {
	if m.stale {
		m.set = balance.NewSet(m.members, rapid.Uint64().Draw(t, "instance"), m.panicked)
		m.pickers = m.pickers[:0]
		for _, p := range m.policies {
			m.pickers = append(m.pickers, p.Build(m.set))
		}
		m.stale = false
	}
	r := balance.Request{Rand: rapid.Uint64().Draw(t, "rand"), Now: m.now}
	if len(m.members) > 0 && rapid.IntRange(0, 3).Draw(t, "sticky") == 0 {
		r.Prefer = m.member(t).Backend.Hash()
	}
	for range rapid.IntRange(0, 3).Draw(t, "tries before") {
		if len(m.members) > 0 {
			r.Tried.Add(m.member(t).Backend.Hash())
		}
	}
	// As the pool does it: a refused reservation is a backend tried.
	for _, p := range m.pickers {
		q := r
		for range 3 {
			b, ok := balancetest.Check(t, m.set, p, q)
			if !ok {
				break
			}
			if b.Full() == b.Reserve() {
				t.Fatalf("%s: Full and Reserve disagree", b.ID())
			}
			if b.InFlight() > m.requests[b] {
				m.requests[b]++
				m.held = append(m.held, b)
				break
			}
			q.Tried.Add(b.Hash())
			q.Rand = q.Rand*6364136223846793005 + 1
		}
	}
}

func (m *machine) Done(t *rapid.T) {
	if len(m.held) == 0 {
		t.Skip("nothing in flight")
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "request")
	b := m.held[i]
	m.held = append(m.held[:i:i], m.held[i+1:]...)
	m.requests[b]--
	b.Release()
}

// Check is run after every action.
func (m *machine) Check(t *rapid.T) {
	for b, n := range m.requests {
		if b.InFlight() != n {
			t.Fatalf("%s counts %d in flight, there are %d", b.ID(), b.InFlight(), n)
		}
		if load := b.Load(m.now); load < float64(n) || load > float64(n)+16384 {
			t.Fatalf("%s has load %g with %d in flight", b.ID(), load, n)
		}
	}
}

func run(t *rapid.T) {
	m := newMachine()
	m.Add(t)
	t.Repeat(rapid.StateMachineActions(m))
	for _, b := range m.held {
		m.requests[b]--
		b.Release()
	}
	m.Check(t)
	for b := range m.requests {
		if b.InFlight() != 0 {
			t.Fatalf("%s has %d in flight at the end", b.ID(), b.InFlight())
		}
	}
}

func TestMachine(t *testing.T) { rapid.Check(t, run) }

// FuzzMachine is TestMachine driven by the fuzzer's bytes.
func FuzzMachine(f *testing.F) { f.Fuzz(rapid.MakeFuzz(run)) }
