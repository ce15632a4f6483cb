// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
)

var blackHole = &Scenario{
	Name:  "black-hole",
	Title: "one server answers everything with an error at once",
	Doc: []string{
		"Shows the trap of fast failures: a server that fails in 1 ms among honest ones of 50 ms is always idle, so a policy that looks for idle servers would send it everything.",
		"Look at 'hole gets', the part of the requests that the broken server is given, beside its fair part. Ejection is switched off, so that the policy alone is seen; the last rows have it on.",
		"What to learn: weir counts a failed request as load for as long as an honest one would have taken, so failing fast attracts nothing; ejection then takes the server out altogether.",
	},
	Defaults: Options{Policies: policies, Requests: 20_000, Backends: 6, Load: 0.5},
	columns: []Column{
		{Name: "errors", Title: "errors", Unit: Part},
		{Name: "hole_gets", Title: "hole gets", Unit: Part},
		{Name: "back", Title: "starved back", Unit: Seconds},
		{Name: "over_fair", Title: "over fair", Unit: Factor, Chart: true},
	},
	variants: func(o *Options) []variant {
		out := everyRow(o, func(policy string, seed uint64) sample { return holeSample(o, policy, seed, false) })
		for _, p := range o.Policies[:1] {
			out = append(out, variant{p + ", ejection on", func(seed uint64) sample { return holeSample(o, p, seed, true) }})
		}
		return out
	},
	notes: func(*Options) []string {
		return []string{"'over fair' is what the broken server gets over what the same policy gives it while it is well. " +
			"'starved back' is another run: a server was at 3 % speed for 20 s; how long after its recovery it gets half of its fair part again."}
	},
}

func holeSample(o *Options, policy string, seed uint64, eject bool) sample {
	run := func(fault Fault) *stage {
		s := &setting{
			seed: seed, policy: policy, servers: o.Backends, load: o.Load,
			server: ServerConfig{Service: Fixed(50 * time.Millisecond), Concurrency: 8},
			tune: func(_ int, c *BalancerConfig) {
				policyOnly(c)
				c.Pool.Passive.Enabled = eject
			},
			traffic: Traffic{Limit: o.Requests},
		}
		st := s.build()
		st.servers[0].SetFault(fault)
		st.Finish(limit)
		return st
	}
	well, ill := run(Fault{}), run(Fault{Mode: Answer, Status: 500, After: time.Millisecond})
	gets := ill.Stats().Share(ill.servers[0])
	return sample{figures: []float64{
		ill.Stats().failures(), gets, starvedBack(o, policy, seed), ratio(gets, well.Stats().Share(well.servers[0])),
	}}
}

// starvedBack is how long after its recovery a server that was very slow is given
// half of its fair part again, in seconds; NaN when it is not within a minute.
func starvedBack(o *Options, policy string, seed uint64) float64 {
	const ill, until = 20 * time.Second, 80 * time.Second
	s := &setting{
		seed: seed, policy: policy, servers: o.Backends, load: o.Load,
		server:  ServerConfig{Service: Fixed(50 * time.Millisecond), Concurrency: 8},
		each:    func(i int, c *ServerConfig) { c.Speed = 1 - 0.97*float64(1-min(i, 1)) },
		tune:    func(_ int, c *BalancerConfig) { policyOnly(c) },
		traffic: Traffic{Until: until},
	}
	st := s.build()
	st.At(ill, func() { st.servers[0].SetSpeed(1) })
	back, before, all := math.NaN(), uint64(0), uint64(0)
	for at := ill; at < until; at += time.Second {
		st.At(at, func() {
			sum := uint64(0)
			for _, v := range st.servers {
				sum += v.Figures().Arrived
			}
			mine := st.servers[0].Figures().Arrived
			enough := float64(mine-before) >= float64(sum-all)/float64(o.Backends)/2
			if enough && st.Now() > ill && math.IsNaN(back) {
				back = (st.Now() - ill).Seconds()
			}
			before, all = mine, sum
		})
	}
	st.Finish(limit)
	return back
}

var coldStart = &Scenario{
	Name:  "cold-start",
	Title: "one server comes back cold into a busy pool",
	Doc: []string{
		"Shows why a new server must not get its full part at once: caches are empty and code is not compiled yet, so it runs at a tenth of its speed and warms up within 30 s.",
		"Look at p99 of the half minute after it came, with slow start and without it, for every policy.",
		"What to learn: round_robin and random need slow start most, as nothing tells them that a server is slow. Policies that count requests in flight notice it by its line, and gain little.",
	},
	Defaults: Options{Policies: policies, Backends: 6, Load: 0.6},
	columns: []Column{
		{Name: "warm", Title: "p99 warm", Unit: Millis},
		{Name: "with", Title: "with slow start", Unit: Millis},
		{Name: "worse", Title: "without/with", Unit: Factor},
		{Name: "without", Title: "without", Unit: Millis, Chart: true, Log: true},
	},
	variants: func(o *Options) []variant {
		return everyRow(o, func(policy string, seed uint64) sample {
			with, without := coldRun(o, policy, seed, true), coldRun(o, policy, seed, false)
			a, b := quantile(&with.Phase("cold").Latency, 0.99), quantile(&without.Phase("cold").Latency, 0.99)
			return sample{figures: []float64{quantile(&with.Phase("warm").Latency, 0.99), a, ratio(b, a), b}}
		})
	},
}

