// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// Fleet is a pool as it is configured, and what is around it. It is run as it
// stands: nothing has a default here.
type Fleet struct {
	Name string // of the pool
	// Balancer makes the pool of the nth balancer, from 0. It is called once for
	// each balancer of each run, because policies keep state.
	Balancer  func(n int) (BalancerConfig, error)
	Balancers int
	Policies  []string // of the rows of a comparison; empty: as configured
	// With makes the configured pool use another policy; needed with Policies.
	With func(c *BalancerConfig, policy string) error

	Server   func(spec pool.Spec) ServerConfig // how a backend behaves; ID, Zone and the like are set from the spec
	Traffic  Traffic                           // Rate 0 follows Load; To is set
	Load     float64                           // part of the first tier's nominal capacity
	MeanSize float64                           // of requests
	Duration time.Duration
	Events   []FleetEvent
	Seed     uint64
	Seeds    int
	Params   []Param  // for the report
	Notes    []string // what is assumed
	Each     func(n int, do func(i int))
}

// FleetEvent is something that happens to a fleet.
type FleetEvent struct {
	At       time.Duration
	Do       string   // kill, start, pause, slow, fail, black_hole, unready, ready, drain, enable, add, remove, deploy or rate
	Backends []string // whom it happens to; of deploy, none means all
	Zone     string   // or all of a zone
	For      time.Duration
	Speed    float64
	Errors   float64
	Rate     float64
	Every    time.Duration
	Drains   bool
}

// fleetColumns are the figures of each backend and of the whole.
var fleetColumns = []Column{
	{Name: "share", Title: "gets", Unit: Part},
	{Name: "requests", Title: "requests", Unit: Count},
	{Name: "errors", Title: "errors", Unit: Part},
	{Name: "most", Title: "most inside", Unit: Count},
	{Name: "p50", Title: "p50", Unit: Millis},
	{Name: "p99", Title: "p99", Unit: Millis, Chart: true},
}

// Run runs the fleet: one row for all requests, and one for each backend; with
// Policies one row for each of them. The error is Balancer's or With's.
func (f *Fleet) Run() (*Report, error) {
	r := &Report{
		Scenario: f.Name, Title: "this configuration against a fleet, in virtual time",
		Seed: f.Seed, Seeds: max(f.Seeds, 1), Params: f.Params, Columns: fleetColumns, Notes: f.Notes,
	}
	policies := f.Policies
	if len(policies) == 0 {
		policies = []string{""}
	}
	for _, p := range policies { // whatever may be wrong is wrong for every seed
		run, err := f.build(r.Seed, p)
		if err != nil {
			return nil, err
		}
		if n := f.arriving(run.source.t.Rate, run.capacity); n > mostRequests {
			return nil, fmt.Errorf("about %.2g requests would arrive in %v, and at most %d are played: shorten the duration, or let fewer arrive", n, f.Duration, mostRequests)
		}
	}
	if len(f.Policies) > 0 {
		var variants []variant
		for _, p := range policies {
			variants = append(variants, variant{p, func(seed uint64) sample { return f.run(seed, p)[0].sample }})
		}
		compare(r, variants, f.Each)
		r.dropColumns("share", "most") // all requests, and nobody's
		return r, nil
	}
	f.runRows(r)
	return r, nil
}

// mostRequests bounds one run, as it does that of a scenario: a hundred million
// take tens of minutes.
const mostRequests = 100_000_000

// arriving is about how many requests arrive in one run: at a rate, which events
// change, or as fast as a closed loop can get answers. A log is as long as it is.
func (f *Fleet) arriving(rate, capacity float64) float64 {
	t := &f.Traffic
	switch {
	case t.Replay != nil:
		return 0
	case t.Users > 0:
		rate = capacity / or(f.MeanSize, 1)
		if t.Think == nil {
			rate = min(rate, float64(t.Users)) // a second each
		} else if mean := t.Think.Mean().Seconds(); mean > 0 {
			rate = min(rate, float64(t.Users)/mean)
		}
		return rate * f.Duration.Seconds()
	}
	n, from := 0.0, time.Duration(0)
	for i := range f.Events { // they are in order
		if e := &f.Events[i]; e.Do == "rate" && e.At < f.Duration {
			n += rate * (e.At - from).Seconds()
			rate, from = e.Rate, e.At
		}
	}
	return n + rate*(f.Duration-from).Seconds()
}

