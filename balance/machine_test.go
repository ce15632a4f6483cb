// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/balance/balancetest"
)

// machine is a pool as its owner sees it: backends come and go, change weight,
// share and state, requests are picked, held and done. After every action each
// policy must still agree with the oracle and the books must balance.
type machine struct {
	balancetest.Failer
	choose func(n int) int // chooses a number below n

	policies []balance.Policy
	pickers  []balance.Picker
	twins    []balance.Picker // of keyed policies: over the same members in another order
	set      *balance.Set
	members  []balance.Member
	held     []*balance.Backend
	requests map[*balance.Backend]int64
	panicked bool
	stale    bool
	now      balance.Instant
	next     int
}

func newMachine(t balancetest.Failer, choose func(int) int) *machine {
	m := &machine{Failer: t, choose: choose, requests: map[*balance.Backend]int64{}, stale: true}
	plain := balance.HashConfig{TableSize: 251, VirtualNodes: 7} // built again and again
	bounded := plain
	bounded.BoundedLoad, bounded.Spill = 1.25, 3
	for _, name := range balance.Names() {
		for _, cfg := range []balance.HashConfig{plain, bounded} {
			p, err := balance.New(name, balance.Options{Hash: cfg})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if k, ok := p.(balance.Keyed); ok && k.Keyed() || cfg == plain {
				m.policies = append(m.policies, p)
			}
		}
	}
	m.policies = append(m.policies, balance.NewP2C(3), balance.NewP2C(100))
	return m
}

// actions are drawn with equal chances, so what should happen often is repeated.
var actions = []func(*machine){
	(*machine).add, (*machine).add, (*machine).remove, (*machine).weight, (*machine).panic,
	(*machine).share, (*machine).share, (*machine).ramp, (*machine).admin, (*machine).facts, (*machine).limit,
	(*machine).charge, (*machine).learn, (*machine).wait, (*machine).done, (*machine).done,
	(*machine).pick, (*machine).pick, (*machine).pick, (*machine).pick, (*machine).pick,
}

func (m *machine) act() {
	actions[m.choose(len(actions))](m)
	m.check()
}

func (m *machine) some() *balance.Member {
	if len(m.members) == 0 {
		m.add()
	}
	return &m.members[m.choose(len(m.members))]
}

func (m *machine) add() {
	weights := []uint32{1, 1, 1, 2, 5, 100, 1<<32 - 1, 0}
	for range []int{1, 1, 2, 3, 40}[m.choose(5)] {
		if len(m.members) == 300 {
			return
		}
		b := balance.NewBackend(fmt.Sprintf("b%d", m.next), "")
		m.next++
		m.members = append(m.members, balance.Member{Backend: b, Weight: weights[m.choose(len(weights))]})
	}
	m.stale = true
}

func (m *machine) remove() {
	gone := m.some().Backend
	m.members = slices.DeleteFunc(slices.Clone(m.members), func(o balance.Member) bool { return o.Backend == gone })
	m.stale = true
}

func (m *machine) weight() { m.some().Weight, m.stale = uint32(m.choose(20)), true }
func (m *machine) panic()  { m.panicked, m.stale = !m.panicked, true }
func (m *machine) share() {
	m.some().Backend.SetShare([]float64{0, 0.1, 0.5, 0.999, 1, 1}[m.choose(6)])
}
func (m *machine) ramp() {
	b := m.some().Backend
	if b.SetRamp(nil); m.choose(3) > 0 {
		b.SetRamp(&balance.Ramp{Start: m.now, Window: time.Second, From: float64(m.choose(3)) / 10})
	}
}
func (m *machine) admin() { m.some().Backend.SetAdmin(balance.Admin(max(0, m.choose(5)-2))) }
func (m *machine) limit() { m.some().Backend.SetLimit(int64(m.choose(4))) }
func (m *machine) wait()  { m.now = m.now.Add(time.Duration(m.choose(400)) * time.Millisecond) }

func (m *machine) facts() {
	b := m.some().Backend
	b.SetSuspect(m.choose(2) == 1)
	b.SetUnreachable(m.choose(2) == 1)
}

func (m *machine) charge() {
	m.some().Backend.Charge(m.now, 100*time.Millisecond, time.Duration(m.choose(120))*time.Millisecond)
}

