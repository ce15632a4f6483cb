// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/pool"
)

var flapping = &Scenario{
	Name:  "flapping",
	Title: "a third of the probes of good servers fail",
	Doc: []string{
		"Shows what thresholds are for: the servers are fine and answer all traffic, but a third of the probes gets no answer, because a link loses packets or the health page is slow.",
		"Look at 'flips', how often a server was taken out and brought back, and at the least number of servers that served at once.",
		"What to learn: fall and rise of 1 take servers out for nothing. 3 and 2 help, and a real request that succeeds outvotes a probe without an answer altogether.",
	},
	Defaults: Options{Policies: []string{"p2c"}, Duration: 3 * time.Minute, Backends: 6, Load: 0.5},
	columns: []Column{
		{Name: "errors", Title: "errors", Unit: Part},
		{Name: "least", Title: "least serving", Unit: Count},
		{Name: "p99", Title: "p99", Unit: Millis},
		{Name: "flips", Title: "flips", Unit: Count, Chart: true},
	},
	variants: func(o *Options) []variant {
		var out []variant
		for _, kind := range []string{"no answer", "not ready"} {
			for _, t := range [][2]int{{1, 1}, {3, 2}} {
				name := fmt.Sprintf("%s, fall %d rise %d", kind, t[0], t[1])
				out = append(out, variant{name, func(seed uint64) sample { return flapSample(o, seed, kind == "not ready", t[0], t[1]) }})
			}
		}
		return out
	},
	notes: func(*Options) []string {
		return []string{"'no answer': a third of the probes is lost. 'not ready': a third of them is answered 503, which is the server's own word and is never outvoted."}
	},
}

func flapSample(o *Options, seed uint64, word bool, fall, rise int) sample {
	s := &setting{
		seed: seed, policy: o.Policies[0], servers: o.Backends, load: o.Load,
		server: ServerConfig{Service: Exponential(50 * time.Millisecond), Concurrency: 4},
		tune: func(_ int, c *BalancerConfig) {
			c.Pool.Active.Fall, c.Pool.Active.Rise = fall, rise
			if !word {
				c.ProbeLoss = 1.0 / 3
			}
		},
		traffic: Traffic{Until: o.Duration},
	}
	st := s.build()
	if word {
		dice := st.Stream("readiness")
		st.Every(200*time.Millisecond, func() {
			for _, v := range st.servers {
				v.SetReady(dice.Float64() >= 1.0/3)
			}
		})
	}
	heard := watch(st.World)
	serve := serving(st, 10*time.Second, o.Duration-time.Second)
	st.Finish(limit)
	c := &st.Stats().Counts
	return sample{
		figures: []float64{c.failures(), float64(least(*serve)), quantile(&c.Latency, 0.99), float64(heard.flips)},
		moments: heard.moments,
	}
}

var dbBlip = &Scenario{
	Name:  "db-blip",
	Title: "every readiness page fails for 20 s: they share a database",
	Doc: []string{
		"Shows the outage that health checks cause: /readyz asks a database that all servers share; the database stalls for 20 s, every server says 'not ready' at once, while real requests, most of which need no database, go on succeeding.",
		"Look at errors, and at how few servers were left in rotation. Without panic the balancer takes everything out and turns a blip into an outage.",
		"What to learn: readiness pages should not ask shared dependencies. Panic is the net below: when nearly everybody is out at once, opinions are not believed.",
	},
	Defaults: Options{Policies: []string{"p2c"}, Duration: 90 * time.Second, Backends: 6, Load: 0.6},
	columns: []Column{
		{Name: "errors", Title: "errors", Unit: Part},
		{Name: "during", Title: "during", Unit: Part},
		{Name: "least", Title: "least", Unit: Count},
		{Name: "after", Title: "after", Unit: Part},
		{Name: "p99", Title: "p99 during", Unit: Millis, Chart: true},
	},
	variants: func(o *Options) []variant {
		return []variant{
			{"checks fail, panic", func(seed uint64) sample { return blipSample(o, seed, true, false) }},
			{"checks fail, panic off", func(seed uint64) sample { return blipSample(o, seed, false, false) }},
			{"traffic too, panic", func(seed uint64) sample { return blipSample(o, seed, true, true) }},
			{"traffic too, panic off", func(seed uint64) sample { return blipSample(o, seed, false, true) }},
		}
	},
	notes: func(*Options) []string {
		return []string{"'during' and 'after' are errors, too. 'least' is the least number of servers that were given requests within one second, once the first verdicts are 5 s old. 'after' begins 5 s after the database is back. " +
			"In 'traffic too' every answer is an error, and checks are right to say so: servers are taken out one after another, the last two have lines of 3 s before panic begins, and the p99 is that of errors that waited there."}
	},
}

