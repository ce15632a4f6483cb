// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// half is scenario 2: errors that a check does not see, and errors that are the
// fault of who asks.
func half() *scenario {
	answers := scase{name: "answers", what: "half of one backend's answers are 500", backends: 6, settings: "delay=5ms", run: halfAnswers}
	return &scenario{
		name:    "half",
		title:   "/readyz says 200 all the while. Six backends, two clients with 120 requests per second each.",
		promise: "A backend of which half the answers are 500 leaves rotation, alone. One client that asks for what fails everywhere ejects nobody.",
		cases: append([]scase{
			answers,
			{name: "poison", what: "one more client asks 60 times a second for a URL that fails everywhere", backends: 6, settings: "delay=5ms", run: halfPoison},
		}, changed(answers, "restart")...),
	}
}

func halfAnswers(e *run) error {
	e.send(&load{from: "127.0.0.2", rate: 120})
	e.send(&load{from: "127.0.0.3", rate: 120})
	e.pass(2*time.Second, time.Second)
	e.mark("fault")
	if err := e.fleet[0].tell("set errors=0.5"); err != nil {
		return err
	}
	e.pass(6*time.Second, 4*time.Second)
	if err := e.disturb(); err != nil {
		return err
	}
	e.pass(10*time.Second, 4*time.Second)
	all, err := e.count()
	if err != nil {
		return err
	}
	o := e.outcome
	at, ok := e.watch.outAfter("b1", e.when("fault"))
	if ok {
		o.figure("out of rotation", "s", at.Sub(e.when("fault")).Seconds())
	}
	settled := 8 * time.Second
	if e.short {
		settled = 5 * time.Second
	}
	late := within(all, e.when("fault").Add(settled), time.Now())
	o.figure("late errors", "", float64(bad(late)))
	o.figure("other backends taken out", "", float64(e.outOf(e.fleet[1:])))
	o.atMost(fmt.Sprintf("errors later than %s", settled), float64(bad(late)), 0)
	o.atMost("other backends taken out", float64(e.outOf(e.fleet[1:])), 0)
	return nil
}

func halfPoison(e *run) error {
	e.send(&load{from: "127.0.0.2", rate: 120})
	e.send(&load{from: "127.0.0.3", rate: 120})
	e.sleep(time.Second)
	e.mark("fault")
	poison := &load{addr: e.subject.addr, from: "127.0.0.4", path: "/poison", rate: 60, seed: 99}
	poison.start()
	e.pass(16*time.Second, 6*time.Second)
	poisoned := poison.end()
	all, err := e.count()
	if err != nil {
		return err
	}
	o := e.outcome
	o.figure("backends taken out", "", float64(e.outOf(e.fleet)))
	o.figure("poisonous requests", "", float64(len(poisoned)))
	o.atMost("backends taken out", float64(e.outOf(e.fleet)), 0)
	o.atMost("errors of the other clients", float64(bad(all)), 0)
	return nil
}

// outOf counts how often backends left rotation since the case began.
func (e *run) outOf(some []*backend) (n int) {
	for _, b := range some {
		n += e.watch.leftRotation(b.name, e.began)
	}
	return n
}
