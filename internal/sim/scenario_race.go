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
	Title: "twenty balancers whose counts are 300 ms old",
	Doc: []string{
		"Shows why the exact minimum is not always the best choice: twenty balancers share six servers and see each other's load only as it was up to 300 ms ago. All of them then send to the server that was idle then. Weirs share no counts, so this is not what twenty of them do ('balancers: 20' in a fleet file is); it is what acting on old load reports does.",
		"Look at p99 of least_request and peak_ewma beside p2c's: they herd. p2c compares two at random, which spreads the choice, and loses far less. round_robin and random look at no counts and lose nothing, while servers are equal.",
		"What to learn: among policies that look at load, p2c is the safe choice where counts arrive late. Those that do not look are safe here too, and break with one slow server (slow-server).",
	},
	Defaults: Options{Policies: policies, Requests: 20_000, Backends: 6, Load: 0.7},
	columns: []Column{
		{Name: "p50", Title: "p50", Unit: Millis},
		{Name: "fresh_p99", Title: "p99 fresh", Unit: Millis},
		{Name: "worse", Title: "worse by", Unit: Factor},
		{Name: "p99", Title: "p99 stale", Unit: Millis, Chart: true, Log: true},
	},
	variants: func(o *Options) []variant {
		return everyRow(o, func(policy string, seed uint64) sample {
			fresh, stale := staleRun(o, policy, seed, time.Microsecond), staleRun(o, policy, seed, 300*time.Millisecond)
			was, is := quantile(&fresh.Latency, 0.99), quantile(&stale.Latency, 0.99)
			return sample{figures: []float64{quantile(&stale.Latency, 0.5), was, ratio(is, was), is}}
		})
	},
}

// staleRun is twenty balancers that see each other's counts so late.
func staleRun(o *Options, policy string, seed uint64, age time.Duration) *Counts {
	s := &setting{
		seed: seed, policy: policy, servers: o.Backends, balancers: 20, load: o.Load, stale: age,
		server:  ServerConfig{Service: Exponential(50 * time.Millisecond), Concurrency: 4},
		tune:    func(_ int, c *BalancerConfig) { policyOnly(c); c.Request = 0; c.Pool.Limits = pool.Limits{} },
		traffic: Traffic{Limit: o.Requests},
	}
	st := s.build()
	st.Finish(limit)
	return &st.Stats().Counts
}