// named is a row of one run.
type named struct {
	name   string
	sample sample
}

// runRows makes rows of all requests and of each backend.
func (f *Fleet) runRows(r *Report) {
	runs := make([][]named, r.Seeds)
	work := func(i int) { runs[i] = f.run(r.Seed+uint64(i), "") } //nolint:gosec // i is not negative
	if f.Each != nil {
		f.Each(r.Seeds, work)
	} else {
		for i := range runs {
			work(i)
		}
	}
	var variants []variant
	for row, first := range runs[0] {
		variants = append(variants, variant{first.name, func(seed uint64) sample {
			if one := runs[seed-r.Seed]; row < len(one) {
				return one[row].sample
			}
			return sample{figures: slices.Repeat([]float64{math.NaN()}, len(fleetColumns))}
		}})
	}
	compare(r, variants, nil)
	for i := range r.Series { // they are about the whole pool
		r.Series[i].Row = ""
	}
	for i := range r.Moments {
		r.Moments[i].Row = ""
	}
}

// fleetRun is one run under way.
type fleetRun struct {
	*World
	f      *Fleet
	heard  *witness
	source *Source

	capacity float64 // requests of mean size 1 per second that the first tier can do
}

func (f *Fleet) build(seed uint64, policy string) (*fleetRun, error) {
	w := NewWorld(seed)
	w.stats.Step = max(time.Second, (f.Duration / 60).Round(time.Second))
	run := &fleetRun{World: w, f: f, heard: watch(w)}
	capacity := 0.0
	for n := range max(f.Balancers, 1) {
		c, err := f.Balancer(n)
		if err != nil {
			return nil, err
		}
		if policy != "" {
			if err := f.With(&c, policy); err != nil {
				return nil, err
			}
		}
		if n == 0 {
			for _, spec := range c.Specs {
				v := w.AddServer(f.serverOf(spec))
				if spec.Weight > 0 && !spec.Backup && spec.Priority == 0 {
					k := v.Config()
					capacity += float64(k.Concurrency) / max(k.Service.Mean().Seconds(), 1e-9)
				}
			}
		}
		for i := range c.Specs {
			c.Specs[i].URL = c.Specs[i].ID
		}
		w.AddBalancer(c)
	}
	run.capacity = capacity
	t := f.Traffic
	t.To, t.Until = w.Balancers(), f.Duration
	if t.Rate == 0 && t.Users == 0 && t.Replay == nil {
		t.Rate = f.Load * capacity / or(f.MeanSize, 1)
	}
	run.source = w.AddTraffic(t)
	for i := range f.Events {
		w.At(f.Events[i].At, func() { run.happen(&f.Events[i]) })
	}
	return run, nil
}

func (f *Fleet) serverOf(spec pool.Spec) ServerConfig {
	c := f.Server(spec)
	c.ID, c.Zone, c.Weight, c.Priority, c.Backup = spec.ID, spec.Zone, spec.Weight, spec.Priority, spec.Backup
	return c
}

// run plays one seed and returns the rows: all requests first.
func (f *Fleet) run(seed uint64, policy string) []named {
	run, err := f.build(seed, policy)
	if err != nil {
		panic(err) // Run has tried it
	}
	run.Finish(f.Duration + time.Hour)
	s := run.Stats()
	figures := func(c *Counts, most int) []float64 {
		return []float64{ratio(float64(c.Requests), float64(s.Requests)), float64(c.Requests), c.failures(), float64(most), quantile(&c.Latency, 0.5), quantile(&c.Latency, 0.99)}
	}
	st := &stage{World: run.World}
	whole := sample{
		figures: figures(&s.Counts, 0),
		series: []Series{
			perBucket(st, "requests", "answers per second", okRate),
			perBucket(st, "failed", "failed per second", badRate),
			perSecond(st, "p99", "p99", Millis, p99Of),
		},
		moments: run.heard.moments,
	}
	whole.figures[3] = math.NaN()
	out := []named{{"all", whole}}
	for _, v := range run.Servers() {
		out = append(out, named{v.ID(), sample{figures: figures(s.Of(v), v.Figures().Most)}})
	}
	return out
}

