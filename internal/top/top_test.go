// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weirlb/weir/internal/admin"
)

var start = time.Date(2026, 1, 2, 10, 0, 0, 0, time.UTC)

// sampleAt is what a weir says some seconds after the start: two pools, of which
// the first answers 100 requests a second, one backend 40 and the others 60 and 0.
func sampleAt(s int) *Sample {
	n := uint64(s)
	at := start.Add(time.Duration(s) * time.Second)
	return &Sample{
		At: at,
		Status: admin.Status{
			Version: "1.0", PID: 7, Started: start.Add(-time.Hour), UptimeS: 3600, State: "serving", Ready: true, Generation: 2,
			Listeners: []admin.Listener{{Name: "web", Connections: 12}, {Name: "tls", Connections: 3}},
		},
		Pools: []admin.Pool{
			{
				PoolSummary: admin.PoolSummary{Name: "app", Balance: "p2c", Serving: 2, InFlight: 9, QueueLength: 4, Saturation: 0.5, Requests: 100 * n, Failures: 2 * n},
				Members: []admin.Backend{
					{ID: "10.0.0.1:80", Admin: "enabled", Health: "healthy", Share: 1, InFlight: 3, Requests: 40 * n, Latency: admin.Latency{P50: 1.25, P99: 20}},
					{ID: "10.0.0.2:80", Admin: "enabled", Health: "healthy", Share: 0.4, InFlight: 6, Requests: 60 * n, Failures: 2 * n, Latency: admin.Latency{P50: 2, P99: 300}},
					{ID: "10.0.0.3:80", Zone: "b", Admin: "enabled", Health: "broken"},
				},
			},
			{
				PoolSummary: admin.PoolSummary{Name: "shop", Balance: "maglev", Panic: true},
				Members:     []admin.Backend{{ID: "10.0.1.1:80", Admin: "draining", Health: "healthy"}},
			},
		},
		Events: []admin.Event{
			{At: start, Pool: "app", Backend: "10.0.0.3:80", Text: "unproven -> healthy: probe passed"},
			{At: start, Pool: "shop", Text: "panic began"},
			{At: at.Add(-65 * time.Second), Pool: "app", Backend: "10.0.0.3:80", Text: "healthy -> broken: refused\x1b[31m"},
			{At: at, Text: "reloaded"},
		},
	}
}

// after is a model that saw messages; two samples ten seconds apart come first.
func after(msgs ...any) Model {
	m := Model{Every: time.Second}.Update(Got{sampleAt(100)}).Update(Got{sampleAt(110)})
	for _, msg := range msgs {
		m = m.Update(msg)
	}
	return m
}

func shown(m Model) string {
	var b strings.Builder
	for _, l := range m.View() {
		b.WriteString(l.Text + "\n")
	}
	return b.String()
}

