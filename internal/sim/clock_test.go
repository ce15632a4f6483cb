// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"testing"

	"github.com/weirlb/weir/balance"
)

// FuzzAgenda compares the heap with a list that is searched from end to end, over
// any sequence of planning, planning anew, cancelling and taking.
func FuzzAgenda(f *testing.F) {
	f.Add([]byte{0, 5, 1, 3, 2, 5, 200, 0, 201, 3})
	f.Add([]byte{3, 9, 4, 9, 5, 9, 3, 9, 130, 4, 255, 0, 255, 0, 255, 0})
	f.Fuzz(func(t *testing.T, moves []byte) {
		const n = 32
		var timers [n]timer
		type planned struct {
			at  balance.Instant
			seq int
			i   int
		}
		var list []planned
		var a agenda
		first := func() int {
			best := -1
			for i, p := range list {
				if best < 0 || p.at < list[best].at || p.at == list[best].at && p.seq < list[best].seq {
					best = i
				}
			}
			return best
		}
		for step := 0; step+1 < len(moves); step += 2 {
			i, at := int(moves[step])%n, balance.Instant(moves[step+1]%16)
			drop := func() {
				list = slices.DeleteFunc(list, func(p planned) bool { return p.i == i })
			}
			switch {
			case moves[step] < 128:
				a.plan(&timers[i], at)
				drop()
				list = append(list, planned{at, step, i})
			case moves[step] < 192:
				a.cancel(&timers[i])
				drop()
			default:
				got, when := a.take(at)
				k := first()
				if k < 0 || list[k].at > at {
					if got != nil {
						t.Fatalf("step %d: took an event at %d, none is due by %d", step, when, at)
					}
					continue
				}
				if got != &timers[list[k].i] || when != list[k].at {
					t.Fatalf("step %d: took the wrong event, at %d; the first is %+v", step, when, list[k])
				}
				list = slices.Delete(list, k, k+1)
			}
			if len(a.heap) != len(list) {
				t.Fatalf("step %d: %d events planned, not %d", step, len(a.heap), len(list))
			}
			for k := range a.heap {
				if int(a.heap[k].t.pos) != k+1 {
					t.Fatalf("step %d: the event at %d believes to be at %d", step, k+1, a.heap[k].t.pos)
				}
			}
			for i := range timers {
				if is := slices.ContainsFunc(list, func(p planned) bool { return p.i == i }); is != (timers[i].pos != 0) {
					t.Fatalf("step %d: timer %d planned: %v, by the list %v", step, i, !is, is)
				}
			}
		}
	})
}

// TestEqualTimesInOrder: events of one instant happen in the order of planning.
func TestEqualTimesInOrder(t *testing.T) {
	w := NewWorld(1)
	var got []int
	for i := range 100 {
		w.At(5, func() {
			got = append(got, i)
			if i == 3 {
				w.At(0, func() { got = append(got, 100) }) // the past is now
			}
		})
	}
	w.Run(5)
	if len(got) != 101 || !slices.IsSorted(got) {
		t.Errorf("%v", got)
	}
}

func TestEvery(t *testing.T) {
	w := NewWorld(1)
	n := 0
	var stop func()
	stop = w.Every(10, func() {
		if n++; n == 3 {
			stop()
		}
	})
	w.Run(1000)
	if n != 3 || w.Now() != 1000 || w.Events() != 3 {
		t.Errorf("%d times, at %v, %d events", n, w.Now(), w.Events())
	}
}
