// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"slices"
)

// Guard turns findings into a membership that one bad answer cannot ruin. It is
// a pure state machine: what it holds follows from the answers it was given, in
// their order. The zero value holds nobody. It is not safe for concurrent use.
//
// Endpoints that are new, or whose weight, zone or tier changed, count at once.
// Endpoints that an answer lacks leave at once too if they are at most half of
// the pool; if they are more, each of them leaves only when the next answer lacks
// it as well. An answer without endpoints is none, and one that is known to be
// partial (Finding.Err beside Endpoints) neither announces nor confirms that more
// than half leave: what it lacks may be what could not be asked for.
//
// Worked example, a pool of 4:
//
//	answer        lacks    members after   waiting
//	a b c d       -        a b c d         -
//	a b           c d      a b             -         2 of 4 is not more than half
//	e             a b      a b e           a b       2 of 2 is
//	(nothing)     -        a b e           a b       no answer
//	a e           b        a e             -         1 of 3: at once; a is back
//	f             a e      a e f           a e       2 of 2
//	f             a e      f               -         confirmed
//
// Two answers of a source that shows a few of its many endpoints at a time (a
// name server that rotates through subsets) do confirm each other: what a pool
// needs is a source that lists all.
type Guard struct {
	members []Endpoint       // sorted by ID; replaced, never modified
	lacking map[key]struct{} // members that the last whole answer lacked
	held    int              // members that the last answer lacked, whole or not
}

// key is what makes an endpoint the same backend.
type key struct{ id, url string }

func (e *Endpoint) key() key { return key{e.ID, e.URL} }

// Change says what an answer did. Its zero value: nothing.
type Change struct {
	Added, Removed, Updated int
	// Held counts the members that stay although the answer lacks them, until
	// another answer lacks them too.
	Held int
}

// Any reports whether Members is another than before.
func (c Change) Any() bool { return c.Added+c.Removed+c.Updated > 0 }

// Members returns who is in the pool, sorted by ID. The slice is not modified by
// later answers and must not be by the caller.
func (g *Guard) Members() []Endpoint { return g.members }

// Held returns how many members wait for a second answer that lacks them.
func (g *Guard) Held() int { return g.held }

// Answer takes one finding in. beside is how many backends the pool has from
// elsewhere: they count when half of the pool is reckoned. An empty finding
// changes nothing, and the confirmation that is waited for stays waited for.
func (g *Guard) Answer(f Finding, beside int) Change {
	if len(f.Endpoints) == 0 {
		return Change{Held: g.held}
	}
	next := sortedByID(f.Endpoints)
	if g.held == 0 && len(g.lacking) == 0 && slices.Equal(next, g.members) {
		return Change{} // by far the most frequent one
	}
	present := make(map[key]struct{}, len(next))
	for i := range next {
		present[next[i].key()] = struct{}{}
	}
	var gone []Endpoint
	for i := range g.members {
		if _, ok := present[g.members[i].key()]; !ok {
			gone = append(gone, g.members[i])
		}
	}
	partial := f.Err != nil
	lacking := make(map[key]struct{})
	var stay []Endpoint
	if 2*len(gone) > len(g.members)+max(beside, 0) {
		for i := range gone {
			k := gone[i].key()
			_, again := g.lacking[k]
			if partial || !again {
				stay = append(stay, gone[i])
			}
			if partial == again {
				lacking[k] = struct{}{}
			}
		}
	}
	g.lacking = lacking
	kept := make(map[string]struct{}, len(stay)) // ids
	for i := range stay {
		kept[stay[i].ID] = struct{}{}
	}
	// Who stays keeps its id: another backend of that id waits with it.
	next = slices.DeleteFunc(next, func(e Endpoint) bool {
		_, taken := kept[e.ID]
		return taken
	})
	next = sortedByID(append(next, stay...))
	change := compare(g.members, next)
	change.Held = len(stay)
	g.members, g.held = next, len(stay)
	return change
}

// sortedByID returns a sorted copy, with the first of each ID.
func sortedByID(list []Endpoint) []Endpoint {
	out := slices.Clone(list)
	slices.SortStableFunc(out, func(a, b Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(out, func(a, b Endpoint) bool { return a.ID == b.ID })
}

// compare counts what distinguishes two sorted lists.
func compare(before, after []Endpoint) (c Change) {
	old := make(map[key]Endpoint, len(before))
	for i := range before {
		old[before[i].key()] = before[i]
	}
	same := 0
	for i := range after {
		was, ok := old[after[i].key()]
		switch {
		case !ok:
			c.Added++
			continue
		case was != after[i]:
			c.Updated++
		}
		same++
	}
	c.Removed = len(before) - same
	return c
}
