// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"time"
)

// outcome is what a case before one subject came to.
type outcome struct {
	Scenario string
	Case     string
	Subject  string
	Requests int            // that the client sent
	Errors   int            // without the whole right answer
	Kinds    map[string]int `json:",omitempty"` // of errors
	Sent     float64        // requests that backends got for each that the client sent
	Twice    int            // POST that were executed more than once
	P50      float64        // milliseconds, of good answers
	P99      float64        // milliseconds, of good answers
	Worst    float64        // milliseconds, of all
	Late     float64        // milliseconds by which the client was late to send (p99): how busy the machine was
	Figures  []figure       `json:",omitempty"` // the case's own
	Checks   []check        `json:",omitempty"`
}

// figure is a value that a case adds. Seconds, milliseconds and counts are told
// apart by Unit.
type figure struct {
	Name  string
	Unit  string // "s", "ms", "", "x", "%"
	Value float64
}

// check is one promise with what came of it.
type check struct {
	What  string
	Limit string
	Got   string
	Holds bool
}

func (o *outcome) figure(name, unit string, v float64) {
	o.Figures = append(o.Figures, figure{name, unit, v})
}

// atMost promises that v is no more than limit.
func (o *outcome) atMost(what string, v, limit float64) {
	o.Checks = append(o.Checks, check{what, fmt.Sprintf("at most %.4g", limit), fmt.Sprintf("%.4g", v), v <= limit})
}

// soon promises what is a matter of time. A machine that is too busy
// for the client itself to be in time says nothing about that, unless the run is
// meant to be believed.
func (e *run) soon(what string, v, limit float64) {
	if e.short && e.outcome.Late > 50 {
		return
	}
	e.outcome.atMost(what, v, limit)
}

// atLeast promises that v is no less than limit.
func (o *outcome) atLeast(what string, v, limit float64) {
	o.Checks = append(o.Checks, check{what, fmt.Sprintf("at least %.4g", limit), fmt.Sprintf("%.4g", v), v >= limit})
}

func (o *outcome) holds() bool {
	return !slices.ContainsFunc(o.Checks, func(c check) bool { return !c.Holds })
}

// count ends the load, if it still runs, and fills the common figures.
func (e *run) count() ([]sample, error) {
	var all []sample
	for _, l := range e.loads {
		all = append(all, l.end()...)
	}
	all = e.undisturbed(all)
	o := e.outcome
	o.Requests, o.Kinds = len(all), map[string]int{}
	var good, late []time.Duration
	var worst time.Duration
	for _, s := range all {
		worst = max(worst, s.took)
		late = append(late, s.late)
		if s.bad == "" {
			good = append(good, s.took)
			continue
		}
		o.Errors++
		o.Kinds[s.method+" "+s.bad]++
	}
	o.P50, o.P99, o.Worst = quantile(good, .5), quantile(good, .99), worst.Seconds()*1e3
	o.Late = quantile(late, .99)
	entries, err := e.ledger()
	if err != nil {
		return nil, err
	}
	ours := map[string]bool{}
	for _, s := range all {
		ours[s.id] = true
	}
	sent, posts := 0, map[string]int{}
	for _, x := range entries {
		if x.kind != gotRequest || !ours[x.id] {
			continue
		}
		sent++
		if x.method == "POST" {
			if posts[x.id]++; posts[x.id] == 2 {
				o.Twice++
			}
		}
	}
	if len(all) > 0 {
		o.Sent = float64(sent) / float64(len(all))
	}
	return all, nil
}

// quantile in milliseconds; 0 of nothing.
func quantile(d []time.Duration, q float64) float64 {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[int(q*float64(len(d)-1))].Seconds() * 1e3
}

// within returns the samples whose requests were due between two instants.
func within(all []sample, from, to time.Time) []sample {
	var some []sample
	for _, s := range all {
		if !s.due.Before(from) && s.due.Before(to) {
			some = append(some, s)
		}
	}
	return some
}

func bad(all []sample) (n int) {
	for _, s := range all {
		if s.bad != "" {
			n++
		}
	}
	return n
}

func badOf(all []sample, method string) (n int) {
	for _, s := range all {
		if s.bad != "" && s.method == method {
			n++
		}
	}
	return n
}

func took(all []sample) (d []time.Duration) {
	for _, s := range all {
		if s.bad == "" {
			d = append(d, s.took)
		}
	}
	return d
}

// lastHarm returns how long after from the last request was due that went wrong
// or took longer than slow; 0 when there is none.
func lastHarm(all []sample, from time.Time, slow time.Duration) time.Duration {
	var last time.Duration
	for _, s := range all {
		if after := s.due.Sub(from); s.bad != "" || s.took > slow {
			last = max(last, after)
		}
	}
	return last
}

// firstWork returns the first real request that a backend got after from.
func (e *run) firstWork(b *backend, from time.Time) (time.Time, bool, error) {
	entries, err := e.ledger(b)
	if err != nil {
		return time.Time{}, false, err
	}
	for _, x := range entries {
		if x.kind == gotRequest && x.at.After(from) {
			return x.at, true, nil
		}
	}
	return time.Time{}, false, nil
}
