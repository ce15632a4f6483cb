// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// idle is scenario 9: a backend closes idle connections just when they are used.
func idle() *scenario {
	kept := map[string]map[string]string{"weir": {"pool": "upstream: {max_idle: 256}"}}
	sc := &scenario{
		name:    "idle",
		title:   "Backends close connections that are idle for so long, and requests come at just that moment: 200 at once, within 15 ms of it, ten times, GET and POST.",
		promise: "No request fails, no POST is executed twice. Against 65 s weir closes first.",
	}
	for _, after := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second} {
		sc.cases = append(sc.cases, scase{
			name: after.String(), what: fmt.Sprintf("idle for %s", after), backends: 2, long: after > 2*time.Second,
			settings: "idle=" + after.String(), extra: kept,
			run: func(e *run) error { return runIdle(e, after) },
		})
	}
	sc.cases = append(sc.cases, scase{name: "65s", what: "idle for 65 s", subjects: []string{"weir"}, backends: 2, long: true,
		settings: "idle=65s", extra: kept, run: runIdleLong})
	return sc
}

func runIdle(e *run, after time.Duration) error {
	l := &load{addr: e.subject.addr, posts: .5, seed: 1}
	l.prepare()
	e.loads = append(e.loads, l)
	at := time.Now().Add(100 * time.Millisecond)
	rounds := 11
	if e.short {
		rounds = 5
	}
	for range rounds {
		l.burst(200, at, 15*time.Millisecond)
		at = time.Now().Add(after)
		if e.ctx.Err() != nil {
			return e.ctx.Err()
		}
	}
	all, err := e.count()
	if err != nil {
		return err
	}
	entries, err := e.ledger()
	if err != nil {
		return err
	}
	n := map[string]int{}
	for _, x := range entries {
		n[x.kind]++
	}
	o := e.outcome
	o.figure("connections", "", float64(n[connOpened]))
	o.figure("closed by a backend", "", float64(n[connTired]))
	o.atMost("GET that failed", float64(badOf(all, "GET")), 0)
	o.atMost("POST that failed", float64(badOf(all, "POST")), 0)
	o.atMost("POST executed twice", float64(o.Twice), 0)
	return nil
}

func runIdleLong(e *run) error {
	l := &load{addr: e.subject.addr, posts: .5, seed: 1}
	l.prepare()
	e.loads = append(e.loads, l)
	l.burst(100, time.Now().Add(100*time.Millisecond), 15*time.Millisecond)
	e.sleep(58 * time.Second)
	if _, err := e.count(); err != nil {
		return err
	}
	entries, err := e.ledger()
	if err != nil {
		return err
	}
	var left, tired int
	for _, x := range entries {
		switch x.kind {
		case connLeft:
			left++
		case connTired:
			tired++
		}
	}
	o := e.outcome
	o.figure("closed by a backend", "", float64(tired))
	o.atMost("errors", float64(o.Errors), 0)
	o.atMost("connections closed by a backend", float64(tired), 0)
	o.atLeast("connections closed by weir", float64(left), 1)
	return nil
}