// coldRun lets one server go and come back cold.
func coldRun(o *Options, policy string, seed uint64, slow bool) *Stats {
	s := &setting{
		seed: seed, policy: policy, servers: o.Backends, load: o.Load,
		server: ServerConfig{
			Service: Exponential(50 * time.Millisecond), Concurrency: 4,
			Cold: 30 * time.Second, ColdSpeed: 0.1, Boot: 2 * time.Second,
		},
		tune: func(_ int, c *BalancerConfig) {
			policyOnly(c)
			c.Pool.Active.Enabled = true
			if !slow {
				c.Pool.SlowStart.Window = 0
			}
		},
		traffic: Traffic{Until: 90 * time.Second},
	}
	st := s.build()
	first := st.servers[0]
	st.Phase("warm")
	st.At(30*time.Second, func() { st.Phase("away"); first.Stop(12*time.Second, 20*time.Second, nil) })
	st.At(50*time.Second, func() { first.Start(func() { st.Phase("cold") }) })
	st.Finish(limit)
	return st.Stats()
}

var hotKey = &Scenario{
	Name:  "hot-key",
	Title: "one key of a hash policy is far hotter than the others",
	Doc: []string{
		"Shows what affinity costs when keys are unequal (Zipf): the server of the hottest key is full while others idle. Each seed has keys of its own, which land on other servers.",
		"Look at p99, at the busiest server's part of the requests, and at 'kept', how often a key stayed with the server that usually has it: the hit rate of its cache.",
		"What to learn: a bound on the load (bounded_load: 1.25) costs about three requests in ten their usual server, and brings latency down to that of p2c. Without a bound one key can take a server down. At low load (--load 5%) the bound costs affinity and wins nothing.",
	},
	Defaults: Options{Policies: keyed, Requests: 20_000, Backends: 6, Load: 0.6},
	columns: []Column{
		{Name: "errors", Title: "errors", Unit: Part},
		{Name: "kept", Title: "kept", Unit: Part},
		{Name: "busiest", Title: "busiest/mean", Unit: Factor},
		{Name: "p50", Title: "p50", Unit: Millis},
		{Name: "p99", Title: "p99", Unit: Millis, Chart: true, Log: true},
	},
	variants: func(o *Options) []variant {
		var out []variant
		for _, p := range o.Policies {
			if !slices.Contains(keyed, p) {
				out = append(out, variant{p, func(seed uint64) sample { return hotSample(o, p, seed, balance.HashConfig{}) }})
				continue
			}
			for _, v := range []struct {
				name string
				hash balance.HashConfig
			}{{", no bound", balance.HashConfig{}}, {", 1.25", balance.HashConfig{BoundedLoad: 1.25}}, {", 1.25, spill 3", balance.HashConfig{BoundedLoad: 1.25, Spill: 3}}} {
				out = append(out, variant{p + v.name, func(seed uint64) sample { return hotSample(o, p, seed, v.hash) }})
			}
		}
		return append(out, variant{"p2c, no affinity", func(seed uint64) sample { return hotSample(o, "p2c", seed, balance.HashConfig{}) }})
	},
}

func hotSample(o *Options, policy string, seed uint64, hash balance.HashConfig) sample {
	s := &setting{
		seed: seed, policy: policy, servers: o.Backends, load: o.Load,
		server: ServerConfig{Service: Exponential(50 * time.Millisecond), Concurrency: 4},
		tune: func(_ int, c *BalancerConfig) {
			policyOnly(c)
			c.Pool.Policy, _ = balance.New(policy, balance.Options{Hash: hash}) // the name and the settings are ours
		},
		traffic: Traffic{Limit: o.Requests, Keys: Keys{N: 1000, Skew: 1.1, Salt: seed}},
	}
	st := s.build()
	type place struct {
		key uint64
		at  *Server
	}
	times, usual := map[place]int{}, map[uint64]int{}
	st.OnRecord = func(r *Record) {
		p := place{r.Key, r.Server}
		times[p]++
		usual[r.Key] = max(usual[r.Key], times[p])
	}
	st.Finish(limit)
	kept, most := 0, 0.0
	for _, n := range usual {
		kept += n
	}
	for _, v := range st.servers {
		most = max(most, st.Stats().Share(v))
	}
	c := &st.Stats().Counts
	return sample{figures: []float64{
		c.failures(), ratio(float64(kept), float64(c.Requests)), most * float64(o.Backends), quantile(&c.Latency, 0.5), quantile(&c.Latency, 0.99),
	}}
}
