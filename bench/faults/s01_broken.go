// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"syscall"
	"time"
)

// broken is scenario 1: one of three backends fails in every way there is.
func broken() *scenario {
	sc := &scenario{
		name:    "broken",
		title:   "One of three backends fails, for six seconds, at 250 requests per second of which a quarter are POST.",
		promise: "No GET fails unless an answer had begun, no POST is executed twice, and a cut answer is never passed off as a whole one.",
	}
	for _, f := range brokenFaults() {
		sc.cases = append(sc.cases, scase{name: f.name, what: f.what, settings: "delay=5ms", run: func(e *run) error {
			victim := e.fleet[0]
			e.send(&load{rate: 250, posts: .25})
			e.pass(1500*time.Millisecond, time.Second)
			e.mark("fault")
			if err := f.fault(victim); err != nil {
				return err
			}
			e.pass(6*time.Second, 3*time.Second)
			e.mark("repair")
			if err := f.repair(victim); err != nil {
				return err
			}
			e.pass(5*time.Second, 2*time.Second)
			return e.judgeBroken(victim, f.gets, f.posts, f.out)
		}})
	}
	return sc
}

func (e *run) judgeBroken(victim *backend, gets, posts float64, limit time.Duration) error {
	all, err := e.count()
	if err != nil {
		return err
	}
	o := e.outcome
	o.figure("last harm", "s", lastHarm(all, e.when("fault"), time.Second).Seconds())
	out, left := e.watch.outAfter(victim.name, e.when("fault"))
	switch {
	case left:
		o.figure("out of rotation", "s", out.Sub(e.when("fault")).Seconds())
		if limit > 0 {
			e.soon("seconds until it is out of rotation", out.Sub(e.when("fault")).Seconds(), limit.Seconds())
		}
	case limit > 0 && e.subject.name != "nginx":
		o.atLeast("times that it left rotation", 0, 1)
	}
	at, ok, err := e.firstWork(victim, e.when("repair"))
	if err != nil {
		return err
	}
	if ok {
		o.figure("back", "s", at.Sub(e.when("repair")).Seconds())
	}
	o.atMost("GET that failed", float64(badOf(all, "GET")), gets)
	o.atMost("POST that failed", float64(badOf(all, "POST")), posts)
	o.atMost("POST executed twice", float64(o.Twice), 0)
	return nil
}

// brokenFault is one way to fail, and how much of it a client may see.
type brokenFault struct {
	name, what    string
	fault, repair func(b *backend) error
	gets, posts   float64       // most errors
	out           time.Duration // most time until it takes no new work; 0: it may go on
}

// A POST that a backend may have begun cannot be sent again, so those under way
// fail; so does a GET whose answer has begun. Five bad answers in a row eject;
// while there is silence only probes tell, within 2.5 s (weir check prints that).
func brokenFaults() []brokenFault {
	tell := func(command string) func(*backend) error {
		return func(b *backend) error { return b.tell(command) }
	}
	traffic := func(mode string) (fault, repair func(*backend) error) {
		return tell("set traffic=" + mode), tell("set traffic=ok")
	}
	all := []brokenFault{
		{name: "kill", what: "killed (kill -9), started again", posts: 12, out: time.Second,
			fault: func(b *backend) error { b.kill(); return nil }, repair: (*backend).start},
		{name: "stop", what: "stopped (SIGSTOP), continued", posts: 80, out: 3 * time.Second,
			fault:  func(b *backend) error { return b.signal(syscall.SIGSTOP) },
			repair: func(b *backend) error { return b.signal(syscall.SIGCONT) }},
		{name: "refuse", what: "refuses connections", posts: 12, out: time.Second, fault: tell("refuse"), repair: tell("listen")},
		{name: "unreachable", what: "answers no SYN, as a host without power", posts: 80, out: 3 * time.Second, fault: tell("vanish"),
			repair: func(b *backend) error { return errors.Join(b.tell("listen"), b.tell("set traffic=ok ready_drop=0")) }},
	}
	for _, m := range []brokenFault{
		{name: "silent", posts: 80, out: 3 * time.Second},
		{name: "reset_before", posts: 20, out: time.Second},
		{name: "reset_mid", gets: 20, posts: 20, out: time.Second},
		{name: "garbage", posts: 20, out: time.Second},
		{name: "truncated", gets: 20, posts: 20, out: time.Second},
		// Two answers at once on a connection that was used before: which of them is
		// the request's cannot be known, so its first POST fails.
		{name: "overlong", posts: 12},
		{name: "trickle", posts: 80, out: 6 * time.Second},
	} {
		m.what = modes[m.name]
		m.fault, m.repair = traffic(m.name)
		all = append(all, m)
	}
	return all
}
