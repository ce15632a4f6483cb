// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// performance is an experiment on its way in reality.
type performance struct {
	*experiment
	t        *testing.T
	seed     uint64
	addrs    []string
	backends []*process
	w        *weir
	client   *http.Client
	outcome  outcome
	overhead overhead
	late     []time.Duration // by how much requests were sent after their time
}

// unloaded is what the request that waits for nothing takes at its backend.
const unloaded = 20 * time.Millisecond

// stage starts the processes of an experiment and waits until weir serves.
func (e *experiment) stage(t *testing.T, seed uint64) *performance {
	t.Helper()
	r := &performance{experiment: e, t: t, seed: seed, outcome: outcome{came: make([]time.Duration, len(e.speeds))}}
	for i := range e.speeds {
		r.addrs = append(r.addrs, freeAddr(t))
		r.backends = append(r.backends, r.serve(i))
	}
	alone := freeAddr(t)
	startBackend(t, alone, "--delay", unloaded.String())
	r.w = startRun(t, e.text(r.addrs, alone))
	tr := &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	r.client = &http.Client{Transport: tr, Timeout: time.Minute}
	eventually(t, 10*time.Second, "all backends are healthy", func() bool {
		for _, b := range r.w.backends(t, "app") {
			if b.Health != "healthy" {
				return false
			}
		}
		return true
	})
	for range 20 { // what happens once is no overhead: connections, first pages
		r.ask("/unloaded", 0)
	}
	return r
}

// serve starts backend i.
func (r *performance) serve(i int) *process {
	drain := "0s"
	if r.deploy != nil {
		drain = r.deploy.drain.String()
	}
	return startBackend(r.t, r.addrs[i], "--delay", time.Duration(float64(r.service)/r.speeds[i]).String(), "--spread", "exponential",
		"--concurrency", strconv.Itoa(r.slots), "--seed", fmt.Sprint(r.seed*1000+uint64(i)+1), "--drain", drain)
}

// ask sends one request and says which backend answered, -1 for none.
func (r *performance) ask(path string, key int) (took time.Duration, backend int) {
	req, err := http.NewRequest(http.MethodGet, r.w.url(path), nil)
	if err != nil {
		return 0, -1
	}
	req.Header.Set("X-Key", strconv.Itoa(key))
	begin := time.Now()
	resp, err := r.client.Do(req)
	if err != nil {
		return time.Since(begin), -1
	}
	text, err := io.ReadAll(resp.Body)
	took = time.Since(begin)
	resp.Body.Close()
	if err != nil || resp.StatusCode != 200 {
		return took, -1
	}
	f := strings.Fields(string(text)) // hello from NAME to CLIENT
	return took, slices.Index(r.addrs, f[2])
}

// poisson sends requests at random until the time is over, none waiting for
// another, and returns when all are answered.
func poisson(begin time.Time, lasts time.Duration, rate float64, dice *rand.Rand, send func(at time.Duration)) {
	var wg sync.WaitGroup
	for at := time.Duration(0); ; {
		at += time.Duration(dice.ExpFloat64() / rate * float64(time.Second))
		if at >= lasts {
			break
		}
		time.Sleep(time.Until(begin.Add(at)))
		wg.Go(func() { send(at) })
	}
	wg.Wait()
}

// perform lets the clients of all come, and the deploy of at most one of them
// happen.
func perform(rs []*performance) {
	begin := time.Now()
	var wg sync.WaitGroup
	for _, r := range rs {
		var mu sync.Mutex
		dice := rand.New(rand.NewPCG(r.seed, 1))
		keys := rand.New(rand.NewPCG(r.seed, 2))
		wg.Go(func() {
			poisson(begin, r.lasts, r.rate, dice, func(at time.Duration) {
				mu.Lock()
				key := keys.IntN(manyKeys)
				mu.Unlock()
				late := time.Since(begin) - at
				took, backend := r.ask("/", key)
				mu.Lock()
				defer mu.Unlock()
				r.outcome.answers = append(r.outcome.answers, answer{at, took, backend})
				r.late = append(r.late, late)
			})
		})
		var alone sync.Mutex
		wg.Go(func() {
			poisson(begin, r.lasts, 20, rand.New(rand.NewPCG(r.seed, 3)), func(time.Duration) {
				took, _ := r.ask("/unloaded", 0)
				alone.Lock()
				defer alone.Unlock()
				r.overhead.requests = append(r.overhead.requests, max(took-unloaded, 0))
			})
		})
	}
	for _, r := range rs {
		if r.deploy != nil {
			r.restart(begin)
		}
	}
	wg.Wait()
}

// restart is the deploy: each backend is told to go, ends in its own time, and
// comes back at the same address.
func (r *performance) restart(begin time.Time) {
	next := begin.Add(r.deploy.from)
	for i, old := range r.backends {
		time.Sleep(time.Until(next))
		next = time.Now().Add(r.deploy.every)
		old.signal(syscall.SIGTERM)
		if code := old.wait(r.deploy.drain + 20*time.Second); code != 0 {
			r.t.Errorf("%s: backend %d exited with %d", r.name, i+1, code)
		}
		gone := time.Now()
		r.backends[i] = r.serve(i)
		r.outcome.came[i] = time.Since(begin)
		r.overhead.boots = append(r.overhead.boots, time.Since(gone))
	}
}

// percentile sorts the times and returns that one of them.
func percentile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[min(int(q*float64(len(ds))), len(ds)-1)]
}
