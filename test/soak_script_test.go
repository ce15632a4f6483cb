// SPDX-License-Identifier: Apache-2.0

package test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// soakEvent is one thing that happens in the soak, to a backend or to weir.
type soakEvent struct {
	at      time.Duration
	what    string // an ail, "heal", or an operator's action
	pool    int    // -1: weir as a whole
	backend int
	p       float64 // of an ail
	n       int     // a number for the action
}

func (e soakEvent) String() string {
	place := ""
	if e.pool >= 0 {
		place = fmt.Sprintf(" pool %d backend %d", e.pool, e.backend)
	}
	return fmt.Sprintf("%s %s%s p=%.1f n=%d", e.at.Round(time.Millisecond), e.what, place, e.p, e.n)
}

// soakPace says how storms and calm alternate.
type soakPace struct {
	storm, calm time.Duration // at most; a pool has its own phases
	operator    time.Duration // mean time between actions
	upgrade     time.Duration // at least between two
	changes     bool          // pools come and go
}

// soakScript draws all that happens from a seed: the same seed, the same script,
// whatever becomes of it. In a storm of a pool its backends ail, each at most of
// one thing at a time; operators act on pools in a storm and on weir at any time.
func soakScript(seed uint64, length time.Duration, pools int, pace soakPace) []soakEvent {
	var all []soakEvent
	storms := make([][]span, pools)
	begin := time.Time{} // spans want instants; only differences count
	for p := range pools {
		dice := rand.New(rand.NewPCG(seed, uint64(p)))
		at := time.Duration(dice.Float64() * float64(pace.storm/2))
		for at < length {
			end := min(at+pace.storm/2+time.Duration(dice.Float64()*float64(pace.storm/2)), length)
			all = append(all, stormOf(dice, p, at, end)...)
			storms[p] = append(storms[p], span{begin.Add(at), begin.Add(end)})
			at = end + pace.calm*3/4 + time.Duration(dice.Float64()*float64(pace.calm/4))
		}
	}
	all = append(all, operatorOf(rand.New(rand.NewPCG(seed, 1000)), length, storms, pace)...)
	slices.SortStableFunc(all, func(a, b soakEvent) int { return cmp.Compare(a.at, b.at) })
	return all
}

// stormOf is one storm of one pool.
func stormOf(dice *rand.Rand, p int, at, end time.Duration) (all []soakEvent) {
	kinds := slices.Concat(hardAils, softAils)
	busy := make([]time.Duration, soakBackends) // until when each ails
	for ; at < end; at += time.Duration(dice.ExpFloat64() * float64(1200*time.Millisecond)) {
		kind := kinds[dice.IntN(len(kinds))]
		share := []float64{1, 1, .5, .2}[dice.IntN(4)]
		lasts := 300*time.Millisecond + time.Duration(dice.Float64()*float64(6*time.Second))
		first, n := dice.IntN(soakBackends), 1
		if dice.IntN(8) == 0 { // several at once, perhaps all
			n = 2 + dice.IntN(soakBackends-1)
		}
		for i := range n {
			b := (first + i) % soakBackends
			if busy[b] > at {
				continue
			}
			busy[b] = min(at+lasts, end)
			all = append(all, soakEvent{at: at, what: kind, pool: p, backend: b, p: share},
				soakEvent{at: busy[b], what: "heal", pool: p, backend: b})
		}
	}
	return all
}

// operatorOf is what operators do. Each action on a backend is taken back before
// the next one on the same pool.
func operatorOf(dice *rand.Rand, length time.Duration, storms [][]span, pace soakPace) (all []soakEvent) {
	free := make([]time.Duration, len(storms)) // when a pool may be acted on again
	upgraded := -pace.upgrade
	begin := time.Time{}
	actions := []string{"drain", "disable", "weight", "weight", "add", "extra", "reload", "reload", "hup", "broken", "rotate", "upgrade"}
	if pace.changes {
		actions = append(actions, "brief", "retune")
	}
	for at := pace.operator; at < length; at += time.Duration((.3 + dice.ExpFloat64()) * float64(pace.operator) * .7) {
		e := soakEvent{at: at, what: actions[dice.IntN(len(actions))], pool: -1, n: dice.IntN(1000)}
		lasts := time.Second + time.Duration(dice.Float64()*float64(6*time.Second))
		p, b := dice.IntN(len(storms)), dice.IntN(soakBackends)
		switch e.what {
		case "upgrade":
			if at-upgraded < pace.upgrade {
				continue
			}
			upgraded = at
		case "drain", "disable", "weight", "add", "extra":
			in := slices.ContainsFunc(storms[p], func(s span) bool { return s.from.Before(begin.Add(at)) && s.to.After(begin.Add(at+lasts)) })
			if !in || free[p] > at {
				continue
			}
			free[p] = at + lasts + time.Second
			e.pool, e.backend = p, b
			all = append(all, soakEvent{at: at + lasts, what: "un" + e.what, pool: p, backend: b})
		}
		all = append(all, e)
	}
	return all
}
