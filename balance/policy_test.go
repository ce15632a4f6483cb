// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/weirlb/weir/balance"
)

func dice(t *testing.T) *rand.Rand {
	const seed = 2001
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// chosen counts who is picked in n picks, with nothing reserved.
func chosen(ms []balance.Member, p balance.Picker, d *rand.Rand, n int) []int {
	counts := make([]int, len(ms))
	for range n {
		b, _ := p.Pick(balance.Request{Rand: d.Uint64()})
		counts[slices.IndexFunc(ms, func(m balance.Member) bool { return m.Backend == b })]++
	}
	return counts
}

func build(p balance.Policy, ms []balance.Member) balance.Picker {
	return p.Build(balance.NewSet(ms, 1, false))
}

func load(b *balance.Backend, n int) {
	for range n {
		b.Reserve()
	}
}

// within fails unless counts follow the probabilities.
func within(t *testing.T, what string, counts []int, want []float64) {
	t.Helper()
	n := 0
	for _, c := range counts {
		n += c
	}
	for i, p := range want {
		if got := float64(counts[i]) / float64(n); math.Abs(got-p) > 1e-4+5*math.Sqrt(p*(1-p)/float64(n)) {
			t.Errorf("%s: member %d was picked with %.4f, want %.4f (%v)", what, i, got, p, counts)
		}
	}
}

func TestNew(t *testing.T) {
	for _, name := range balance.Names() {
		p, err := balance.New(name, balance.Options{})
		if err != nil || p.Name() != name {
			t.Errorf("New(%q) = %v, %v", name, p, err)
		}
	}
	if _, err := balance.New("nobody", balance.Options{}); !errors.Is(err, balance.ErrUnknownPolicy) {
		t.Errorf("an unknown name gives %v", err)
	}
	for _, n := range []int{1, -2} {
		if _, err := balance.New("p2c", balance.Options{Choices: n}); err == nil || errors.Is(err, balance.ErrUnknownPolicy) {
			t.Errorf("%d choices give %v", n, err)
		}
	}
}

// The share that p2c gives each member in any state of load is known exactly:
// the sum over ordered pairs of distinct draws. The oracle lists the pairs.
func TestP2CExact(t *testing.T) {
	d := dice(t)
	for range 12 {
		ms := members(2+d.IntN(5), 5, 1, 2, 1, 7)
		sum := 0.0
		for _, m := range ms {
			load(m.Backend, d.IntN(8))
			sum += float64(m.Weight)
		}
		want := make([]float64, len(ms))
		for i, a := range ms {
			for j, b := range ms {
				if i == j {
					continue
				}
				wi, wj := float64(a.Weight), float64(b.Weight)
				winner := i
				if float64(b.Backend.InFlight())/wj < float64(a.Backend.InFlight())/wi {
					winner = j
				}
				// What is left when the second draw repeats the first five times
				// goes to the heaviest other.
				repeat := math.Pow(wi/sum, 5)
				want[winner] += wi / sum * wj / (sum - wi) * (1 - repeat)
				if j == heaviestBut(ms, i) {
					want[winner] += wi / sum * repeat
				}
			}
		}
		within(t, "p2c", chosen(ms, build(balance.NewP2C(2), ms), d, 40_000), want)
	}
}

func heaviestBut(ms []balance.Member, i int) int {
	best := -1
	for j, m := range ms {
		if j != i && (best < 0 || m.Weight > ms[best].Weight) {
			best = j
		}
	}
	return best
}

// With one member of weight 5, five times as fast, among five of weight 1, the
// heavy one gets half the work, give or take little, at every load.
func TestP2CWeightHoldsAtEveryLoad(t *testing.T) {
	alone(t)
	d := dice(t)
	for _, load := range []float64{0.02, 0.1, 0.3, 0.5, 0.7, 0.9} {
		ms := members(6, 5, 1, 1, 1, 1, 1)
		p := build(balance.NewP2C(2), ms)
		heavy, n := 0, 0
		for n < 80_000 {
			// Arrivals at load x 10, each backend that has work ends one at the rate
			// of its weight: the next event is drawn by rate.
			sum := load * 10
			for _, m := range ms {
				if m.Backend.InFlight() > 0 {
					sum += float64(m.Weight)
				}
			}
			at := d.Float64()*sum - load*10
			if at < 0 {
				b, _ := p.Pick(balance.Request{Rand: d.Uint64()})
				b.Reserve()
				if n++; b == ms[0].Backend {
					heavy++
				}
				continue
			}
			for _, m := range ms {
				if m.Backend.InFlight() == 0 {
					continue
				}
				if at -= float64(m.Weight); at < 0 {
					m.Backend.Release()
					break
				}
			}
		}
		got := float64(heavy) / float64(n)
		t.Logf("load %g: %.3f", load, got)
		if got < 0.485 || got > 0.535 { // 0.49 to 0.53 and three standard deviations
			t.Errorf("at load %g the heavy one gets %.3f, want 0.49 to 0.53", load, got)
		}
	}
}

// With more choices the lightest of more members wins, with all the lightest.
func TestP2CChoices(t *testing.T) {
	alone(t)
	d := dice(t)
	for _, n := range []int{5, 20, 100} {
		ms := members(n)
		for i, m := range ms {
			load(m.Backend, i)
		}
		for _, choices := range []int{2, 3, n} {
			// Member i is the least loaded of c distinct ones with
			// C(n-1-i, c-1) / C(n, c).
			want := make([]float64, n)
			for i := range want {
				want[i] = choose(n-1-i, choices-1) / choose(n, choices)
			}
			within(t, "p2c", chosen(ms, build(balance.NewP2C(choices), ms), d, 20_000), want)
		}
	}
}

func choose(n, k int) float64 {
	c := 1.0
	for i := range k {
		c *= float64(n-i) / float64(k-i)
	}
	return c
}

// Turns go on where they were when the picker is rebuilt, start elsewhere for
// every instance, and an absent member's turns are nobody's gain.
func TestRoundRobinCursor(t *testing.T) {
	ms := members(7)
	policy := balance.NewRoundRobin()
	order := func(p balance.Picker, n int) (ids []int) {
		for range n {
			b, _ := p.Pick(balance.Request{})
			ids = append(ids, slices.IndexFunc(ms, func(m balance.Member) bool { return m.Backend == b }))
		}
		return ids
	}
	p := build(policy, ms)
	seen := order(p, 4)
	seen = append(seen, order(build(policy, ms), 3)...)
	for k := 1; k < len(seen); k++ {
		if seen[k] != (seen[k-1]+1)%7 {
			t.Fatalf("turns across a rebuild: %v", seen)
		}
	}
	starts := map[int]bool{}
	for instance := range uint64(100) {
		starts[order(balance.NewRoundRobin().Build(balance.NewSet(ms, instance, false)), 1)[0]] = true
	}
	if len(starts) != 7 {
		t.Errorf("100 balancers start at %d of 7 members", len(starts))
	}
	ms[2].Backend.SetShare(0)
	ms[3].Backend.SetShare(0)
	counts := chosen(ms, p, dice(t), 5000)
	if want := []int{1000, 1000, 0, 0, 1000, 1000, 1000}; !slices.Equal(counts, want) {
		t.Errorf("with two out of seven: %v", counts)
	}
	for _, m := range ms[:6] {
		m.Backend.SetShare(0)
	}
	if got := order(p, 3); !slices.Equal(got, []int{6, 6, 6}) {
		t.Errorf("the only one left is 6, got %v", got)
	}
}

// A row of absent members longer than anyone has patience for changes nothing.
func TestRoundRobinLongRow(t *testing.T) {
	ms := members(300)
	for _, m := range ms[50:250] {
		m.Backend.SetAdmin(balance.Disabled)
	}
	counts := chosen(ms, build(balance.NewRoundRobin(), ms), dice(t), 100*20)
	for i, c := range counts {
		if want := 20; i >= 50 && i < 250 && c != 0 || (i < 50 || i >= 250) && c != want {
			t.Fatalf("member %d had %d turns, want %d or none: %v", i, c, want, counts)
		}
	}
}

// Under concurrency every turn is given exactly once.
func TestRoundRobinConcurrent(t *testing.T) {
	ms := members(5, 3, 1, 1, 2, 3)
	p := build(balance.NewRoundRobin(), ms)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2500 {
				b, _ := p.Pick(balance.Request{})
				b.Reserve()
			}
		})
	}
	wg.Wait()
	for _, m := range ms {
		if got, want := m.Backend.InFlight(), int64(m.Weight)*1000; got != want {
			t.Errorf("weight %d got %d turns, want %d", m.Weight, got, want)
		}
	}
}

