// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"time"
)

// blip is scenario 3: a database that all readiness pages ask is away.
func blip() *scenario {
	checks := scase{name: "checks", what: "traffic succeeds", backends: 4, settings: "delay=10ms", run: func(e *run) error { return runBlip(e, false) }}
	return &scenario{
		name:    "blip",
		title:   "Every /readyz says 503 for 20 s, because all ask one database. Four backends, 200 requests per second.",
		promise: "While traffic succeeds no user sees an error. When it fails too, errors end with the blip, retries stay within their budget, and nothing stampedes afterwards.",
		cases: append([]scase{
			checks,
			{name: "traffic", what: "traffic fails with 503, too", backends: 4, settings: "delay=10ms", run: func(e *run) error { return runBlip(e, true) }},
		}, changed(checks)...),
	}
}

func runBlip(e *run, traffic bool) error {
	lasts := 20 * time.Second
	if e.short {
		lasts = 5 * time.Second
	}
	e.send(&load{rate: 200})
	e.sleep(2 * time.Second)
	words := "set ready=503"
	if traffic {
		words += " errors=1 code=503"
	}
	e.mark("fault")
	if err := e.all(words); err != nil {
		return err
	}
	e.sleep(lasts / 2)
	if err := e.disturb(); err != nil {
		return err
	}
	e.sleep(lasts / 2)
	e.mark("repair")
	if err := e.all("set ready=200 errors=0"); err != nil {
		return err
	}
	e.pass(8*time.Second, 4*time.Second)
	all, err := e.count()
	if err != nil {
		return err
	}
	o, repair := e.outcome, e.when("repair")
	busiest, err := e.busiestSecond(repair)
	if err != nil {
		return err
	}
	o.figure("recovery", "s", lastHarm(all, repair, time.Second).Seconds())
	o.figure("busiest second afterwards", "x", busiest/200)
	if n := len(within(all, e.when("fault"), repair)); n > 0 {
		o.figure("errors during the blip", "%", 100*float64(bad(within(all, e.when("fault"), repair)))/float64(n))
	}
	if !traffic {
		o.atMost("errors", float64(o.Errors), 0)
	}
	e.soon("seconds until the last error after the blip", lastHarm(all, repair, time.Second).Seconds(), 1)
	o.atMost("requests in the busiest second afterwards, of those usual", busiest/200, 1.5)
	o.atMost("requests that backends got for each", o.Sent, 1.25)
	return nil
}

// busiestSecond returns the most requests that the backends got within a second.
func (e *run) busiestSecond(from time.Time) (float64, error) {
	entries, err := e.ledger()
	if err != nil {
		return 0, err
	}
	var at []time.Time
	for _, x := range entries {
		if x.kind == gotRequest && x.at.After(from) {
			at = append(at, x.at)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	most, first := 0, 0
	for i, t := range at {
		for t.Sub(at[first]) > time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return float64(most), nil
}
