// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// list makes endpoints of words: "a", "a@2" (at another address), "a*3" (with
// weight 3).
func list(words string) (out []Endpoint) {
	for _, w := range strings.Fields(words) {
		e := Endpoint{Weight: 1}
		if id, weight, ok := strings.Cut(w, "*"); ok {
			w, e.Weight = id, uint32(weight[0]-'0')
		}
		id, at, _ := strings.Cut(w, "@")
		e.ID, e.URL = id, "http://"+id+at
		out = append(out, e)
	}
	return out
}

func words(list []Endpoint) string {
	var out []string
	for _, e := range list {
		w := e.ID + strings.TrimPrefix(e.URL, "http://"+e.ID)
		if at := strings.TrimPrefix(e.URL, "http://"+e.ID); at != "" {
			w = e.ID + "@" + at
		}
		if e.Weight != 1 {
			w += fmt.Sprintf("*%d", e.Weight)
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

var errPart = errors.New("a part failed")

func TestGuard(t *testing.T) {
	type step struct {
		answer string // "!" before it: partial
		want   string
		change Change
	}
	for _, c := range []struct {
		name   string
		beside int
		steps  []step
	}{
		{"worked example", 0, []step{
			{"d c b a", "a b c d", Change{Added: 4}},
			{"a b", "a b", Change{Removed: 2}},
			{"e", "a b e", Change{Added: 1, Held: 2}},
			{"", "a b e", Change{Held: 2}},
			{"a e", "a e", Change{Removed: 1}},
			{"f", "a e f", Change{Added: 1, Held: 2}},
			{"f", "f", Change{Removed: 2}},
		}},
		{"an empty answer empties nothing, however often", 0, []step{
			{"a", "a", Change{Added: 1}}, {"", "a", Change{}}, {"", "a", Change{}}, {"", "a", Change{}},
		}},
		{"a glitch is forgotten", 0, []step{
			{"a b c", "a b c", Change{Added: 3}},
			{"a", "a b c", Change{Held: 2}},
			{"a b c", "a b c", Change{}},
			{"a", "a b c", Change{Held: 2}},
			{"a", "a", Change{Removed: 2}},
		}},
		{"only who is lacking twice leaves", 0, []step{
			{"a b c d", "a b c d", Change{Added: 4}},
			{"a", "a b c d", Change{Held: 3}},
			{"b", "a b", Change{Removed: 2, Held: 1}},
			{"b", "b", Change{Removed: 1}},
		}},
		{"one of one", 0, []step{
			{"a", "a", Change{Added: 1}}, {"b", "a b", Change{Added: 1, Held: 1}}, {"b", "b", Change{Removed: 1}},
		}},
		{"others count", 1, []step{
			{"a", "a", Change{Added: 1}}, {"b", "b", Change{Added: 1, Removed: 1}},
		}},
		{"another address is another backend", 0, []step{
			{"a b", "a b", Change{Added: 2}},
			{"a@2 b", "a@2 b", Change{Added: 1, Removed: 1}},
			{"a@3 b@3", "a@2 b", Change{Held: 2}},
			{"a@3 b@3", "a@3 b@3", Change{Added: 2, Removed: 2}},
		}},
		{"weights count at once", 0, []step{
			{"a b", "a b", Change{Added: 2}}, {"a*3 b*4", "a*3 b*4", Change{Updated: 2}}, {"a", "a", Change{Updated: 1, Removed: 1}},
		}},
		{"the first of an id counts", 0, []step{{"a*2 a*3 a@2", "a*2", Change{Added: 1}}}},
		{"a partial answer does not confirm", 0, []step{
			{"a b c", "a b c", Change{Added: 3}},
			{"c", "a b c", Change{Held: 2}},
			{"!c d", "a b c d", Change{Added: 1, Held: 2}}, // 2 of 3
			{"!c d", "c d", Change{Removed: 2}},            // 2 of 4 is not more than half
		}},
		{"a partial answer does not announce", 0, []step{
			{"a b c", "a b c", Change{Added: 3}},
			{"!c", "a b c", Change{Held: 2}},
			{"c", "a b c", Change{Held: 2}},
			{"!c", "a b c", Change{Held: 2}},
			{"c", "c", Change{Removed: 2}},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var g Guard
			for i, s := range c.steps {
				words, partial := strings.CutPrefix(s.answer, "!")
				f := Finding{Endpoints: list(words)}
				if partial {
					f.Err = errPart
				}
				got := g.Answer(f, c.beside)
				if got != s.change || wordsOf(&g) != s.want || g.Held() != s.change.Held {
					t.Fatalf("step %d, %q: %+v, members %q, held %d; want %+v, %q", i+1, s.answer, got, wordsOf(&g), g.Held(), s.change, s.want)
				}
			}
		})
	}
}

func wordsOf(g *Guard) string { return words(g.Members()) }

// oracle is the rule as a person would apply it by hand: with lists, and from
// the whole history of answers.
type oracle struct {
	members []Endpoint
	whole   [][]Endpoint // answers with endpoints that were not partial
}

func has(list []Endpoint, e Endpoint) bool {
	return slices.ContainsFunc(list, func(x Endpoint) bool { return x.ID == e.ID && x.URL == e.URL })
}

func hasID(list []Endpoint, id string) bool {
	return slices.ContainsFunc(list, func(x Endpoint) bool { return x.ID == id })
}

func (o *oracle) answer(f Finding, beside int) {
	if len(f.Endpoints) == 0 {
		return
	}
	var found []Endpoint
	for _, e := range f.Endpoints {
		if !hasID(found, e.ID) {
			found = append(found, e)
		}
	}
	gone := 0
	for _, m := range o.members {
		if !has(found, m) {
			gone++
		}
	}
	much := 2*gone > len(o.members)+beside
	var next []Endpoint
	for _, m := range o.members {
		lackedBefore := len(o.whole) > 0 && !has(o.whole[len(o.whole)-1], m)
		if !has(found, m) && much && (f.Err != nil || !lackedBefore) {
			next = append(next, m)
		}
	}
	for _, e := range found {
		if !hasID(next, e.ID) {
			next = append(next, e)
		}
	}
	o.members = next
	switch {
	case f.Err == nil:
		o.whole = append(o.whole, found)
	case !much:
		// Nobody is lacking any more: the next answer begins anew.
		o.whole = append(o.whole, next)
	default:
		// Who came back meanwhile is not lacking any more.
		if n := len(o.whole); n > 0 {
			o.whole[n-1] = append(slices.Clone(o.whole[n-1]), found...)
		}
		for _, e := range next {
			if n := len(o.whole); n > 0 && !has(o.whole[n-1], e) && has(found, e) {
				o.whole[n-1] = append(o.whole[n-1], e)
			}
		}
	}
}

// FuzzGuard feeds answers to the guard and to the oracle. Each answer is two
// bytes: which of eight backends it lists, and how: bits 0 and 1 give the
// address, 2 the weight, 3 makes it partial, 4 and 5 are backends beside.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{0xff, 0, 0x0f, 0, 0x01, 0, 0, 0, 0x01, 0})
	f.Add([]byte{0x0f, 0, 0xf0, 8, 0xf0, 0, 0xf0, 1, 0x0f, 0x30})
	f.Add([]byte{0x01, 0, 0x02, 0, 0x02, 0, 0x01, 1, 0x01, 1, 0x03, 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		var g Guard
		var o oracle
		for i := 0; i+1 < len(data) && i < 400; i += 2 {
			f := Finding{}
			how := data[i+1]
			for b := range 8 {
				if data[i]>>b&1 == 1 {
					f.Endpoints = append(f.Endpoints, Endpoint{ID: string(rune('a' + b)), URL: fmt.Sprint("http://", how&3), Weight: uint32(how>>2&1) + 1})
				}
			}
			if how>>3&1 == 1 {
				f.Err = errPart
			}
			beside := int(how >> 4 & 3)
			before := g.Members()
			change := g.Answer(f, beside)
			o.answer(f, beside)
			check(t, &g, &o, before, f, change, beside)
		}
	})
}

func check(t *testing.T, g *Guard, o *oracle, before []Endpoint, f Finding, change Change, beside int) {
	t.Helper()
	got, want := slices.Clone(g.Members()), sortedByID(o.members)
	if !slices.Equal(got, want) {
		t.Fatalf("answer %q (%v) to %q: members %q, want %q", words(f.Endpoints), f.Err, words(before), words(got), words(want))
	}
	if len(got) == 0 && len(before) > 0 {
		t.Fatal("the pool is empty")
	}
	if len(got) != len(before)+change.Added-change.Removed || (change == Change{Held: change.Held}) != slices.Equal(got, before) {
		t.Fatalf("%+v from %q to %q", change, words(before), words(got))
	}
	for _, e := range f.Endpoints {
		if !hasID(got, e.ID) {
			t.Fatalf("%s was found and is no member", e.ID)
		}
	}
	if 2*change.Removed > len(before)+beside && f.Err != nil {
		t.Fatalf("a partial answer removed %d of %d", change.Removed, len(before))
	}
}

func BenchmarkGuard(b *testing.B) {
	for _, n := range []int{3, 300, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var f Finding
			for i := range n {
				f.Endpoints = append(f.Endpoints, Endpoint{ID: fmt.Sprintf("10.0.%d.%d:80", i/250, i%250), Weight: 1})
			}
			var g Guard
			b.ReportAllocs()
			for b.Loop() {
				g.Answer(f, 0)
			}
		})
	}
}
