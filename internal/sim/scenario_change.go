// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/pool"
)

var rollingDeploy = &Scenario{
	Name:  "rolling-deploy",
	Title: "six servers are replaced one after another under load",
	Doc: []string{
		"Shows what a deploy does to users: each server in turn says 'not ready', drains, stops, and comes back cold, at a fifth of its speed for half a minute.",
		"Look at errors, and at p99 during the deploy beside that of the quiet minutes before it.",
		"What to learn: draining is what makes it lossless where requests cannot be repeated; redispatch and a retry hide a server that just exits from all others. Slow start keeps it fast under policies that look at no load; those that do adapt by themselves.",
	},
	Defaults: Options{Policies: []string{"p2c", "round_robin"}, Backends: 6, Load: 0.6},
	columns: []Column{
		{Name: "failed", Title: "failed", Unit: Count},
		{Name: "steady", Title: "p99 steady", Unit: Millis},
		{Name: "p99", Title: "p99 deploy", Unit: Millis},
		{Name: "worse", Title: "worse by", Unit: Factor, Chart: true, Log: true},
	},
	variants: func(o *Options) []variant {
		var out []variant
		for _, p := range o.Policies {
			tell := func(s string) string {
				if len(o.Policies) == 1 {
					return s
				}
				return p + ", " + s
			}
			out = append(out,
				variant{tell("drain, slow start"), func(seed uint64) sample { return deploySample(o, p, seed, true, true, 2) }},
				variant{tell("no slow start"), func(seed uint64) sample { return deploySample(o, p, seed, true, false, 2) }},
				variant{tell("just exit"), func(seed uint64) sample { return deploySample(o, p, seed, false, true, 2) }},
				variant{tell("just exit, no retry"), func(seed uint64) sample { return deploySample(o, p, seed, false, true, 1) }},
			)
		}
		return out
	},
}

func deploySample(o *Options, policy string, seed uint64, drains, slow bool, attempts int) sample {
	const begin = 60 * time.Second
	s := &setting{
		seed: seed, policy: policy, servers: o.Backends, load: o.Load,
		server: ServerConfig{
			Service: Exponential(50 * time.Millisecond), Concurrency: 4,
			Cold: 30 * time.Second, ColdSpeed: 0.2, Boot: 2 * time.Second,
		},
		tune: func(_ int, c *BalancerConfig) {
			c.Retry.Attempts = attempts
			if !slow {
				c.Pool.SlowStart.Window = 0
			}
		},
		traffic: Traffic{Until: limit}, // until the deploy is over
	}
	st := s.build()
	st.stats.Step = 5 * time.Second
	heard := watch(st.World)
	st.Phase("steady")
	st.At(begin, func() {
		st.Phase("deploy")
		st.Deploy(Deploy{
			Servers: st.servers, Every: 50 * time.Second, Drains: drains, Delay: 12 * time.Second,
			Each: func(v *Server, up bool) {
				what := "goes"
				if up {
					what = "is back, cold"
				}
				heard.say(st.World, v.ID(), what)
			},
			Then: func() { st.After(40*time.Second, func() { st.Phase("after"); st.source.Stop() }) },
		})
	})
	st.Finish(limit)
	steady, deploy := st.Stats().Phase("steady"), st.Stats().Phase("deploy")
	was, is := quantile(&steady.Latency, 0.99), quantile(&deploy.Latency, 0.99)
	return sample{
		figures: []float64{float64(st.Stats().Failed()), was, is, ratio(is, was)},
		series:  []Series{perSecond(st, "p99", "p99 of each 5 s", Millis, p99Of)},
		moments: heard.moments,
	}
}

var scaleUp = &Scenario{
	Name:  "scale-up",
	Title: "servers are added while most work is on long-lived connections",
	Doc: []string{
		"Shows why adding servers may not help: clients hold connections (WebSockets, streams) for minutes, and each was placed when it was opened. A newcomer only gets what is opened after it came.",
		"Look at 'busiest/mean', the connections of the busiest server over the mean, three minutes after the servers came, and at how many of the connections the newcomers hold.",
		"What to learn: bound the age of connections, or let the balancer end the surplus, or new capacity stays idle while the old servers stay full. An autoscaler that looks at the mean then adds more of what does not help. 'rebalanced' is the balancer's own 'rebalance' with its defaults: 10 % of all connections may be ended in a minute, where a server holds over a fifth more than its part.",
	},
	Defaults: Options{Policies: []string{"p2c", "least_request"}, Backends: 4, Requests: 2000},
	counts:   "connections",
	columns: []Column{
		{Name: "newcomers", Title: "newcomers hold", Unit: Part},
		{Name: "ended", Title: "ended for it", Unit: Count},
		{Name: "p99", Title: "p99", Unit: Millis},
		{Name: "imbalance", Title: "busiest/mean", Unit: Factor, Chart: true},
	},
	variants: func(o *Options) []variant {
		var out []variant
		for _, p := range o.Policies {
			for _, v := range []struct {
				name string
				hold time.Duration
				move bool
			}{{"held for good", 0, false}, {"held 6m", 6 * time.Minute, false}, {"held 2m", 2 * time.Minute, false}, {"rebalanced", 0, true}} {
				out = append(out, variant{p + ", " + v.name, func(seed uint64) sample { return scaleSample(o, p, seed, v.hold, v.move) }})
			}
		}
		return out
	},
	notes: func(o *Options) []string {
		return []string{fmt.Sprintf("%d clients hold a connection each to %d servers; as many servers are added after 2 minutes, and it is looked at 3 minutes later. 'held 2m' is a connection age of 2 minutes, with its variance.", o.Requests, o.Backends)}
	},
}

func scaleSample(o *Options, policy string, seed uint64, hold time.Duration, move bool) sample {
	const added, looked = 2 * time.Minute, 5 * time.Minute
	w := NewWorld(seed)
	config := func(i int) ServerConfig {
		return ServerConfig{ID: fmt.Sprintf("s%d", i+1), Service: Exponential(50 * time.Millisecond), Concurrency: 16}
	}
	var old, young []*Server
	for i := range o.Backends {
		old = append(old, w.AddServer(config(i)))
	}
	c := BalancerConfig{Pool: DefaultPool(policy), Retry: DefaultRetry()}
	policyOnly(&c)
	lb := w.AddBalancer(c)
	k := Connections{To: lb, Clients: o.Requests, Spread: 30 * time.Second, Rate: 16 * float64(o.Backends) / 0.05 * 0.8 / float64(o.Requests)}
	if hold > 0 {
		k.Hold = Uniform(hold/2, hold*3/2)
	}
	held := w.AddConnections(k)
	w.At(added, func() {
		specs := lb.Specs()
		for i := range o.Backends {
			v := w.AddServer(config(o.Backends + i))
			young = append(young, v)
			specs = append(specs, v.Spec())
		}
		lb.Update(specs)
	})
	if move {
		held.Rebalance(pool.Rebalance{Above: 0.2, PerMinute: 0.1})
	}
	w.Run(looked)
	sum, most, fresh := 0, 0, 0
	for _, v := range append(old, young...) {
		n := held.On(v)
		sum += n
		most = max(most, n)
	}
	for _, v := range young {
		fresh += held.On(v)
	}
	_, _, latency := held.Requests()
	return sample{figures: []float64{
		ratio(float64(fresh), float64(sum)), float64(held.Ended()), quantile(latency, 0.99), ratio(float64(most*2*o.Backends), float64(sum)),
	}}
}