func blipSample(o *Options, seed uint64, panics, traffic bool) sample {
	const begin, end = 20 * time.Second, 40 * time.Second
	s := &setting{
		seed: seed, policy: o.Policies[0], servers: o.Backends, load: o.Load,
		server:  ServerConfig{Service: Exponential(50 * time.Millisecond), Concurrency: 4},
		tune:    func(_ int, c *BalancerConfig) { c.Pool.Panic.Off = !panics },
		traffic: Traffic{Until: max(o.Duration, 60*time.Second)},
	}
	st := s.build()
	st.stats.Step = time.Second
	heard := watch(st.World)
	st.Phase("before")
	all := func(do func(*Server)) {
		for _, v := range st.servers {
			do(v)
		}
	}
	st.At(begin, func() {
		st.Phase("during")
		heard.say(st.World, "database", "stalls")
		all(func(v *Server) {
			v.SetReady(false)
			if traffic {
				v.SetFault(Fault{Mode: Fail, Checks: true})
			}
		})
	})
	st.At(end, func() {
		st.Phase("settling")
		heard.say(st.World, "database", "is back")
		all(func(v *Server) { v.SetReady(true); v.SetFault(Fault{}) })
	})
	st.At(end+5*time.Second, func() { st.Phase("after") })
	// The first verdict may fall 5.5 + 2 s after the blip began; panic follows when
	// half of them have.
	serve := serving(st, begin+13*time.Second, end)
	st.Finish(limit)
	all2, during, after := &st.Stats().Counts, st.Stats().Phase("during"), st.Stats().Phase("after")
	return sample{
		figures: []float64{
			all2.failures(), during.failures(), float64(least(*serve)), after.failures(), quantile(&during.Latency, 0.99),
		},
		series:  []Series{perSecond(st, "failed", "failed requests per second", PerSec, badRate)},
		moments: heard.moments,
	}
}

var zoneLoss = &Scenario{
	Name:  "zone-loss",
	Title: "one of three zones disappears at once",
	Doc: []string{
		"Shows what is lost in the moments until it is noticed, and whether what is left bears the load: a third of the servers does not answer any more, not even with a refusal.",
		"Look at errors and at p99 after the loss. With zones, look at how little traffic crosses between them while all is well.",
		"What to learn: connection timeouts and redispatch decide how the first seconds look; spare capacity decides the rest. A third of the servers gone needs a load below two thirds.",
	},
	Defaults: Options{Policies: []string{"p2c"}, Duration: 90 * time.Second, Backends: 12, Load: 0.55},
	columns: []Column{
		{Name: "local", Title: "local", Unit: Part},
		{Name: "errors", Title: "errors after", Unit: Part},
		{Name: "before", Title: "p99 before", Unit: Millis},
		{Name: "first", Title: "first 15s", Unit: Millis},
		{Name: "p99", Title: "p99 after", Unit: Millis, Chart: true},
	},
	variants: func(o *Options) []variant {
		return []variant{
			{"no zones", func(seed uint64) sample { return zoneSample(o, seed, false, 0) }},
			{"zones", func(seed uint64) sample { return zoneSample(o, seed, true, 0) }},
			{"no zones, connect 200ms", func(seed uint64) sample { return zoneSample(o, seed, false, 200*time.Millisecond) }},
		}
	},
	notes: func(*Options) []string {
		return []string{"'local' is the part of the requests answered in the balancer's own zone before the loss. 'first 15s' and 'after' are p99 of the first 15 s after the loss, and from then on. The balancer of the lost zone is lost too, and its clients go to the others."}
	},
}

func zoneSample(o *Options, seed uint64, zones bool, connect time.Duration) sample {
	const lost = 30 * time.Second
	name := func(i int) string { return fmt.Sprintf("zone-%d", i%3+1) }
	s := &setting{
		seed: seed, policy: o.Policies[0], servers: o.Backends, balancers: 3, load: o.Load,
		server: ServerConfig{Service: Exponential(50 * time.Millisecond), Concurrency: 4},
		each:   func(i int, c *ServerConfig) { c.Zone = name(i) },
		tune: func(i int, c *BalancerConfig) {
			c.Connect = connect
			if zones {
				c.Pool.Zone = pool.Zone{Local: name(i), MinSize: 6}
			}
		},
		traffic: Traffic{Until: lost},
	}
	st := s.build()
	heard := watch(st.World)
	local, all := 0, 0
	st.OnRecord = func(r *Record) {
		if st.Now() < lost && r.Server != nil {
			all++
			if r.Server.Config().Zone == r.Balancer.cfg.Pool.Zone.Local || !zones && r.Server.Config().Zone == name(int(r.Balancer.Name()[3]-'1')) {
				local++
			}
		}
	}
	st.Phase("before")
	st.At(lost, func() {
		st.Phase("first")
		heard.say(st.World, "zone-3", "is lost")
		for _, v := range st.servers {
			if v.Config().Zone == "zone-3" {
				v.SetFault(Fault{Mode: Drop})
			}
		}
		st.AddTraffic(Traffic{Name: "after", To: st.balancers[:2], Rate: o.Load * st.capacity, Keys: Keys{N: 1000}, Until: max(o.Duration, 60*time.Second)})
	})
	st.At(lost+15*time.Second, func() { st.Phase("after") })
	st.Finish(limit)
	before, first, after := st.Stats().Phase("before"), st.Stats().Phase("first"), st.Stats().Phase("after")
	return sample{
		figures: []float64{
			ratio(float64(local), float64(all)), ratio(float64(first.Failed()+after.Failed()), float64(first.Requests+after.Requests)),
			quantile(&before.Latency, 0.99), quantile(&first.Latency, 0.99), quantile(&after.Latency, 0.99),
		},
		moments: heard.moments,
	}
}
