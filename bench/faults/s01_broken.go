// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	for _, f := range []struct {
		name, what    string
		fault, repair func(b *backend) error
		posts, gets   float64 // most errors
		out           time.Duration
	}{
		{name: "kill", what: "killed (kill -9), started again",
			fault:  func(b *backend) error { b.kill(); return nil },
			repair: (*backend).start, posts: 12, out: 3 * time.Second},
	} {
		sc.cases = append(sc.cases, scase{name: f.name, what: f.what, settings: "delay=5ms", run: func(e *run) error {
			victim := e.fleet[0]
			e.send(250, .25)
			e.sleep(1500 * time.Millisecond)
			e.mark("fault")
			if err := f.fault(victim); err != nil {
				return err
			}
			e.sleep(6 * time.Second)
			e.mark("repair")
			if err := f.repair(victim); err != nil {
				return err
			}
			e.sleep(5 * time.Second)
			return e.judgeBroken(victim, f.gets, f.posts, f.out)
		}})
	}
	return sc
}

func (e *run) judgeBroken(victim *backend, gets, posts float64, out time.Duration) error {
	all, err := e.count()
	if err != nil {
		return err
	}
	o := e.outcome
	o.figure("last harm", "s", e.lastHarm(all, e.when("fault"), time.Second).Seconds())
	if at, ok := e.watch.outAfter(victim.name, e.when("fault")); ok {
		o.figure("out of rotation", "s", at.Sub(e.when("fault")).Seconds())
		o.atMost("seconds until it is out of rotation", at.Sub(e.when("fault")).Seconds(), out.Seconds())
	} else if e.subject.name != "nginx" {
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

var _ = syscall.SIGSTOP
