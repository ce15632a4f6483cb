// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// FuzzRestore gives a pool whatever bytes decode to: it must go on as a pool does,
// and what it exports then must be accepted by the next one.
func FuzzRestore(f *testing.F) {
	for seed := range uint64(3) {
		g := newGame(&testing.T{}, randomPlay(seed+1000, 800))
		g.learn()
		for len(g.data) > 100 {
			g.move()
			g.settle()
		}
		text, err := json.Marshal(g.p.Export())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, randomPlay(seed, 200), int64(seed)*1e9)
		f.Add(text, randomPlay(seed, 200), int64(math.MaxInt64))
		g.p.Close()
	}
	f.Add([]byte(`{"backends":[{"id":"b0","url":"http://b","health":{"word":"healthy"}}]}`), []byte("play"), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, text, data []byte, gap int64) {
		var s Saved
		if json.Unmarshal(text, &s) == nil {
			restoreAndPlay(t, &s, data, time.Duration(gap))
		}
	})
}

// restoreAndPlay restores into a new pool and plays on.
func restoreAndPlay(t *testing.T, s *Saved, data []byte, gap time.Duration) (*game, Restored) {
	g := newGame(t, data)
	g.learn()
	r := g.p.Restore(*s, gap)
	g.settle()
	g.check()
	for i := 0; len(g.data) > 0 && i < 30 && !t.Failed(); i++ {
		g.move()
		g.settle()
		g.check()
	}
	again := g.p.Export()
	if reason := again.check(); reason != "" {
		t.Errorf("what was exported is refused: %s", reason)
	}
	for i := range again.Backends {
		if err := again.Backends[i].check(); err != nil {
			t.Errorf("what was exported is refused: %v", err)
		}
	}
	return g, r
}

// TestRestoreGarbage replaces every single value of a state by values that are
// nonsense. Nothing may come of it but a refusal, and of what is refused nothing may
// be left.
func TestRestoreGarbage(t *testing.T) {
	nonsense := []string{"-1", "9223372036854775807", "-9223372036854775808", "18446744073709551615", "1e300", "-0.5", "1.5", `"nonsense"`, `""`, "true", "null", "[]", "{}"}
	tried, refused := 0, 0
	for seed := range uint64(3) {
		a := newGame(t, randomPlay(seed+2000, 800))
		a.learn()
		for len(a.data) > 200 {
			a.move()
			a.settle()
		}
		text, err := json.Marshal(a.p.Export())
		if err != nil {
			t.Fatal(err)
		}
		for i, broken := range mutations(t, text, nonsense) {
			var s Saved
			if json.Unmarshal(broken, &s) != nil {
				continue // decoding refuses it already
			}
			tried++
			g, r := restoreAndPlay(t, &s, randomPlay(seed+2000, 60), 0)
			if len(r.Refused) > 0 {
				refused++
			}
			g.end()
			if t.Failed() {
				t.Fatalf("seed %d, %d: %s", seed, i, broken)
			}
		}
		a.end()
	}
	if tried < 500 || refused < tried/10 {
		t.Errorf("%d tried, %d refused: this is no test", tried, refused)
	}
}

// mutations returns copies of a JSON text in each of which one value is another.
func mutations(t *testing.T, text []byte, values []string) (out [][]byte) {
	var tree any
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{} // one of each kind of field does
	var walk func(at string, v any, set func(any))
	walk = func(at string, v any, set func(any)) {
		switch x := v.(type) {
		case map[string]any:
			for k, v := range x {
				walk(at+"."+k, v, func(n any) { x[k] = n })
			}
		case []any:
			for i := range x {
				walk(at+"[]", x[i], func(n any) { x[i] = n })
			}
		}
		if seen[at] {
			return
		}
		seen[at] = true
		for _, n := range values {
			set(json.RawMessage(n))
			broken, err := json.Marshal(tree)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, broken)
		}
		set(v)
	}
	walk("", tree, func(any) {})
	return out
}

// TestRefusedLeavesNothing: a backend whose record is refused is one that nothing
// is known of, while the others and the operator's word are restored.
func TestRefusedLeavesNothing(t *testing.T) {
	now := balance.Instant(time.Hour)
	build := func(s *Saved) (*Pool, Restored) {
		g := &game{t: t, attached: map[*balance.Backend]int{}, probes: map[*balance.Backend]func(health.ProbeResult){}}
		p := New(Config{
			Name: "app", Active: health.Active{Enabled: true, Interval: 5 * time.Second, Fall: 2, Rise: 2},
			Passive: health.Passive{Enabled: true, Eject: 30 * time.Second, MaxEject: time.Minute},
		}, g, func() balance.Instant { return now })
		p.Update([]Spec{{ID: "a", URL: "http://a", Weight: 1}, {ID: "b", URL: "http://b", Weight: 1}})
		var r Restored
		if s != nil {
			r = p.Restore(*s, 0)
		}
		return p, r
	}
	fresh, _ := build(nil)
	good := fresh.Export()
	for i := range good.Backends {
		b := &good.Backends[i]
		b.Health = health.Saved{Word: "broken", Level: 3, Until: -health.Age(20 * time.Second), Since: 7e9, Flips: 9}
		b.Count.Answers = 100
	}
	w := uint32(7)
	good.Overrides = []SavedOverride{{ID: "b", Weight: &w, WeightSince: 5e9}, {ID: "gone", Admin: "disabled", AdminSince: 1e9}}
	for name, spoil := range map[string]func(b *SavedBackend){
		"not a number": func(b *SavedBackend) { b.Windows.EWMA = math.NaN() },
		"infinite":     func(b *SavedBackend) { b.Learned.Level = math.Inf(1) },
		"share":        func(b *SavedBackend) { b.Health.Lost = -0.1 },
		"nan share":    func(b *SavedBackend) { b.Pressure.Lost = math.NaN() },
		"an age":       func(b *SavedBackend) { b.Facts.LastConn = math.MinInt64 },
		"a word":       func(b *SavedBackend) { b.Health.Word = "fine" },
		"a window":     func(b *SavedBackend) { b.Windows.Base[1].Answers = 101 },
		"a bucket":     func(b *SavedBackend) { b.Windows.Hist = [][2]uint32{{histBuckets, 1}} },
		"history":      func(b *SavedBackend) { b.Health.History = []health.SavedChange{{From: "broken"}} },
		"nan ramp":     func(b *SavedBackend) { b.Ramp.From = math.NaN() },
	} {
		s := good
		s.Backends = append([]SavedBackend(nil), good.Backends...)
		spoil(&s.Backends[0])
		p, r := build(&s)
		if r.Backends != 1 || r.Overrides != 2 || len(r.Refused) != 1 || !strings.HasPrefix(r.Refused[0], "backend a: ") {
			t.Errorf("%s: %+v", name, r)
		}
		got, want := p.Export().Backends, fresh.Export().Backends
		if !reflect.DeepEqual(got[0], want[0]) {
			t.Errorf("%s: of what was refused this is left:\n%+v\nwant\n%+v", name, got[0], want[0])
		}
		if got[1].Health.Flips != 9 || p.Snapshot().Backends[1].Weight != 7 {
			t.Errorf("%s: the other one was not restored: %+v", name, got[1])
		}
		// Whole again with the next state, and no longer with an old one.
		if r := p.Restore(good, 0); r.Backends != 2 || len(r.Refused) != 0 {
			t.Errorf("%s: %+v", name, r)
		}
		if text := fmt.Sprint(p.Export().Overrides[1].ID); text != "gone" {
			t.Errorf("%s: the word about a backend that is away is lost", name)
		}
	}
}