func TestView(t *testing.T) {
	const want = `weir 1.0  pid 7  serving for 1h  ready  generation 2  15 connections  10:01:50
SHARE: how much a backend takes of what the policy offers it; of a pool: in flight of what it may have
POOL/BACKEND   STATE        SHARE     REQ/S    ERR/S  FLIGHT  QUEUE      P50      P99  LAST EVENT
app (p2c)      2/3 serve      50%       100      2.0       9      4
  10.0.0.1:80  healthy       100%        40        0       3           1.2ms   20.0ms
  10.0.0.2:80  healthy        40%        60      2.0       6           2.0ms    300ms
  10.0.0.3:80  broken          0%         0        0       0               -        -  1m ago healthy -> broken: refused?[31m
shop (maglev)  PANIC                      0        0       0      0                    1m ago panic began
  10.0.1.1:80  draining        0%         0        0       0               -        -
`
	if got := shown(after()); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// names are the backends, and pools, in the order of their lines.
func names(m Model) string {
	var out []string
	for _, r := range m.rows() {
		if r.backend == nil {
			out = append(out, r.pool.Name)
		} else {
			out = append(out, r.backend.ID[7:8])
		}
	}
	return strings.Join(out, " ")
}

func TestKeys(t *testing.T) {
	for _, c := range []struct{ keys, want string }{
		{"", "app 1 2 3 shop 1"},
		{"n", "app 3 2 1 shop 1"}, // again: reversed
		{"n n", "app 1 2 3 shop 1"},
		{"r", "app 2 1 3 shop 1"},
		{"r r", "app 3 1 2 shop 1"},
		{"e", "app 2 1 3 shop 1"},
		{"f", "app 2 1 3 shop 1"},
		{"l", "app 2 1 3 shop 1"},
		{"s", "app 3 2 1 shop 1"},
		{"/ s h o p", "shop 1"},
		{"/ s h o p enter esc", "app 1 2 3 shop 1"},
		{"/ s h x backspace enter", "shop 1"},
		{"/ x y", ""},
		{"/ x y esc", "app 1 2 3 shop 1"},
		{"/ B r o enter", "app 3"},
		{"end enter", "shop 1"},
		{"down down enter", "app 1 2 3"},
		{"end enter esc", "app 1 2 3 shop 1"},
	} {
		m := after(Size{100, 20})
		for k := range strings.FieldsSeq(c.keys) {
			m = m.Update(Key(k))
		}
		if got := names(m); got != c.want {
			t.Errorf("%s: %s, want %s", c.keys, got, c.want)
		}
	}
	for _, k := range []Key{"q", "ctrl+c"} {
		if !after(k).Done() {
			t.Errorf("%s does not end it", k)
		}
	}
	if m := after(Key("/"), Key("q")); m.Done() || m.filter != "q" {
		t.Error("a filter cannot have a q")
	}
	if !after(Key("p")).Paused() || after(Key("p"), Key("p")).Paused() {
		t.Error("p does not pause, or does not go on")
	}
}

// Whatever the size, and wherever the cursor is sent: as many lines as the terminal
// has, none wider, and the row of the cursor among them.
func TestSizes(t *testing.T) {
	keys := []Key{"end", "up", "pgup", "home", "down", "pgdown", "enter", "esc", "j", "G", "k", "g"}
	for h := 1; h < 14; h++ {
		for _, w := range []int{1, 10, 40, 200} {
			m := after(Size{w, h})
			for _, k := range keys {
				m = m.Update(k)
				lines := m.View()
				chosen := 0
				for _, l := range lines {
					if utf8.RuneCountInString(l.Text) > w {
						t.Fatalf("%dx%d, %s: %q", w, h, k, l.Text)
					}
					if l.Style == Chosen {
						chosen++
					}
				}
				if len(lines) != h || h > headLines+footLines && chosen != 1 {
					t.Fatalf("%dx%d, %s: %d lines, %d of them chosen", w, h, k, len(lines), chosen)
				}
			}
		}
	}
}

// A weir that goes away leaves what was known of it, and one that comes back begins
// anew: its counters are not compared with those of another process.
func TestDisconnected(t *testing.T) {
	m := after(Size{120, 12}, Lost{start.Add(111 * time.Second), "not running"})
	if s := shown(m); !strings.Contains(s, "DISCONNECTED: not running; trying again\n") || !strings.Contains(s, "10.0.0.1:80") {
		t.Errorf("just lost:\n%s", s)
	}
	m = m.Update(Lost{start.Add(120 * time.Second), "not running"})
	if s := shown(m); !strings.Contains(s, "DISCONNECTED for 9s: not running; trying again\n") {
		t.Errorf("lost for a while:\n%s", s)
	}
	other := sampleAt(3)
	other.Status.PID, other.Status.Started = 8, start
	m = m.Update(Got{other})
	s := shown(m)
	if strings.Contains(s, "DISCONNECTED") || !strings.Contains(s, "process 8 is in the place of 7") || !strings.Contains(s, " - ") {
		t.Errorf("another process:\n%s", s)
	}
	later := sampleAt(5)
	later.Status = other.Status
	if s := shown(m.Update(Got{later})); !strings.Contains(s, "  100  ") {
		t.Errorf("its second sample:\n%s", s)
	}
	if s := shown(Model{}.Update(Lost{start, "refused"})); !strings.Contains(s, "waiting for the first answer\nDISCONNECTED: refused") {
		t.Errorf("never there:\n%s", s)
	}
}

// An upgrade is told while it goes on.
func TestUpgradeIsTold(t *testing.T) {
	s := sampleAt(111)
	s.Status.Predecessor = &admin.Predecessor{}
	s.Status.Predecessor.PID, s.Status.Predecessor.Version, s.Status.Predecessor.Connections = 6, "0.9", 5
	if text := shown(after(Got{s})); !strings.Contains(text, "process 6, version 0.9, drains with 5 connections") {
		t.Error(text)
	}
}

// A member that is there since the last sample, or whose counter begins anew, has
// no rate.
func TestRatesUnknown(t *testing.T) {
	a, b := sampleAt(100), sampleAt(110)
	a.Pools[0].Members = a.Pools[0].Members[1:]
	b.Pools[0].Members[1].Requests = 1
	m := Model{}.Update(Got{a}).Update(Got{b})
	for i, want := range []float64{100, -1, -1, 0} {
		if got := m.rate(m.rows()[i], requests); got != want {
			t.Errorf("row %d: %v, want %v", i, got, want)
		}
	}
}

// FuzzModel sends any messages: nothing panics, and the screen is as large as it is.
func FuzzModel(f *testing.F) {
	f.Add("rre/ab\x00q", uint8(10), uint8(80))
	f.Fuzz(func(t *testing.T, keys string, h, w uint8) {
		m := after(Size{int(w), int(h)})
		for i, k := range keys {
			switch i % 5 {
			case 3:
				m = m.Update(Lost{start, keys})
			case 4:
				s := sampleAt(110 + i)
				s.Pools = s.Pools[:i%3]
				m = m.Update(Got{s})
			}
			m = m.Update(Key(k)).Update(Key([]string{"up", "down", "enter", "esc", "pgup", "pgdown", "end"}[i%7]))
			if lines := m.View(); h > 0 && len(lines) != int(h) {
				t.Fatalf("%d lines of %d", len(lines), h)
			}
		}
	})
}

// BenchmarkView is one screen of a large pool.
func BenchmarkView(b *testing.B) {
	s := sampleAt(100)
	for i := range 10_000 {
		s.Pools[0].Members = append(s.Pools[0].Members, admin.Backend{ID: fmt.Sprint("10.9.0.", i), Admin: "enabled", Health: "healthy", Share: 1})
	}
	m := Model{}.Update(Got{s}).Update(Size{120, 50})
	for b.Loop() {
		m.View()
	}
}
