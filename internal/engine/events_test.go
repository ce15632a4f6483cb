// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// What a process hands over comes before what its successor has seen, by time and
// not by who saw it, under numbers without a gap; of too many the last stay.
func TestEventsInherited(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	said := func(r *events) string {
		var out []string
		for i, e := range r.since(0) {
			if e.Seq != uint64(i) && r.n <= eventsKept {
				t.Errorf("event %d has number %d", i, e.Seq)
			}
			out = append(out, e.Text)
		}
		return strings.Join(out, " ")
	}
	var r events
	r.add(Event{At: at(3), Text: "own"})
	r.inherit([]Event{{Seq: 7, At: at(1), Text: "a"}, {Seq: 8, At: at(2), Text: "b"}, {Seq: 9, At: at(4), Text: "late"}})
	r.add(Event{At: at(5), Text: "next"})
	if got := said(&r); got != "a b own late next" {
		t.Errorf("remembered: %s", got)
	}
	var many []Event
	for i := range eventsKept + 10 {
		many = append(many, Event{At: at(i), Text: fmt.Sprint(i)})
	}
	var full events
	full.add(Event{At: at(1_000_000), Text: "own"})
	full.inherit(many)
	if list := full.since(0); len(list) != eventsKept || list[0].Text != "11" || list[eventsKept-1].Text != "own" {
		t.Errorf("%d, from %+v", len(list), list[0])
	}
}
