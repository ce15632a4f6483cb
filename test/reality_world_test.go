// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/engine"
	"github.com/weirlb/weir/internal/sim"
	"github.com/weirlb/weir/pool"
)

// experiment is what is done once in reality and fifty times in the simulator:
// Poisson clients, one weir, backends with exponential service times, so many
// slots and one queue each.
type experiment struct {
	name      string
	balance   string
	rate      float64       // requests per second
	lasts     time.Duration // how long they arrive
	service   time.Duration // mean of a backend at speed 1
	slots     int
	speeds    []float64 // of each backend
	slowStart string    // the configuration's words
	deploy    *deploy   // nil: nothing happens
	wrong     func(*experiment)
}

// deploy stops the backends one after another and starts them again.
type deploy struct {
	from, every time.Duration // since the first arrival; from one to the next
	drain       time.Duration // they serve on for so long
	look        time.Duration // how long after a return the newcomer's part is counted
}

// text is the experiment's configuration: weir runs it, and the simulator's pool
// is made from it by the code that weir makes its own with. Slow backends are not
// ejected: whether that happens before the end of a short run is a toss of a coin,
// and two kinds of runs make no band.
func (e *experiment) text(addrs []string, unloaded string) string {
	return `
listeners:
  web:
    bind: "${LISTEN}"
    routes:
      - {match: {path: /unloaded}, pool: unloaded}
      - {pool: app}
admin: {bind: "${ADMIN}"}
log: {access: off}
pools:
  app:
    balance: ` + e.balance + `
    hash: {key: header:X-Key}
    slow_start: ` + e.slowStart + `
    health:
      active: {path: /readyz, interval: 500ms, fast_interval: 100ms}
      passive: {latency: off}
    backends: [http://` + strings.Join(addrs, ", http://") + `]
  unloaded: {backends: [http://` + unloaded + `]}
`
}

// overhead is what a real machine adds to the model, measured during the run.
type overhead struct {
	requests []time.Duration // of one that waits for nothing, beyond its service time
	boots    []time.Duration // from the end of a backend's process until its successor accepts
}

// imagine runs the experiment in the simulator.
func (e *experiment) imagine(t *testing.T, addrs []string, o *overhead, seed uint64) *outcome {
	text := strings.NewReplacer("${LISTEN}", "127.0.0.1:1", "${ADMIN}", "none").Replace(e.text(addrs, "127.0.0.1:2"))
	plan, err := config.Parse("weir.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	var p *config.Pool
	for i := range plan.Pools {
		if plan.Pools[i].Name == "app" {
			p = &plan.Pools[i]
		}
	}
	c, specs, err := engine.PoolConfig(p, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.First = true
	w := sim.NewWorld(seed)
	out := &outcome{came: make([]time.Duration, len(addrs))}
	at := map[*sim.Server]int{}
	for i, s := range specs {
		server := w.AddServer(sim.ServerConfig{
			ID: s.URL, Service: sim.Exponential(e.service), Concurrency: e.slots, Speed: e.speeds[i], Boot: mean(o.boots),
		})
		at[server] = i
	}
	lb := w.AddBalancer(sim.BalancerConfig{
		Pool: c, Specs: specs, Network: sim.Observed(o.requests),
		Retry:   pool.NewRetryRules(p.Retry.Attempts, p.Retry.OnReset, p.Retry.OnStatus, p.Retry.Within),
		Request: time.Minute, Connect: p.Timeouts.Connect, Response: p.Timeouts.ResponseHeader,
	})
	// Where the checks are in their beat when the traffic begins is chance.
	from := time.Second + time.Duration(w.Stream("begin").Float64()*float64(time.Second))
	w.AddTraffic(sim.Traffic{
		To: []*sim.Balancer{lb}, Rate: e.rate, From: from, Until: from + e.lasts, Addresses: 1, Keys: sim.Keys{N: manyKeys},
	})
	w.OnRecord = func(r *sim.Record) {
		a := answer{at: r.Arrived - from, took: r.Latency(), backend: -1}
		if i, ok := at[r.Server]; ok && r.OK {
			a.backend = i
		}
		out.answers = append(out.answers, a)
	}
	if d := e.deploy; d != nil {
		w.At(from+d.from, func() {
			w.Deploy(sim.Deploy{
				Servers: w.Servers(), Every: d.every, Drains: true, Delay: d.drain,
				Each: func(s *sim.Server, up bool) {
					if up {
						out.came[at[s]] = w.Now() - from
					}
				},
			})
		})
	}
	if !w.Finish(from + e.lasts + time.Minute) {
		t.Fatalf("%s, seed %d: the simulation does not end", e.name, seed)
	}
	return out
}

// manyKeys is so many that no key matters.
const manyKeys = 1_000_000

// imagineAll runs the seeds from first on, on all processors.
func (e *experiment) imagineAll(t *testing.T, addrs []string, o *overhead, first, n int) [][]reading {
	t.Helper()
	out := make([][]reading, n)
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.NumCPU() {
		wg.Go(func() {
			for i := range next {
				out[i] = e.readings(e.imagine(t, addrs, o, uint64(first+i)))
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return out
}

func mean(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	sum := time.Duration(0)
	for _, d := range ds {
		sum += d
	}
	return sum / time.Duration(len(ds))
}

// imaginary returns addresses that nobody listens on, for simulations alone.
func imaginary(n int) (addrs []string) {
	for i := range n {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", 9001+i))
	}
	return addrs
}
