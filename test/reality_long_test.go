// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRealityAgreesLong does a minute of each, for every policy.
func TestRealityAgreesLong(t *testing.T) {
	for _, policy := range []string{"p2c", "round_robin", "random", "least_request", "peak_ewma", "ring_hash", "rendezvous", "maglev"} {
		t.Run(policy, func(t *testing.T) {
			es := experiments()
			slow, roll := es[0], es[len(es)-1]
			if policy == "round_robin" || policy == "random" {
				slow = es[2]
			}
			slow.name, slow.balance, slow.lasts = policy+", one slow", policy, time.Minute
			roll.name, roll.balance, roll.lasts = policy+", deploy", policy, time.Minute
			roll.deploy = &deploy{from: 2 * time.Second, every: 9 * time.Second, drain: 3 * time.Second, look: 3 * time.Second}
			roll.slowStart = "{window: 4s, from: 10%}"
			switch policy {
			case "p2c", "least_request", "peak_ewma":
			default: // they do not adapt, and a queue that grows for ever says little
				slow.rate = 90
			}
			agree(t, []*experiment{slow, roll})
		})
	}
}

// TestRealityRules plays reality with the simulator itself: runs with other seeds
// are judged beside 50 of the same world, and of the wrong one.
func TestRealityRules(t *testing.T) {
	const runs, looks = 600, 2000
	o := &overhead{boots: []time.Duration{50 * time.Millisecond}}
	dice := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		o.requests = append(o.requests, time.Duration(dice.ExpFloat64()*float64(time.Millisecond)))
	}
	es := experiments()
	all := make([][]reading, runs)
	each := make([][][]reading, len(es))
	for i, e := range es {
		each[i] = e.imagineAll(t, imaginary(6), o, 1000, runs)
		for j := range all {
			all[j] = append(all[j], each[i][j]...)
		}
	}
	some := func(from [][]reading, n int) (out [][]reading) {
		for _, i := range dice.Perm(len(from))[:n] {
			out = append(out, from[i])
		}
		return out
	}
	lost, far := 0, map[string]int{}
	for range looks {
		s := some(all, seeds+1)
		v := compare(s[0], s[1:])
		if !v.ok() {
			lost++
		}
		for _, f := range v.far {
			name, _, _ := strings.Cut(f, " (")
			far[name]++
		}
	}
	t.Logf("right worlds: %d of %d looks lost; far off were %v", lost, looks, far)
	if lost > looks*2/100 {
		t.Errorf("%d of %d looks at a right world were lost: two in a row are no longer rare", lost, looks)
	}
	for i, e := range es {
		e.speeds = slices.Clone(e.speeds)
		e.wrong(e)
		worlds, won := e.imagineAll(t, imaginary(6), o, 1, 200), 0
		for range looks {
			if compare(some(each[i], 1)[0], some(worlds, seeds)).ok() {
				won++
			}
		}
		t.Logf("%s: %d of %d looks at a wrong world not seen", e.name, won, looks)
		if won > 0 {
			t.Errorf("%s: %d of %d looks at a wrong world passed", e.name, won, looks)
		}
	}
}
