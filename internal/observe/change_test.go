// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
)

// TestChangeShows: what has been counted is shown under the other labels, and no
// sum changes.
func TestChangeShows(t *testing.T) {
	m := NewMetrics(MetricsOptions{})
	s := m.Series("l", "r", "p", "b")
	for _, status := range []int{200, 204, 418, 502} {
		s.Observe(&Record{Status: status})
	}
	s.Observe(&Record{Status: 502, Reason: message.ConnectRefused})
	see := func(labels string, want int) {
		t.Helper()
		f := scrape(t, m)["weir_requests_total"]
		if got := len(f.GetMetric()); got != want || sum(f) != 5 {
			t.Errorf("%s: %d series, want %d, of %v requests", labels, got, want, sum(f))
		}
	}
	see("classes", 4)
	m.Change(true, 0)
	see("exact", 5)
	m.Change(false, -1) // no backend has series of its own
	see("classes again", 4)
	if got := sum(scrape(t, m)["weir_requests_total"], "backend="); got != 5 {
		t.Errorf("%v requests without a backend", got)
	}
}

// TestRetain: series of what left the configuration go ten minutes later, and
// not when it came back meanwhile.
func TestRetain(t *testing.T) {
	now := time.Unix(1000, 0)
	m := NewMetrics(MetricsOptions{Now: func() time.Time { return now }})
	retain := func(n ...int) {
		here := map[string]bool{}
		for _, i := range n {
			here[fmt.Sprint(i)] = true
		}
		m.Retain(func(l, _, _ string) bool { return here[l] }, func(p string) bool { return here[p] })
	}
	for i := range 500 {
		s := m.Series(fmt.Sprint(i), "r", fmt.Sprint(i), "b")
		s.Observe(&Record{Status: 200})
		retain(i, 499)
		now = now.Add(time.Minute)
	}
	if n := len(m.routes); n > 12 || len(m.poolSeries) != n {
		t.Errorf("%d routes, %d pools", n, len(m.poolSeries))
	}
	retain(495, 499)
	now = now.Add(leftFor)
	retain(495, 499)
	if n := len(m.routes); n != 2 {
		t.Errorf("%d routes", n)
	}
	if got := sum(scrape(t, m)["weir_requests_total"], "listener=495"); got != 1 {
		t.Errorf("what came back counts %v", got)
	}
}
