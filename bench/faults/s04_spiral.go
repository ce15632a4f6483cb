// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"time"
)

// Six backends with six workers each and 100 ms of work do 360 requests per second.
const spiralCapacity = 360

// spiral is scenario 4: more arrives than can be done, and checks wait in the
// same line as requests.
func spiral() *scenario {
	one := func(name, what, weir string, short bool) scase {
		return scase{name: name, what: what, backends: 6, settings: "delay=100ms workers=6 ready_work=true",
			extra: map[string]map[string]string{
				"weir":    {"pool": weir, "top": "check: {silence: [single_backend]}"},
				"nginx":   {"server": "max_conns=8"},
				"haproxy": {"server": "maxconn 8"},
			},
			run: func(e *run) error { return runSpiral(e, short) }}
	}
	sc := &scenario{
		name:    "spiral",
		title:   "For 10 s 120 % of what the backends can do arrives, and /readyz waits for a worker as requests do. Six backends with 6 workers each.",
		promise: "Nobody is evicted, at least 90 % of capacity is done, the excess is refused with Retry-After, at once where nothing waits, and all is well again when the overload ends.",
		cases: []scase{
			one("refuse", "at most 8 requests for each backend, and nothing waits (queue: 0)", "limits: {requests: 8, queue: 0}", true),
			one("queue", "at most 8 requests for each backend, otherwise defaults", "limits: {requests: 8}", false),
			one("adaptive", "the limit finds itself (adaptive: on)", "limits: {adaptive: on}", false),
		},
	}
	sc.cases[2].subjects = []string{"weir"} // the others have none that finds itself
	return sc
}

func runSpiral(e *run, atOnce bool) error {
	l := e.send(&load{rate: .6 * spiralCapacity})
	e.pass(3*time.Second, 2*time.Second)
	e.mark("fault")
	l.setRate(1.2 * spiralCapacity)
	e.pass(10*time.Second, 5*time.Second)
	e.mark("repair")
	l.setRate(.6 * spiralCapacity)
	e.pass(5*time.Second, 2*time.Second)
	all, err := e.count()
	if err != nil {
		return err
	}
	o := e.outcome
	var refused []time.Duration
	done, silent, other := 0, 0, 0
	from, to := e.when("fault").Add(time.Second), e.when("repair")
	for _, s := range all {
		end := s.due.Add(s.took)
		switch {
		case s.bad == "":
			if end.After(from) && end.Before(to) {
				done++
			}
		case strings.HasPrefix(s.bad, "503"):
			refused = append(refused, s.took-s.late) // the client's own lateness left out
			if !s.retryAfter {
				silent++
			}
		default:
			other++
		}
	}
	goodput := float64(done) / to.Sub(from).Seconds() / spiralCapacity
	o.figure("goodput of capacity", "%", 100*goodput)
	o.figure("refused", "", float64(len(refused)))
	o.figure("p50 of refusals", "ms", quantile(refused, .5))
	o.figure("p99 of refusals", "ms", quantile(refused, .99))
	o.figure("evictions", "", float64(e.outOf(e.fleet)))
	o.figure("recovery", "s", lastHarm(all, to, time.Second).Seconds())
	o.atMost("evictions", float64(e.outOf(e.fleet)), 0)
	least := .9
	if e.short { // five seconds beside other cases
		least = .7
	}
	o.atLeast("goodput as a part of capacity", goodput, least)
	o.atMost("refusals without Retry-After", float64(silent), 0)
	o.atMost("errors that are no refusals", float64(other), 0)
	if atOnce {
		if e.short { // beside other cases the client itself takes its time
			e.soon("milliseconds of a refusal (p50)", quantile(refused, .5), 10)
		} else {
			e.soon("milliseconds of a refusal (p99)", quantile(refused, .99), 10)
		}
		e.soon("seconds until the last error after the overload", lastHarm(all, to, time.Second).Seconds(), .5)
	} else {
		e.soon("seconds until the last error after the overload", lastHarm(all, to, time.Second).Seconds(), 3)
	}
	return nil
}
