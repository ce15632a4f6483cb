// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/pool"
)

var retryStorm = &Scenario{
	Name:  "retry-storm",
	Title: "half of the answers are errors, and everybody tries again",
	Doc: []string{
		"Shows how retries multiply: half of the requests that reach the servers fail. Each layer that tries again multiplies what the next one gets.",
		"Look at 'sent', the requests that reach the servers for each that a client made. The budget allows 20 % more, and each of three layers its own 20 %: 1.73 times. The mark on an answer that was already retried keeps the layers above from trying once more.",
		"What to learn: retries help when failures are few and are an attack on your own servers when they are many. Without a budget the errors go away here, for twice the requests, as these servers fail by chance; servers that fail because they are full would fail more. A budget tells the two apart, a number of attempts does not.",
	},
	Defaults: Options{Policies: []string{"p2c"}, Duration: 60 * time.Second, Backends: 6, Load: 0.3},
	columns: []Column{
		{Name: "errors", Title: "errors", Unit: Part},
		{Name: "p99", Title: "p99", Unit: Millis},
		{Name: "sent", Title: "sent", Unit: Factor, Chart: true},
	},
	variants: func(o *Options) []variant {
		return []variant{
			{"no retries", func(seed uint64) sample { return stormSample(o, seed, storm{layers: 1, attempts: 1}) }},
			{"3 attempts, no budget", func(seed uint64) sample { return stormSample(o, seed, storm{layers: 1, attempts: 3, free: true}) }},
			{"3 attempts, budget", func(seed uint64) sample { return stormSample(o, seed, storm{layers: 1, attempts: 3}) }},
			{"3 layers, no budget", func(seed uint64) sample {
				return stormSample(o, seed, storm{layers: 3, attempts: 3, free: true, blind: true})
			}},
			{"3 layers, budgets", func(seed uint64) sample { return stormSample(o, seed, storm{layers: 3, attempts: 3, blind: true}) }},
			{"3 layers, marks too", func(seed uint64) sample {
				return stormSample(o, seed, storm{layers: 3, attempts: 3, marks: true, blind: true})
			}},
			{"marks, layers eject", func(seed uint64) sample { return stormSample(o, seed, storm{layers: 3, attempts: 3, marks: true}) }},
			{"no marks, layers eject", func(seed uint64) sample { return stormSample(o, seed, storm{layers: 3, attempts: 3}) }},
		}
	},
	notes: func(*Options) []string {
		return []string{"'sent' is how many requests reach the servers for each that a client made. In the first three rows of three layers no layer ejects the balancers of the next: one sees what budgets and marks do alone. " +
			"In the last two they do, as they would by default: half of the answers are errors, so they take each other for broken and have nobody left to try next. Without marks it is that which holds the retries back, not the budgets."}
	},
}

// storm is how retries are configured.
type storm struct {
	layers, attempts int
	free             bool // no budget
	marks            bool
	blind            bool // layers do not judge the balancers below them
}

func stormSample(o *Options, seed uint64, how storm) sample {
	w := NewWorld(seed)
	capacity := 0.0
	for i := range o.Backends {
		s := w.AddServer(ServerConfig{ID: fmt.Sprintf("s%d", i+1), Service: Exponential(20 * time.Millisecond), Concurrency: 8})
		s.SetFault(Fault{Mode: Answer, Status: 503, After: 5 * time.Millisecond, Part: 0.5})
		capacity += 8 / 0.020
	}
	var above []pool.Spec
	var top []*Balancer
	for layer := range how.layers {
		top = nil
		var names []pool.Spec
		for i := range 2 {
			c := BalancerConfig{
				Name: fmt.Sprintf("layer-%d-%d", how.layers-layer, i+1), Pool: DefaultPool(o.Policies[0]), Specs: above, Marks: how.marks, Request: time.Minute,
				Retry: pool.NewRetryRules(how.attempts, true, []int{502, 503, 504}, 5*time.Second),
			}
			if how.free {
				c.Pool.Retry.Share = 10
			}
			if how.blind && layer > 0 {
				c.Pool.Passive.Enabled = false
			}
			top = append(top, w.AddBalancer(c))
			names = append(names, pool.Spec{ID: c.Name, URL: c.Name, Weight: 1})
		}
		above = names
	}
	w.AddTraffic(Traffic{To: top, Rate: o.Load * capacity / 4, Until: o.Duration})
	w.Finish(limit)
	arrived := uint64(0)
	for _, s := range w.Servers() {
		arrived += s.Figures().Arrived
	}
	c := &w.Stats().Counts
	return sample{figures: []float64{c.failures(), quantile(&c.Latency, 0.99), ratio(float64(arrived), float64(c.Requests))}}
}

