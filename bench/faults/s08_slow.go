// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// slow is scenario 8: one of six backends runs at 30 % of its speed.
func slow() *scenario {
	sc := &scenario{
		name:    "slow",
		title:   "One of six backends runs at 30 % of its speed, at 70 % of the load that six good ones can do. Passive checks are off, so that only the policies are compared.",
		promise: "p99 of p2c, least_request and peak_ewma is at most a quarter of that of round_robin.",
		after:   compareSlow,
	}
	for _, p := range []struct {
		policy, nginx, haproxy string
		subjects               []string
	}{
		{policy: "round_robin", nginx: "# round robin", haproxy: "roundrobin"},
		{policy: "p2c", nginx: "random two least_conn", haproxy: "random(2)"},
		{policy: "least_request", nginx: "least_conn", haproxy: "leastconn"},
		{policy: "peak_ewma", subjects: []string{"weir"}},
	} {
		sc.cases = append(sc.cases, scase{
			name: p.policy, what: p.policy, subjects: p.subjects, backends: 6, settings: "delay=45ms exp=true workers=2",
			extra: map[string]map[string]string{
				"weir":    {"balance": p.policy, "health": "passive: off", "answer": "30s", "top": "check: {silence: [passive_off]}"},
				"nginx":   {"balance": p.nginx, "answer": "30s"},
				"haproxy": {"balance": p.haproxy, "answer": "30s"},
			},
			run: runSlow,
		})
	}
	return sc
}

func runSlow(e *run) error {
	if err := e.fleet[0].tell("set speed=0.3"); err != nil {
		return err
	}
	// 6 x 2 workers of 45 ms do 267 requests per second.
	l := e.send(&load{rate: 187, patient: 40 * time.Second})
	e.sleep(14 * time.Second)
	l.end()
	if _, err := e.count(); err != nil {
		return err
	}
	entries, err := e.ledger(e.fleet[0])
	if err != nil {
		return err
	}
	n := 0
	for _, x := range entries {
		if x.kind == gotRequest {
			n++
		}
	}
	e.outcome.figure("part of the slow one", "%", 100*float64(n)/float64(max(1, e.outcome.Requests)))
	e.outcome.atMost("errors", float64(e.outcome.Errors), 0)
	return nil
}

// compareSlow holds each policy against round_robin of the same balancer.
func compareSlow(all []*outcome) {
	base := map[string]float64{}
	for _, o := range all {
		if o.Case == "round_robin" {
			base[o.Subject] = o.P99
		}
	}
	for _, o := range all {
		if b := base[o.Subject]; o.Case != "round_robin" && b > 0 {
			o.figure("p99 / round_robin's", "x", o.P99/b)
			o.atMost("p99 over that of round_robin", o.P99/b, .25)
		}
	}
}