// perBucket is perSecond for buckets of other lengths.
func perBucket(st *stage, name, title string, of func(*Counts) float64) Series {
	step := st.Stats().Step.Seconds()
	return perSecond(st, name, title, PerSec, func(c *Counts) float64 { return of(c) / step })
}

// targets are the servers that an event is about.
func (r *fleetRun) targets(e *FleetEvent) (out []*Server) {
	for _, v := range r.Servers() {
		if slices.Contains(e.Backends, v.ID()) || e.Zone != "" && v.Config().Zone == e.Zone || e.Do == "deploy" && len(e.Backends) == 0 && e.Zone == "" {
			out = append(out, v)
		}
	}
	return out
}

// happen does what an event says.
func (r *fleetRun) happen(e *FleetEvent) {
	who := "clients"
	if e.Do == "rate" {
		r.source.SetRate(e.Rate)
		r.heard.say(r.World, who, "rate "+Show(e.Rate, PerSec))
		return
	}
	if e.Do == "add" {
		r.add(e)
		return
	}
	targets := r.targets(e)
	if e.Do == "deploy" {
		r.heard.say(r.World, "fleet", fmt.Sprintf("deploy of %d begins", len(targets)))
		r.Deploy(Deploy{Servers: targets, Every: e.Every, Drains: e.Drains, Each: func(v *Server, up bool) {
			what := "stops"
			if up {
				what = "is back"
			}
			r.heard.say(r.World, v.ID(), what)
		}})
		return
	}
	for _, v := range targets {
		r.heard.say(r.World, v.ID(), eventWords(e))
		if undo := r.befall(v, e); undo != nil && e.For > 0 {
			r.After(e.For, func() {
				r.heard.say(r.World, v.ID(), e.Do+" is over")
				undo()
			})
		}
	}
}

func eventWords(e *FleetEvent) string {
	switch e.Do {
	case "slow":
		return "slow: speed " + Show(e.Speed, Part)
	case "fail":
		return "fail: " + Show(e.Errors, Part) + " of the answers are 500"
	case "pause":
		return "pause for " + e.For.String()
	default:
		return e.Do
	}
}

// befall lets an event happen to one server and returns what undoes it.
func (r *fleetRun) befall(v *Server, e *FleetEvent) (undo func()) {
	admin := func(a balance.Admin) {
		for _, b := range r.Balancers() {
			_ = b.Override(v.ID(), pool.Override{Admin: &a}) // one that it does not have is not drained
		}
	}
	switch e.Do {
	case "kill":
		v.Kill()
		return func() { v.Start(nil) }
	case "start":
		v.Start(nil)
	case "pause":
		v.Pause(e.For)
	case "slow":
		was := v.Speed()
		v.SetSpeed(was * e.Speed)
		return func() { v.SetSpeed(was) }
	case "fail":
		was := v.Config().Errors
		v.SetErrors(e.Errors)
		return func() { v.SetErrors(was) }
	case "black_hole":
		v.SetFault(Fault{Mode: Answer, After: time.Millisecond})
		return func() { v.SetFault(Fault{}) }
	case "unready", "ready":
		v.SetReady(e.Do == "ready")
		return func() { v.SetReady(true) }
	case "drain":
		admin(balance.Draining)
		return func() { admin(balance.Enabled) }
	case "enable":
		admin(balance.Enabled)
	case "remove":
		for _, b := range r.Balancers() {
			b.Update(slices.DeleteFunc(slices.Clone(b.Specs()), func(s pool.Spec) bool { return s.ID == v.ID() }))
		}
	}
	return nil
}

// add starts servers and tells the balancers of them.
func (r *fleetRun) add(e *FleetEvent) {
	for _, id := range e.Backends {
		if r.Server(id) != nil {
			continue
		}
		spec := pool.Spec{ID: id, URL: id, Weight: 1, Zone: e.Zone}
		r.heard.say(r.World, id, "is added")
		r.AddColdServer(r.f.serverOf(spec), func() {})
		for _, b := range r.Balancers() {
			b.Update(append(slices.Clone(b.Specs()), spec))
		}
	}
}