var deathSpiral = &Scenario{
	Name:  "death-spiral",
	Title: "20 % more load than the servers can do, for a while",
	Doc: []string{
		"Shows what decides whether overload ends when the load does: for 30 s more arrives than the servers can do, and their health pages, served by the same workers, become slow.",
		"Look at goodput during the overload, as part of capacity, and at how long it took to get back. When checks evict busy servers, the rest gets their load and falls next.",
		"What to learn: bound what waits (limits.requests and a short queue) so that excess is refused at once, and never evict a server that answers real traffic.",
	},
	Defaults: Options{Policies: []string{"p2c"}, Backends: 4, Load: 1.2},
	columns: []Column{
		{Name: "evicted", Title: "evicted", Unit: Count},
		{Name: "refused", Title: "refused in", Unit: Millis},
		{Name: "p99", Title: "p99 of good", Unit: Millis},
		{Name: "back", Title: "back after", Unit: Seconds},
		{Name: "goodput", Title: "goodput", Unit: Part, Chart: true},
	},
	variants: func(o *Options) []variant {
		return []variant{
			{"limit 8, no queue", func(seed uint64) sample { return spiralSample(o, seed, pool.Limits{BackendRequests: 8}, false) }},
			{"limit 8, queue 128", func(seed uint64) sample {
				return spiralSample(o, seed, pool.Limits{BackendRequests: 8, Queue: 128, QueueTimeout: 2 * time.Second}, false)
			}},
			{"adaptive", func(seed uint64) sample {
				return spiralSample(o, seed, pool.Limits{Adaptive: pool.Adaptive{Enabled: true}}, false)
			}},
			{"no limit", func(seed uint64) sample { return spiralSample(o, seed, pool.Limits{}, false) }},
			{"no limit, no panic", func(seed uint64) sample { return spiralSample(o, seed, pool.Limits{}, true) }},
		}
	},
	notes: func(*Options) []string {
		return []string{"The load is 60 % of capacity, then --load for 30 s, then 60 % again. Clients wait 2 s. 'goodput' is what was answered well during the overload over what the servers can do; " +
			"'refused in' is the p99 of refusals, 'back after' the last second after the overload in which more than 5 % failed."}
	},
}

func spiralSample(o *Options, seed uint64, limits pool.Limits, bare bool) sample {
	const begin, end, over = 30 * time.Second, 60 * time.Second, 120 * time.Second
	s := &setting{
		seed: seed, policy: o.Policies[0], servers: o.Backends, load: 0.6,
		server: ServerConfig{
			Service: Exponential(100 * time.Millisecond), Concurrency: 8, ProbeQueues: true, ProbeTime: 5 * time.Millisecond,
		},
		tune: func(_ int, c *BalancerConfig) {
			c.Pool.Limits = limits
			c.Pool.Panic.Off = bare
		},
		traffic: Traffic{Until: over, Timeout: 2 * time.Second},
	}
	st := s.build()
	st.stats.Step = time.Second
	heard := watch(st.World)
	st.Phase("before")
	st.At(begin, func() {
		st.Phase("overload")
		st.source.SetRate(o.Load * st.capacity)
		heard.say(st.World, "clients", "more than the servers can do")
	})
	st.At(end, func() {
		st.Phase("after")
		st.source.SetRate(0.6 * st.capacity)
		heard.say(st.World, "clients", "back to normal")
	})
	var refusals Histogram
	st.OnRecord = func(r *Record) {
		if !r.OK && r.Reason != "client_timeout" && r.Attempts == 0 {
			refusals.Add(r.Latency())
		}
	}
	st.Finish(limit)
	during := st.Stats().Phase("overload")
	back := 0.0
	for i := int(end / time.Second); i < len(st.Stats().Buckets); i++ {
		if c := &st.Stats().Buckets[i]; c.failures() > 0.05 {
			back = float64(i+1) - end.Seconds()
		}
	}
	return sample{
		figures: []float64{
			float64(heard.out), quantile(&refusals, 0.99), quantile(&during.Successes, 0.99), back,
			ratio(float64(during.OK), st.capacity*(end-begin).Seconds()),
		},
		series:  []Series{perSecond(st, "ok", "good answers per second", PerSec, okRate)},
		moments: heard.moments,
	}
}
