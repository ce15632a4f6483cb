// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/balance"
)

// Scenario is a story that the simulator can tell: a fleet, what happens to it,
// and what is compared.
type Scenario struct {
	Name  string // as on the command line
	Title string // one line: what is compared
	// Doc is what it shows, what to look at and what an operator learns from it;
	// paragraphs of plain text.
	Doc []string
	// Defaults are the parameters that a run without any has. Those that are zero
	// mean nothing to the scenario and are refused by Check.
	Defaults Options

	counts     string // what Requests counts when they are not requests: keys, ...
	perBackend int    // Requests by default for each of the Backends; 0: Defaults says how many

	columns  []Column
	variants func(o *Options) []variant
	notes    func(o *Options) []string // nil: none
}

// Options are the parameters of a run. Zero values stand for the scenario's
// defaults.
type Options struct {
	Policies []string      // balance policies that are compared, or in force
	Seed     uint64        // 0 counts as 1
	Seeds    int           // runs with seeds counted up from Seed; 0 counts as 1
	Requests int           // how many arrive
	Duration time.Duration // how long they arrive
	Backends int           // how many serve
	Load     float64       // part of what the backends can do that is asked of them

	// Each carries out do for 0 to n-1, at once if it likes, and returns when all
	// are done; nil: one after another. The report is the same either way.
	Each func(n int, do func(i int))
}

// variant is one row of a comparison: how to run it with a seed.
type variant struct {
	name string
	run  func(seed uint64) sample
}

// sample is what one run of a variant gave.
type sample struct {
	figures []float64 // one per column
	series  []Series  // Row is set by whoever asked
	moments []Moment  // the same
}

// Scenarios returns all scenarios, in the order in which they are listed.
func Scenarios() []*Scenario {
	return []*Scenario{
		race, slowServer, staleHerd, flapping, dbBlip, retryStorm, deathSpiral,
		scaleUp, ringGrowth, rollingDeploy, coldStart, hotKey, zoneLoss, blackHole,
	}
}

// Find returns the scenario with the name, or nil.
func Find(name string) *Scenario {
	for _, s := range Scenarios() {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Check says what is wrong with parameters for this scenario, nil if nothing.
func (s *Scenario) Check(o Options) error {
	for _, p := range o.Policies {
		if !slices.Contains(balance.Names(), p) {
			return fmt.Errorf("policy %q is not known: use %s", p, strings.Join(balance.Names(), ", "))
		}
	}
	d := &s.Defaults
	for _, p := range []struct {
		name          string
		given, wanted bool
	}{
		{"policy", len(o.Policies) > 0, len(d.Policies) > 0},
		{"requests", o.Requests != 0, d.Requests != 0},
		{"duration", o.Duration != 0, d.Duration != 0},
		{"backends", o.Backends != 0, d.Backends != 0},
		{"load", o.Load != 0, d.Load != 0},
	} {
		if p.given && !p.wanted {
			return fmt.Errorf("scenario %s has no parameter %s", s.Name, p.name)
		}
	}
	switch {
	case o.Seeds < 0 || o.Seeds > 10_000:
		return fmt.Errorf("%d seeds are out of range: allowed is 1 to 10000", o.Seeds)
	case o.Requests != 0 && (o.Requests < 100 || o.Requests > 100_000_000):
		return fmt.Errorf("%d requests are out of range: allowed is 100 to 100000000", o.Requests)
	case o.Duration != 0 && (o.Duration < time.Second || o.Duration > 24*time.Hour):
		return fmt.Errorf("a duration of %v is out of range: allowed is 1s to 24h", o.Duration)
	case o.Backends != 0 && (o.Backends < 2 || o.Backends > 10_000):
		return fmt.Errorf("%d backends are out of range: allowed is 2 to 10000", o.Backends)
	case o.Load != 0 && (o.Load < 0.01 || o.Load > 10):
		return fmt.Errorf("a load of %s is out of range: allowed is 1%% to 1000%%", Show(o.Load, Part))
	}
	return nil
}

// withDefaults fills in what is not given.
func (s *Scenario) withDefaults(o Options) Options {
	d := &s.Defaults
	if len(o.Policies) == 0 {
		o.Policies = d.Policies
	}
	if o.Requests == 0 && o.Backends != 0 {
		o.Requests = s.perBackend * o.Backends
	}
	o.Requests, o.Duration = or(o.Requests, d.Requests), or(o.Duration, d.Duration)
	o.Backends, o.Load = or(o.Backends, d.Backends), or(o.Load, d.Load)
	o.Seed, o.Seeds = or(o.Seed, 1), or(o.Seeds, 1)
	return o
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Run runs the scenario with the parameters, which Check has accepted.
func (s *Scenario) Run(o Options) *Report {
	o = s.withDefaults(o)
	r := &Report{
		Scenario: s.Name, Title: s.Title, Seed: o.Seed, Seeds: o.Seeds,
		Params: s.params(&o), Columns: s.columns,
	}
	compare(r, s.variants(&o), o.Each)
	if s.notes != nil {
		r.Notes = s.notes(&o)
	}
	return r
}

// compare runs the variants with all seeds and writes what came of it.
func compare(r *Report, variants []variant, each func(int, func(int))) {
	if each == nil {
		each = func(n int, do func(int)) {
			for i := range n {
				do(i)
			}
		}
	}
	samples := make([]sample, len(variants)*r.Seeds)
	each(len(samples), func(i int) {
		samples[i] = variants[i/r.Seeds].run(r.Seed + uint64(i%r.Seeds))
	})
	for i, v := range variants {
		runs := samples[i*r.Seeds : (i+1)*r.Seeds]
		row := Row{Name: v.name}
		for j := range r.Columns {
			values := make([]float64, len(runs))
			for k := range runs {
				values[k] = runs[k].figures[j]
			}
			row.Cells = append(row.Cells, cellOf(values))
		}
		r.Rows = append(r.Rows, row)
		for _, s := range runs[0].series {
			s.Row = v.name
			r.Series = append(r.Series, s)
		}
		for _, m := range runs[0].moments {
			m.Row = v.name
			r.Moments = append(r.Moments, m)
		}
	}
	slices.SortStableFunc(r.Series, func(a, b Series) int { return strings.Compare(a.Name, b.Name) })
}

// params lists the parameters in force for the head of a report.
func (s *Scenario) params(o *Options) []Param {
	out := params(o)
	for i := range out {
		if out[i].Name == "requests" && s.counts != "" {
			out[i].Name = s.counts
		}
	}
	return out
}

// params lists the parameters as they are written on the command line.
func params(o *Options) (out []Param) {
	add := func(name, value string, has bool) {
		if has {
			out = append(out, Param{name, value})
		}
	}
	add("policy", strings.Join(o.Policies, ","), len(o.Policies) > 0 && len(o.Policies) < len(balance.Names()))
	add("requests", strconv.Itoa(o.Requests), o.Requests != 0)
	add("duration", o.Duration.String(), o.Duration != 0)
	add("backends", strconv.Itoa(o.Backends), o.Backends != 0)
	add("load", Show(o.Load, Part), o.Load != 0)
	return out
}
