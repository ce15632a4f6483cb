// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/weirlb/weir/pool"
)

var race = &Scenario{
	Name:  "race",
	Title: "equal servers, and one request in twenty is six times larger",
	Doc: []string{
		"Shows what it is worth to look at load when requests are unequal: six equal servers that work on one request at a time, at 70 % load. Work varies (exponentially, 50 ms on average), and 5 % of the requests are six times larger than the others.",
		"Look at 'over least', p99 over that of least_request with the same arrivals. Behind a large request a line forms; round_robin and random go on sending to it, while policies that count requests in flight go around it.",
		"What to learn: where requests are unequal, round_robin's p99 is about twice that of least_request and more than half as much again as p2c's, and random's is worse yet, at the same load. Hash policies stay near p2c here because their bound (1.25) passes keys on.",
	},
	Defaults: Options{Policies: policies, Requests: 5000, Backends: 6, Load: 0.7},
	columns: []Column{
		{Name: "errors", Title: "errors", Unit: Part},
		{Name: "p50", Title: "p50", Unit: Millis},
		{Name: "p95", Title: "p95", Unit: Millis},
		{Name: "p99", Title: "p99", Unit: Millis},
		{Name: "over_least", Title: "over least", Unit: Factor, Chart: true},
	},
	variants: func(o *Options) []variant {
		return everyRow(o, func(policy string, seed uint64) sample {
			c, least := raceRun(o, policy, seed), raceRun(o, "least_request", seed)
			return sample{figures: append(latencyFigures(c), ratio(quantile(&c.Latency, 0.99), quantile(&least.Latency, 0.99)))}
		})
	},
}

// raceRun is one run of the race to its end.
func raceRun(o *Options, policy string, seed uint64) *Counts {
	st := raceSetting(o, policy, seed).build()
	st.Finish(limit)
	return &st.Stats().Counts
}

// raceSetting is servers that work on one request at a time.
func raceSetting(o *Options, policy string, seed uint64) *setting {
	return &setting{
		seed: seed, policy: policy, servers: o.Backends, load: o.Load, meanSize: 1 + 5.0/20,
		server:  ServerConfig{Service: Exponential(50 * time.Millisecond)},
		tune:    func(_ int, c *BalancerConfig) { policyOnly(c); c.Request = 0 },
		traffic: Traffic{Limit: o.Requests, Size: Heavy(1.0/20, 6)},
	}
}

var slowServer = &Scenario{
	Name:  "slow-server",
	Title: "one of six equal servers runs at 30 % of its speed",
	Doc: []string{
		"Shows what happens when one server is slow but answers: an overheated processor, a noisy neighbour, a failing disk. Health checks see nothing. Load is 70 % of what six healthy servers can do.",
		"Look at p99 and at 'slow gets', the part of the requests the slow server is given: its fair part at 30 % speed is 5.7 %. A policy that gives it a sixth sends it more than it can do, and its line grows without end.",
		"What to learn: policies that look at requests in flight adapt by themselves. Round_robin needs right weights, which somebody has to know, and change back.",
	},
	Defaults: Options{Policies: policies, Requests: 5000, Backends: 6, Load: 0.7},
	columns:  latencies(Column{Name: "slow_gets", Title: "slow gets", Unit: Part}),
	variants: func(o *Options) []variant {
		out := everyRow(o, func(policy string, seed uint64) sample { return slowSample(o, policy, seed, nil) })
		return append(out, variant{"rr, right weights", func(seed uint64) sample {
			return slowSample(o, "round_robin", seed, func(i int, c *ServerConfig) {
				if c.Weight = 10; i == 0 {
					c.Weight = 3
				}
			})
		}})
	},
}

func slowSample(o *Options, policy string, seed uint64, weigh func(i int, c *ServerConfig)) sample {
	s := &setting{
		seed: seed, policy: policy, servers: o.Backends, load: o.Load,
		server: ServerConfig{Service: Exponential(50 * time.Millisecond), Concurrency: 4},
		each: func(i int, c *ServerConfig) {
			if i == 0 {
				c.Speed = 0.3
			}
			if weigh != nil {
				weigh(i, c)
			}
		},
		tune:    func(_ int, c *BalancerConfig) { policyOnly(c); c.Request = 0 },
		traffic: Traffic{Limit: o.Requests},
	}
	st := s.build()
	st.Finish(limit)
	return sample{figures: latencyFigures(&st.Stats().Counts, st.Stats().Share(st.servers[0]))}
}

var staleHerd = &Scenario{
	Name:  "stale-herd",
	Title: "twenty balancers: counts of their own, shared ones, old ones",
	Doc: []string{
		"Shows why the exact minimum is not always the best choice: twenty balancers share six servers. With counts of their own, which is how weir works, each knows the few requests that it has under way itself. 'fresh' and 'stale' are what balancers would do that share their counts: at once, or 300 ms late, as load reports are. Then all of them send to the server that was idle when the report was made.",
		"Look at 'worse by', p99 with stale counts over that with fresh ones: least_request and peak_ewma herd. p2c compares two at random, which spreads the choice, and loses far less. round_robin and random look at no counts and lose nothing, while servers are equal. With counts of their own nobody herds, and what differs is how each copes with one slow server ('own, 1 slow', at 30 % speed).",
		"What to learn: behind many balancers counts of one's own cost little while servers are equal. When one is slow, peak_ewma is ahead, because latency says what a few requests do not. Where counts arrive late, p2c is the safe choice among policies that look at load.",
	},
	Defaults: Options{Policies: policies, Requests: 20_000, Backends: 6, Load: 0.7},
	columns: []Column{
		{Name: "own_p99", Title: "own", Unit: Millis},
		{Name: "own_slow", Title: "own, 1 slow", Unit: Millis},
		{Name: "fresh_p99", Title: "fresh", Unit: Millis},
		{Name: "p99", Title: "stale", Unit: Millis},
		{Name: "worse", Title: "worse by", Unit: Factor, Chart: true},
	},
	variants: func(o *Options) []variant {
		return everyRow(o, func(policy string, seed uint64) sample {
			p99 := func(age time.Duration, speed float64) float64 {
				return quantile(&staleRun(o, policy, seed, age, speed).Latency, 0.99)
			}
			fresh, stale := p99(time.Microsecond, 1), p99(300*time.Millisecond, 1)
			return sample{figures: []float64{p99(0, 1), p99(0, 0.3), fresh, stale, ratio(stale, fresh)}}
		})
	},
	notes: func(*Options) []string {
		return []string{"All times are p99. 'own': each balancer counts its own requests, as weir does; '1 slow': one server is at 30 % speed. 'fresh' and 'stale': all see the counts of all, at once or 300 ms late. 'worse by' is stale over fresh."}
	},
}

// staleRun is twenty balancers that see each other's counts so late, not at all at
// age 0, and a first server of such a speed.
func staleRun(o *Options, policy string, seed uint64, age time.Duration, speed float64) *Counts {
	s := &setting{
		seed: seed, policy: policy, servers: o.Backends, balancers: 20, load: o.Load, stale: age,
		server: ServerConfig{Service: Exponential(50 * time.Millisecond), Concurrency: 4},
		each: func(i int, c *ServerConfig) {
			if i == 0 {
				c.Speed = speed
			}
		},
		tune:    func(_ int, c *BalancerConfig) { policyOnly(c); c.Request = 0; c.Pool.Limits = pool.Limits{} },
		traffic: Traffic{Limit: o.Requests},
	}
	st := s.build()
	st.Finish(limit)
	return &st.Stats().Counts
}
