// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"
)

// fleet is scenario 10: much of the fleet is gone at once, and comes back.
func fleet() *scenario {
	sc := &scenario{
		name:    "fleet",
		title:   "So many of ten backends are killed at once, and started again 6 s later, at 200 requests per second of which a quarter are POST.",
		promise: "While anybody is left errors end within a second, whatever the panic policy; with backups they do even when nobody is. When backends are back, so is the pool, within 3 s.",
	}
	for _, gone := range []int{5, 9, 10} {
		for _, then := range []string{"serve", "shed", "failover"} {
			c := scase{name: fmt.Sprintf("%d%%-%s", gone*10, then), what: fmt.Sprintf("%d %% gone, then: %s", gone*10, then),
				backends: 10, settings: "delay=5ms",
				extra: map[string]map[string]string{"weir": {"health": "panic: {then: " + then + "}"}},
				run:   func(e *run) error { return runFleet(e, gone) }}
			switch then {
			case "shed":
				c.subjects = []string{"weir"} // the others have no such choice
			case "failover":
				c.backups = 2
				c.extra["nginx"] = map[string]string{"balance": "least_conn"} // random has no backups there
				c.what += ", with two backups"
			}
			sc.cases = append(sc.cases, c)
		}
	}
	for _, c := range sc.cases {
		if c.name == "90%-serve" {
			sc.cases = append(sc.cases, changed(c, "upgrade")...)
		}
	}
	return sc
}

func runFleet(e *run, gone int) error {
	e.send(&load{rate: 200, posts: .25})
	e.sleep(1500 * time.Millisecond)
	e.mark("fault")
	for _, b := range e.fleet[:gone] {
		b.kill()
	}
	e.pass(3*time.Second, 1500*time.Millisecond)
	if err := e.disturb(); err != nil {
		return err
	}
	e.pass(3*time.Second, 1500*time.Millisecond)
	e.mark("repair")
	var errs []error
	for _, b := range e.fleet[:gone] {
		errs = append(errs, b.start())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	e.pass(6*time.Second, 3500*time.Millisecond)
	all, err := e.count()
	if err != nil {
		return err
	}
	o, fault, repair := e.outcome, e.when("fault"), e.when("repair")
	harm := lastHarm(within(all, fault, repair), fault, time.Second).Seconds()
	recovery := lastHarm(all, repair, time.Second).Seconds()
	o.figure("last harm", "s", harm)
	o.figure("recovery", "s", recovery)
	if gone < 10 || len(e.backups) > 0 {
		e.soon("seconds until the last error of the outage", harm, 1)
		e.soon("seconds until the last error after the return", recovery, 0)
	} else {
		e.soon("seconds until the last error after the return", recovery, 3)
	}
	o.atMost("POST executed twice", float64(o.Twice), 0)
	return nil
}
