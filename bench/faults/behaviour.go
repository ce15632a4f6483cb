// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// behaviour is what a backend does at the moment; a command of its parent
// replaces single values. The zero value answers at once, with 200.
type behaviour struct {
	traffic   string        // a mode of modes; "" is ok
	ready     int           // status of /readyz; 0 is 200
	readyDrop float64       // share of probes that get no answer
	readyWork bool          // probes wait for a worker, as requests do
	delay     time.Duration // work of a request
	exp       bool          // work is distributed exponentially about delay
	workers   int           // requests worked on at once; 0: any number
	errors    float64       // share of answers that have status code
	code      int           // of those; 0 is 500
	idle      time.Duration // kept connections are closed after so long; 0: never
	speed     float64       // of work; 0 is 1
	cold      time.Duration // after its start it takes so long to come to full speed
	coldFrom  float64       // speed at the start
	drain     time.Duration // on SIGTERM: /readyz says 503 for so long, then it ends in order; 0: it just exits
}

// modes of traffic that are no answers of a good server.
var modes = map[string]string{
	"ok":           "answers",
	"silent":       "reads and never answers",
	"reset_before": "resets after the request, before an answer",
	"reset_mid":    "resets in the middle of the answer",
	"garbage":      "answers with bytes that are no HTTP",
	"truncated":    "ends in order before the announced length",
	"overlong":     "sends a second answer that nobody asked for",
	"trickle":      "sends the head of the answer byte by byte",
}

// set changes values as in "traffic=garbage ready=503".
func (b *behaviour) set(text string) error {
	for word := range strings.FieldsSeq(text) {
		k, v, _ := strings.Cut(word, "=")
		var err error
		switch k {
		case "traffic":
			b.traffic = v
			if modes[v] == "" {
				err = fmt.Errorf("no mode is called %q", v)
			}
		case "ready":
			b.ready, err = strconv.Atoi(v)
		case "ready_drop":
			b.readyDrop, err = strconv.ParseFloat(v, 64)
		case "ready_work":
			b.readyWork, err = strconv.ParseBool(v)
		case "delay":
			b.delay, err = time.ParseDuration(v)
		case "exp":
			b.exp, err = strconv.ParseBool(v)
		case "workers":
			b.workers, err = strconv.Atoi(v)
		case "errors":
			b.errors, err = strconv.ParseFloat(v, 64)
		case "code":
			b.code, err = strconv.Atoi(v)
		case "idle":
			b.idle, err = time.ParseDuration(v)
		case "speed":
			b.speed, err = strconv.ParseFloat(v, 64)
		case "cold":
			b.cold, err = time.ParseDuration(v)
		case "cold_from":
			b.coldFrom, err = strconv.ParseFloat(v, 64)
		case "drain":
			b.drain, err = time.ParseDuration(v)
		default:
			err = fmt.Errorf("unknown value %q", k)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	return nil
}

// work returns how long a request takes that begins up after the start.
func (b *behaviour) work(up time.Duration) time.Duration {
	d := float64(b.delay)
	if b.exp {
		d *= rand.ExpFloat64()
	}
	speed := 1.0
	if b.speed > 0 {
		speed = b.speed
	}
	if up < b.cold {
		speed *= b.coldFrom + (1-b.coldFrom)*up.Seconds()/b.cold.Seconds()
	}
	return time.Duration(d / speed)
}

// answer draws the status of an answer.
func (b *behaviour) answer() int {
	if b.errors > 0 && rand.Float64() < b.errors {
		if b.code != 0 {
			return b.code
		}
		return 500
	}
	return 200
}
