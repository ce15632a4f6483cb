// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// claim is what a cell must hold for every seed: its 5-95 % band, which over so
// few seeds is from the smallest to the largest.
type claim struct {
	row, column string
	low, high   float64
}

func hold(t *testing.T, r *Report, claims []claim) {
	t.Helper()
	for _, c := range claims {
		if got := r.Cell(c.row, c.column); !(got.Low >= c.low && got.High <= c.high) {
			t.Errorf("%s: %s %s is %+v, want %v to %v", r.Scenario, c.row, c.column, got, c.low, c.high)
		}
	}
	if t.Failed() {
		t.Log("\n" + string(text(t, []*Report{r}, TextOptions{Width: 100})))
	}
}

const many = 1e9

// whole leaves a test to the run without the race detector, which has nothing to
// find here and would take minutes.
func whole(t *testing.T) {
	t.Helper()
	if slower > 1 {
		t.Skip("without -race")
	}
}

// No policy gives a backend that fails in 1 ms more than 1.2 times its fair part,
// and one that was very slow is back within 10 s of being equal again.
func TestBlackHole(t *testing.T) {
	whole(t)
	r := blackHole.Run(Options{Seeds: max(1, 3/slower), Requests: 10_000})
	var claims []claim
	for _, p := range policies {
		claims = append(claims, claim{p, "over_fair", 0, 1.2}, claim{p, "back", 0, 10})
	}
	hold(t, r, append(claims, claim{"p2c, ejection on", "hole_gets", 0, 0.05}))
}

// A dependency that all share makes every check fail: while traffic succeeds
// nobody notices, and nobody is out for longer than it takes to see that it is
// everybody. Without panic it is an outage, so the scenario can fail.
func TestDBBlip(t *testing.T) {
	hold(t, dbBlip.Run(Options{Seeds: max(1, 5/slower)}), []claim{
		{"checks fail, panic", "errors", 0, 0},
		{"checks fail, panic", "least", 6, 6},
		{"checks fail, panic off", "during", 0.3, 1},
		{"traffic too, panic", "after", 0, 0.01},
		{"traffic too, panic", "least", 1, 6},
	})
}

// At 120 % load goodput stays at 90 % of what the servers can do, the excess is
// refused at once, nobody is evicted, and it is over when the load is. Without a
// limit it is a spiral.
func TestDeathSpiral(t *testing.T) {
	whole(t)
	hold(t, deathSpiral.Run(Options{Seeds: max(1, 3/slower)}), []claim{
		{"limit 8, no queue", "goodput", 0.9, 1.1},
		{"limit 8, no queue", "evicted", 0, 0},
		{"limit 8, no queue", "back", 0, 2},
		{"limit 8, no queue", "refused", 0, 10},
		{"limit 8, queue 128", "goodput", 0.9, 1.1},
		{"limit 8, queue 128", "evicted", 0, 0},
		{"limit 8, queue 128", "back", 0, 2},
		{"adaptive", "goodput", 0.9, 1.1},
		{"adaptive", "evicted", 0, 0},
		{"adaptive", "back", 0, 2},
		{"adaptive", "refused", 0, 10},
		{"no limit", "goodput", 0, 0.75},
	})
}

// A budget bounds what retries add to 20 %; three layers of it make 1.2^3 = 1.73,
// and the marks keep that at 1.2. Without budgets everything is sent nearly twice.
func TestRetryStorm(t *testing.T) {
	whole(t)
	hold(t, retryStorm.Run(Options{Seeds: max(1, 3/slower), Duration: 30 * time.Second}), []claim{
		{"no retries", "sent", 1, 1},
		{"3 attempts, no budget", "sent", 1.6, 2},
		{"3 attempts, budget", "sent", 1.1, 1.21},
		{"3 layers, no budget", "sent", 1.8, 2.1},
		{"3 layers, budgets", "sent", 1.65, 1.75},
		{"3 layers, marks too", "sent", 1.1, 1.21},
		{"marks, layers eject", "sent", 1.1, 1.21},
		{"no marks, layers eject", "sent", 1.1, 1.3},
	})
}

// A deploy that drains loses nothing, with slow start p99 stays within 1.5 of the
// quiet time's; without either one sees why.
func TestRollingDeploy(t *testing.T) {
	whole(t)
	hold(t, rollingDeploy.Run(Options{Seeds: max(1, 2/slower)}), []claim{
		{"p2c, drain, slow start", "failed", 0, 0},
		{"p2c, drain, slow start", "worse", 0, 1.5},
		{"round_robin, drain, slow start", "failed", 0, 0},
		{"round_robin, drain, slow start", "worse", 0, 1.5},
		{"round_robin, no slow start", "worse", 1.5, many},
		{"p2c, just exit, no retry", "failed", 1, many},
		{"p2c, just exit", "failed", 0, 0},
	})
}

// Whoever looks at load goes around what is slow; whoever does not, does not.
func TestSlowServer(t *testing.T) {
	whole(t)
	hold(t, slowServer.Run(Options{Seeds: max(1, 3/slower)}), []claim{
		{"p2c", "p99", 0, 600}, {"least_request", "p99", 0, 600}, {"peak_ewma", "p99", 0, 600},
		{"round_robin", "p99", 2400, many}, {"random", "p99", 2400, many}, {"rr, right weights", "p99", 0, 800},
	})
}