func (m *machine) learn() {
	o := balance.Observation{Now: m.now, FirstByte: time.Millisecond << m.choose(20), Failed: m.choose(4) == 0}
	for _, p := range m.policies {
		if l, ok := p.(balance.Learner); ok {
			l.Learn(m.some().Backend, o)
		}
	}
}

func (m *machine) pick() {
	if m.stale {
		m.set = balance.NewSet(m.members, uint64(m.choose(8)), m.panicked)
		m.build()
	}
	r := balance.Request{Rand: uint64(balance.IDOf(fmt.Sprint(m.choose(1 << 16)))), Now: m.now}
	// Keys are few, so that some are hot; some requests have none.
	r.Key = uint64(m.choose(20))
	r.HasKey = r.Key < 18
	if len(m.members) > 0 {
		if m.choose(4) == 0 {
			r.Prefer = m.some().Backend.Hash()
		}
		for range max(0, m.choose(8)-4) {
			r.Tried.Add(m.some().Backend.Hash())
		}
	}
	for i, p := range m.pickers {
		m.agree(p, m.twins[i], r)
		m.attempt(p, r)
	}
}

// build builds everyone's picker anew.
func (m *machine) build() {
	m.pickers, m.twins, m.stale = m.pickers[:0], m.twins[:0], false
	reversed := slices.Clone(m.members)
	slices.Reverse(reversed)
	for _, p := range m.policies {
		m.pickers = append(m.pickers, p.Build(m.set))
		var twin balance.Picker
		if _, keyed := p.(balance.Keyed); keyed {
			twin = p.Build(balance.NewSet(reversed, m.set.Instance()+1, m.panicked))
		}
		m.twins = append(m.twins, twin)
	}
}

// agree holds two balancers that list the same members in another order to the
// same answer, whatever state those are in.
func (m *machine) agree(p, twin balance.Picker, r balance.Request) {
	if twin == nil || !r.HasKey {
		return
	}
	got, _ := p.Pick(r)
	r.Rand++
	if other, _ := twin.Pick(r); other != got {
		m.Fatalf("key %d: one balancer chose %v, another %v", r.Key, got, other)
	}
}

// attempt does what the pool does: a refused reservation is a backend tried.
func (m *machine) attempt(p balance.Picker, r balance.Request) {
	for range 3 {
		b, ok := balancetest.Check(m, m.set, p, r)
		if !ok {
			return
		}
		if full := b.Full(); full == b.Reserve() {
			m.Fatalf("%s: Full was %v, and so was Reserve", b.ID(), full)
		} else if !full {
			m.requests[b]++
			m.held = append(m.held, b)
			return
		}
		r.Tried.Add(b.Hash())
		r.Rand = r.Rand*6364136223846793005 + 1
	}
}

func (m *machine) done() {
	if len(m.held) == 0 {
		return
	}
	i := m.choose(len(m.held))
	b := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	m.requests[b]--
	b.Release()
}

// check compares the books of the backends with the machine's own.
func (m *machine) check() {
	for b, n := range m.requests {
		if b.InFlight() != n {
			m.Fatalf("%s counts %d in flight, there are %d", b.ID(), b.InFlight(), n)
		}
		if load := b.Load(m.now); load < float64(n) || load > float64(n)+16384 {
			m.Fatalf("%s has load %g with %d in flight", b.ID(), load, n)
		}
	}
}

func (m *machine) end() {
	for len(m.held) > 0 {
		m.done()
	}
	for b := range m.requests {
		if b.InFlight() != 0 {
			m.Fatalf("%s has %d in flight at the end", b.ID(), b.InFlight())
		}
	}
}

// A failure prints its seed, which -rapid.seed repeats, and is made small.
func TestMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") })
		for range rapid.IntRange(1, 60).Draw(t, "actions") {
			m.act()
		}
		m.choose = func(int) int { return 0 }
		m.end()
	})
}

// FuzzMachine is the same with the fuzzer's bytes for choices: two for a choice
// among more than 256, else one.
func FuzzMachine(f *testing.F) {
	f.Fuzz(func(t *testing.T, choices []byte) {
		choices = choices[:min(len(choices), 2048)]
		m := newMachine(t, func(n int) int {
			c := 0
			for ; n > 1 && len(choices) > 0; n >>= 8 {
				c = c<<8 | int(choices[0])
				choices = choices[1:]
			}
			return c
		})
		next := m.choose
		m.choose = func(n int) int { return next(n) % n }
		for len(choices) > 0 {
			m.act()
		}
		m.end()
	})
}
