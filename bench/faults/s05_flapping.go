// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// flapping is scenario 5: probes fail, servers do not.
func flapping() *scenario {
	one := func(name, what, weir, top, haproxy string) scase {
		return scase{name: name, what: what, backends: 6, settings: "delay=5ms ready_drop=0.33",
			subjects: []string{"weir", "haproxy"}, // nginx has no probes
			extra: map[string]map[string]string{
				"weir":    {"active": weir, "top": top},
				"haproxy": {"check": haproxy},
			},
			run: runFlapping}
	}
	return &scenario{
		name:    "flapping",
		title:   "A third of the probes gets no answer, while all requests do. Six backends, 400 requests per second, a probe every 500 ms, for 20 s.",
		promise: "No user sees an error, and a real answer outvotes a probe without one: nobody is taken out.",
		cases: []scase{
			one("1-1", "fall: 1, rise: 1", "interval: 500ms, fast_interval: 200ms, timeout: 200ms, fall: 1, rise: 1", "check: {silence: [fall_1]}", "inter 500ms fastinter 200ms fall 1 rise 1"),
			one("3-2", "fall: 3, rise: 2", "interval: 500ms, fast_interval: 200ms, timeout: 200ms", "", "inter 500ms fastinter 200ms fall 3 rise 2"),
		},
	}
}

func runFlapping(e *run) error {
	e.send(&load{rate: 400, posts: .25})
	e.sleep(time.Second) // what probes said before there was traffic is not what this is about
	e.began = time.Now()
	e.pass(20*time.Second, 7*time.Second)
	if _, err := e.count(); err != nil {
		return err
	}
	o := e.outcome
	o.figure("times that a backend was taken out", "", float64(e.outOf(e.fleet)))
	o.figure("fewest backends at once", "", float64(e.watch.fewest(e.began)))
	o.atMost("errors", float64(o.Errors), 0)
	e.soon("times that a backend was taken out", float64(e.outOf(e.fleet)), 0)
	return nil
}
