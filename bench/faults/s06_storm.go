// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// storm is scenario 6: half of the answers are errors, and each layer may try again.
func storm() *scenario {
	return &scenario{
		name:    "storm",
		title:   "Half of all answers are 503. Four backends, 300 requests per second, for 12 s.",
		promise: "Backends get at most 1.2 requests for each that the client sent, and at most 1.3 behind three weirs in a row.",
		cases: []scase{
			{name: "one", what: "one balancer", backends: 4, settings: "delay=5ms errors=0.5 code=503",
				run: func(e *run) error { return runStorm(e, e.subject.addr, 1.2) }},
			{name: "three", what: "three of them in a row", backends: 4, settings: "delay=5ms errors=0.5 code=503",
				extra: map[string]map[string]string{"weir": {"top": trusting}},
				run:   runLayers},
		},
	}
}

const trusting = "trusted_weirs: [127.0.0.0/8]"

func runStorm(e *run, addr string, most float64) error {
	e.send(&load{addr: addr, rate: 300})
	e.pass(12*time.Second, 6*time.Second)
	if _, err := e.count(); err != nil {
		return err
	}
	o := e.outcome
	o.figure("errors", "%", 100*float64(o.Errors)/float64(o.Requests))
	o.atMost("requests that backends got for each", o.Sent, most)
	return nil
}

// runLayers puts two more balancers of the same kind in front.
func runLayers(e *run) error {
	addr := e.subject.addr
	for i := range 2 {
		dir := filepath.Join(e.dir, fmt.Sprint("layer", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		extra := map[string]string{}
		if e.subject.name == "weir" {
			extra = map[string]string{"top": trusting, "pool": "weir: true"}
		}
		next := &backend{name: "next", addr: addr}
		s, err := startSubject(e.subject.name, dir, settings{Backends: []*backend{next}, Extra: extra})
		if err != nil {
			return err
		}
		defer s.stop()
		addr = s.addr
	}
	e.sleep(2 * time.Second)
	return runStorm(e, addr, 1.3)
}