func TestRandomExact(t *testing.T) {
	d := dice(t)
	ms := members(40, 9, 1, 4)
	want, sum := make([]float64, len(ms)), 0.0
	for i, m := range ms {
		load(m.Backend, i) // is nothing to it
		if i%4 == 1 {
			m.Backend.SetShare(0.25)
		}
		want[i] = float64(m.Weight) * m.Backend.Share()
		sum += want[i]
	}
	for i := range want {
		want[i] /= sum
	}
	within(t, "random", chosen(ms, build(balance.NewRandom(), ms), d, 100_000), want)
}

func TestBackend(t *testing.T) {
	b := balance.NewBackend("b:80", "http://b:80")
	if b.ID() != "b:80" || b.Address() != "http://b:80" || b.Hash() != balance.IDOf("b:80") || b.Attachment() != nil {
		t.Error("identity was not kept")
	}
	b.SetAttachment(3)
	if b.Attachment() != 3 {
		t.Error("the attachment was not kept")
	}
	for in, want := range map[float64]float64{2: 1, -1: 0, 0.5: 0.5, math.Inf(1): 1, math.Inf(-1): 0} {
		if b.SetShare(in); b.Share() != want {
			t.Errorf("share %g became %g, want %g", in, b.Share(), want)
		}
	}
	if b.SetShare(math.NaN()); b.Share() != 0 {
		t.Errorf("share NaN became %g", b.Share())
	}
	// The fields that share one word do not disturb each other.
	b.SetShare(0.75)
	b.SetAdmin(balance.Draining)
	b.SetSuspect(true)
	b.SetUnreachable(true)
	b.SetSuspect(false)
	if b.Share() != 0.75 || b.Admin() != balance.Draining || b.Suspect() || !b.Unreachable() {
		t.Error("a field changed with its neighbour")
	}
	if b.SetAdmin(77); b.Admin() != balance.Disabled {
		t.Error("an unknown word of the operator must not admit work")
	}
	b.SetLimit(2)
	for k := range 4 {
		if got, want := b.Reserve(), k < 2; got != want {
			t.Errorf("reservation %d under a limit of 2: %v", k, got)
		}
	}
	if !b.Full() || b.InFlight() != 2 || b.Limit() != 2 {
		t.Error("refused reservations must not count")
	}
	if b.SetLimit(0); b.Full() || b.Limit() != 0 {
		t.Error("0 means no limit")
	}
	for a, want := range map[balance.Admin]string{balance.Enabled: "enabled", balance.Draining: "draining", balance.Disabled: "disabled"} {
		if a.String() != want {
			t.Errorf("%d prints as %s", a, a)
		}
	}
}

func TestTried(t *testing.T) {
	var tried balance.Tried
	for i := range 30 {
		id := balance.BackendID(i + 1)
		if tried.Has(id) {
			t.Errorf("%d is there before it was added", id)
		}
		tried.Add(id)
		if tried.Len() != min(i+1, 8) {
			t.Errorf("after %d: Len %d", i+1, tried.Len())
		}
		for k := range 30 {
			if got, want := tried.Has(balance.BackendID(k+1)), k <= i && k > i-8; got != want {
				t.Errorf("after %d: Has(%d) = %v", i+1, k+1, got)
			}
		}
	}
}
