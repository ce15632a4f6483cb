// SPDX-License-Identifier: Apache-2.0

package main

import (
	"syscall"
	"time"
)

// deploy is scenario 7: all backends are replaced under load, one after another.
func deploy() *scenario {
	// 6 x 4 workers of 40 ms do 600 requests per second.
	const common = "delay=40ms exp=true workers=4 cold=4s cold_from=0.3"
	quick := map[string]map[string]string{
		"weir":    {"active": "interval: 1s, fast_interval: 300ms, timeout: 300ms"},
		"haproxy": {"check": "inter 1s fastinter 300ms fall 3 rise 2"},
	}
	drain := scase{name: "drain", what: "each says 503 on /readyz for 3 s, then finishes and exits", backends: 6, settings: common + " drain=3s", extra: quick,
		run: func(e *run) error { return runDeploy(e, 3500*time.Millisecond, 0) }}
	return &scenario{
		name:    "deploy",
		title:   "Six backends at 40 % of what they can do are stopped by SIGTERM and started again, one after another; newcomers begin at 30 % of their speed.",
		promise: "No request fails while backends drain, and p99 stays within 1.5 times that of quiet seconds. Backends that just exit cost at most the POST under way.",
		cases: append([]scase{
			drain,
			{name: "exit", what: "each just exits", backends: 6, settings: common, extra: quick,
				run: func(e *run) error { return runDeploy(e, 6500*time.Millisecond, 30) }},
		}, changed(drain)...),
	}
}

func runDeploy(e *run, pause time.Duration, posts float64) error {
	e.send(&load{rate: 250, posts: .25})
	e.sleep(5 * time.Second) // the whole fleet is cold: not what is compared with
	e.mark("steady")
	e.sleep(8 * time.Second)
	e.mark("deploy")
	for i, b := range e.fleet {
		if i == 3 {
			if err := e.disturb(); err != nil {
				return err
			}
		}
		if err := b.signal(syscall.SIGTERM); err != nil {
			return err
		}
		b.wait()
		e.sleep(300 * time.Millisecond)
		if err := b.start(); err != nil {
			return err
		}
		e.sleep(pause)
	}
	e.mark("over")
	all, err := e.count()
	if err != nil {
		return err
	}
	o := e.outcome
	before := quantile(took(within(all, e.when("steady"), e.when("deploy"))), .99)
	during := quantile(took(within(all, e.when("deploy"), e.when("over"))), .99)
	o.figure("p99 before", "ms", before)
	o.figure("p99 during", "ms", during)
	o.atMost("GET that failed", float64(badOf(all, "GET")), 0)
	o.atMost("POST that failed", float64(badOf(all, "POST")), posts)
	o.atMost("POST executed twice", float64(o.Twice), 0)
	if before > 0 {
		o.figure("p99 during / before", "x", during/before)
		o.atMost("p99 during over before", during/before, 1.5)
	}
	return nil
}