// Probes without an answer are outvoted by traffic; a server's own word is not,
// and thresholds make it rarer.
func TestFlapping(t *testing.T) {
	whole(t)
	r := flapping.Run(Options{Seeds: max(1, 3/slower)})
	hold(t, r, []claim{
		{"no answer, fall 1 rise 1", "flips", 0, 0}, {"no answer, fall 3 rise 2", "flips", 0, 0},
		{"not ready, fall 1 rise 1", "flips", 30, many},
	})
	loose, firm := r.Cell("not ready, fall 1 rise 1", "flips"), r.Cell("not ready, fall 3 rise 2", "flips")
	if !(firm.High < loose.Low/1.5) {
		t.Errorf("flips with 3/2 %+v, with 1/1 %+v", firm, loose)
	}
}

// The remaining stories come out as their documentation says.
func TestOtherScenarios(t *testing.T) {
	whole(t)
	if r := hotKey.Run(Options{Seeds: 3, Requests: 2000, Policies: []string{"maglev"}}); r.Cell("maglev, no bound", "busiest").High < 1.1*r.Cell("maglev, no bound", "busiest").Low {
		t.Error("the seed does not change which servers have the hot keys")
	}
	hold(t, hotKey.Run(Options{Seeds: max(1, 2/slower), Requests: 10_000}), []claim{
		{"maglev, no bound", "kept", 1, 1}, {"maglev, 1.25", "kept", 0.5, 0.99},
		{"maglev, 1.25", "p99", 0, 500}, {"maglev, no bound", "p99", 700, many},
	})
	hold(t, coldStart.Run(Options{Seeds: max(1, 2/slower)}), []claim{
		{"round_robin", "worse", 3, many}, {"round_robin", "with", 0, 500}, {"least_request", "with", 0, 500}, {"maglev", "with", 0, 500},
	})
	hold(t, zoneLoss.Run(Options{Seeds: max(1, 2/slower)}), []claim{
		{"no zones", "local", 0.25, 0.42}, {"zones", "local", 0.9, 1}, {"zones", "errors", 0, 0.01}, {"no zones", "errors", 0, 0.01},
		{"no zones", "first", 1500, many}, {"no zones, connect 200ms", "first", 0, 500},
	})
	hold(t, scaleUp.Run(Options{Seeds: 1, Policies: []string{"p2c"}, Requests: 500}), []claim{
		{"p2c, held for good", "newcomers", 0, 0.02}, {"p2c, held 2m", "newcomers", 0.4, 0.6},
		{"p2c, rebalanced", "newcomers", 0.15, 0.3}, {"p2c, rebalanced", "ended", 100, 155}, {"p2c, held 2m", "ended", 0, 0},
	})
	hold(t, staleHerd.Run(Options{Seeds: max(1, 2/slower), Requests: 10_000}), []claim{
		{"least_request", "worse", 2, many}, {"p2c", "worse", 1, 2.2}, {"round_robin", "worse", 0.99, 1.01},
		// With counts of their own nobody herds, and latency finds the slow one.
		{"least_request", "own_p99", 0, 300}, {"peak_ewma", "own_p99", 0, 300}, {"peak_ewma", "own_slow", 0, 500}, {"p2c", "own_slow", 600, many},
	})
}

// The same seed gives the same bytes in every form, whether runs are one after
// another or at once; another seed gives others.
func TestSameSeedSameBytes(t *testing.T) {
	for _, s := range Scenarios() {
		if s.Name != "race" && s.Name != "flapping" && s.Name != "ring-growth" {
			continue
		}
		if slower > 1 && s.Name != "race" {
			continue
		}
		o := Options{Seeds: 2}
		if s.Defaults.Requests > 0 {
			o.Requests = 1000
		}
		forms := func(o Options) string {
			r := s.Run(o)
			out := text(t, []*Report{r}, TextOptions{})
			var b bytes.Buffer
			if err := WriteJSON(&b, []*Report{r}); err != nil {
				t.Fatal(err)
			}
			if err := WriteCSV(&b, []*Report{r}); err != nil {
				t.Fatal(err)
			}
			return string(out) + b.String()
		}
		first := forms(o)
		o.Each = func(n int, do func(int)) {
			for i := n - 1; i >= 0; i-- {
				do(i)
			}
		}
		if forms(o) != first {
			t.Errorf("%s: the order of the runs shows", s.Name)
		}
		o.Seed = 100
		if forms(o) == first {
			t.Errorf("%s: another seed changes nothing", s.Name)
		}
	}
}

// Every scenario documents itself and refuses what it does not have.
func TestScenarioList(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Scenarios() {
		if seen[s.Name] || Find(s.Name).Name != s.Name || width(s.Title) > 64 || len(s.Doc) != 3 || len(s.columns) == 0 {
			t.Errorf("%s: %q, %d paragraphs", s.Name, s.Title, len(s.Doc))
		}
		seen[s.Name] = true
		var b bytes.Buffer
		if err := s.WriteDoc(&b, 80); err != nil || !strings.Contains(b.String(), "--seed") {
			t.Errorf("%s: %v", s.Name, err)
		}
		charts := 0
		for _, c := range s.columns {
			if c.Chart {
				charts++
			}
		}
		if charts != 1 {
			t.Errorf("%s charts %d columns", s.Name, charts)
		}
		if err := s.Check(Options{Policies: []string{"p2d"}}); err == nil {
			t.Errorf("%s takes a policy that is none", s.Name)
		}
		if err := s.Check(s.Defaults); err != nil {
			t.Errorf("%s refuses its own defaults: %v", s.Name, err)
		}
	}
	if len(seen) != 14 {
		t.Errorf("%d scenarios", len(seen))
	}
	if err := ringGrowth.Check(Options{Load: 0.5}); err == nil {
		t.Error("a load in a scenario without one")
	}
}
