// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestWorkQueues: two slots, 10 ms each; what comes while both are taken waits
// in order of arrival.
func TestWorkQueues(t *testing.T) {
	begin := time.Unix(1, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	w := newWork(10*time.Millisecond, SpreadFixed, 2, 1)
	for i, c := range []struct{ arrives, due int }{
		{0, 10}, {1, 11}, // both slots
		{2, 20}, {3, 21}, {4, 30}, // the first slot, the second, the first again
		{40, 50}, {40, 50}, {40, 60}, // after an idle time both are free
	} {
		if due := w.take(at(c.arrives)); due != at(c.due) {
			t.Errorf("request %d, which arrives at %d ms, is due at %s, want %d ms", i, c.arrives, due.Sub(begin), c.due)
		}
	}
	w = newWork(10*time.Millisecond, SpreadFixed, 0, 1)
	for range 100 {
		if due := w.take(at(0)); due != at(10) {
			t.Fatalf("without a limit: due at %s", due.Sub(begin))
		}
	}
}

// TestWorkAgreesWithTheory: the mean time in an M/M/1 queue at load 0.5 is twice
// the service time, and in M/M/4 at 0.75 (Erlang C: 0.509 wait) 1.509 times. The
// standard errors of 200,000 requests are about 1 %; the tolerance is 4 %.
func TestWorkAgreesWithTheory(t *testing.T) {
	for _, c := range []struct {
		slots      int
		load, want float64
	}{{1, 0.5, 2}, {4, 0.75, 1.509}} {
		const n, service = 200_000, 10 * time.Millisecond
		w := newWork(service, SpreadExponential, c.slots, 7)
		dice := rand.New(rand.NewPCG(1, 2))
		now, sum := time.Unix(0, 0), 0.0
		for range n {
			now = now.Add(time.Duration(dice.ExpFloat64() * float64(service) / c.load / float64(c.slots)))
			sum += float64(w.take(now).Sub(now))
		}
		if got := sum / n / float64(service); math.Abs(got-c.want) > 0.04*c.want {
			t.Errorf("%d slots at load %v: %v service times in the system, want %v", c.slots, c.load, got, c.want)
		}
	}
}

// TestWorkRepeats: a seed repeats the draws, no seed does not.
func TestWorkRepeats(t *testing.T) {
	draw := func(seed uint64) (out []time.Duration) {
		w, now := newWork(time.Second, SpreadExponential, 0, seed), time.Unix(0, 0)
		for range 10 {
			out = append(out, w.take(now).Sub(now))
		}
		return out
	}
	if !slices.Equal(draw(5), draw(5)) || slices.Equal(draw(5), draw(6)) || slices.Equal(draw(0), draw(0)) {
		t.Error("5 twice is the same, 5 and 6 or nothing twice are not")
	}
}

// TestBackendWorksOneByOne: with one slot four requests at once take four times
// as long as one, and are all answered.
func TestBackendWorksOneByOne(t *testing.T) {
	b, c, _ := start(t, Options{Delay: 30 * time.Millisecond, Concurrency: 1})
	begin := time.Now()
	done := make(chan int, 4)
	for range 4 {
		go func() {
			res, err := c.Get("http://" + b.Addr())
			if err != nil {
				done <- 0
				return
			}
			_ = res.Body.Close()
			done <- res.StatusCode
		}()
	}
	for range 4 {
		if status := <-done; status != 200 {
			t.Errorf("status %d", status)
		}
	}
	if took := time.Since(begin); took < 120*time.Millisecond {
		t.Errorf("4 requests of 30ms one by one within %s", took)
	}
}
