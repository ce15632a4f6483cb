// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

func TestRetryDelay(t *testing.T) {
	now := clock.Now()
	at := func(d time.Duration) string { return clock.Time(now).UTC().Add(d).Format(httpDates[0]) }
	const date = "Sun, 06 Nov 1994 08:49:37 GMT"
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		{"0", "", 0}, {"1", "", time.Second}, {"120", date, 2 * time.Minute}, {"0030", "", 30 * time.Second},
		{"99999999999999999999999999", "", maxRetryDelay}, {"86401", "", maxRetryDelay},
		{"", date, 0}, {"1.5", "", 0}, {"-1", "", 0}, {"+1", "", 0}, {"1s", "", 0}, {"1, 2", "", 0}, {"soon", date, 0}, {"\xff", "", 0},
		{"Sun, 06 Nov 1994 08:50:07 GMT", date, 30 * time.Second},
		{"Sunday, 06-Nov-94 08:50:07 GMT", date, 30 * time.Second},
		{"Sun Nov  6 08:50:07 1994", date, 30 * time.Second},
		{"Sun, 06 Nov 1994 08:49:37 GMT", date, 0},
		{"Sun, 06 Nov 1994 08:49:07 GMT", date, 0},
		{"Sun, 06 Nov 2094 08:49:07 GMT", date, maxRetryDelay},
		{"Sun, 06 Nov 1994 08:50:07 PST", date, 0},
		{"Sun, 06 Nov 1994 08:50:07 GMT" + strings.Repeat(" ", 100), date, 0},
		{at(-time.Hour), "", 0},
	} {
		if got := retryDelay([]byte(c.value), []byte(c.date), now); got != c.want {
			t.Errorf("%q (Date %q): %v, want %v", c.value, c.date, got, c.want)
		}
	}
	// Without a Date the clock here decides, to the second.
	if got := retryDelay([]byte(at(time.Minute)), []byte("yesterday"), now); got < 58*time.Second || got > time.Minute {
		t.Errorf("in a minute: %v", got)
	}
}

func FuzzRetryDelay(f *testing.F) {
	for _, s := range []string{"120", "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "99999999999999999999"} {
		f.Add([]byte(s), []byte("Sun, 06 Nov 1994 08:49:30 GMT"))
	}
	f.Fuzz(func(t *testing.T, value, date []byte) {
		if d := retryDelay(value, date, balance.Instant(time.Hour)); d < 0 || d > maxRetryDelay {
			t.Errorf("%q %q: %v", value, date, d)
		}
	})
}

// withOverload turns overload on in the pool, and what reads it in the data
// plane.
func withOverload(o health.Overload) rigOptions {
	o.Enabled = true
	return rigOptions{
		pool: func(c *pool.Config) { c.Overload = o },
		edit: func(r *rig) { r.rt.LoadReports = o.ORCA },
	}
}

// TestSignals lets one of two backends say in each way that it is busy: its
// share sinks, the other's does not, and nobody is ejected.
func TestSignals(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nDate: D\r\nTransfer-Encoding: chunked\r\n"
	for name, c := range map[string]struct {
		answer string
		on     health.Overload
		sinks  bool
	}{
		"503":              {"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno", health.Overload{RetryAfter503: true}, true},
		"503 by date":      {"HTTP/1.1 503 Busy\r\nRetry-After: Sun, 06 Nov 1994 08:50:07 GMT\r\nContent-Length: 2\r\n\r\nno", health.Overload{RetryAfter503: true}, true},
		"503 not listed":   {"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno", health.Overload{ORCA: true}, false},
		"429":              {"HTTP/1.1 429 Slow\r\nContent-Length: 2\r\n\r\nno", health.Overload{TooMany429: true}, true},
		"429 not listed":   {"HTTP/1.1 429 Slow\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno", health.Overload{RetryAfter503: true, ORCA: true}, false},
		"text head":        {"HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.95\r\nContent-Length: 2\r\n\r\nok", health.Overload{ORCA: true}, true},
		"json head":        {"HTTP/1.1 200 OK\r\nendpoint-load-metrics: JSON {\"application_utilization\":1.5}\r\nContent-Length: 2\r\n\r\nok", health.Overload{ORCA: true}, true},
		"binary head":      {"HTTP/1.1 200 OK\r\nendpoint-load-metrics-bin: CQAAAAAAANA/EQAAAAAAAOA/SQAAAAAAAPw/\r\nContent-Length: 2\r\n\r\nok", health.Overload{ORCA: true}, true},
		"light":            {"HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.95,application_utilization=0.3\r\nContent-Length: 2\r\n\r\nok", health.Overload{ORCA: true}, false},
		"malformed":        {"HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=95%\r\nContent-Length: 2\r\n\r\nok", health.Overload{ORCA: true}, false},
		"orca not listed":  {"HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.95\r\nContent-Length: 2\r\n\r\nok", health.Overload{RetryAfter503: true}, false},
		"trailer":          {chunked + "\r\n2\r\nok\r\n0\r\nendpoint-load-metrics: TEXT cpu_utilization=0.95\r\n\r\n", health.Overload{ORCA: true}, true},
		"binary trailer":   {chunked + "\r\n2\r\nok\r\n0\r\nendpoint-load-metrics-bin: CQAAAAAAANA/EQAAAAAAAOA/SQAAAAAAAPw/\r\n\r\n", health.Overload{ORCA: true}, true},
		"trailer is newer": {chunked + "endpoint-load-metrics: TEXT cpu_utilization=0.95\r\n\r\n2\r\nok\r\n0\r\nendpoint-load-metrics: TEXT cpu_utilization=0.1\r\n\r\n", health.Overload{ORCA: true}, false},
		"empty trailer":    {chunked + "endpoint-load-metrics: TEXT cpu_utilization=0.95\r\n\r\n2\r\nok\r\n0\r\n\r\n", health.Overload{ORCA: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			busy, free := weirtest.Always(t, c.answer), weirtest.Always(t, ok2)
			r := newRig(t, []string{busy.Addr(), free.Addr()}, withOverload(c.on), rigOptions{edit: func(r *rig) {
				r.rt.Retry = pool.NewRetryRules(1, false, nil, 0)
			}})
			client := r.dial()
			for range 60 {
				client.Send(get)
				if m := client.Final("GET"); m == nil {
					t.Fatal("no answer")
				}
			}
			share := func(i int) (float64, health.State) {
				b := r.pool.Snapshot().Backends[i]
				return b.Share, b.Health
			}
			if c.sinks {
				eventually(t, "the share sinks", func() bool {
					s, h := share(0)
					return s < 1 && s > 0 && h == health.StateOverloaded
				})
			} else if s, h := share(0); s != 1 {
				t.Errorf("share %v, %v", s, h)
			}
			if s, h := share(1); s != 1 {
				t.Errorf("the other's share is %v, %v", s, h)
			}
		})
	}
}

// TestLoadReportPasses: what a backend says about its load reaches the client,
// as it does through other proxies, and a route can remove it.
func TestLoadReportPasses(t *testing.T) {
	busy := weirtest.Always(t, "HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.5\r\nContent-Length: 2\r\n\r\nok")
	for _, removed := range []bool{false, true} {
		r := newRig(t, []string{busy.Addr()}, withOverload(health.Overload{ORCA: true}), rigOptions{edit: func(r *rig) {
			if removed {
				r.rt.ResponseHeaders.Remove = []string{"endpoint-load-metrics"}
			}
		}})
		if m := r.roundTrip(get); strings.Contains(m.Head(), "Endpoint-Load-Metrics") == removed {
			t.Errorf("removed %v: %q", removed, m.Head())
		}
	}
}

// TestKeyedRequests: through a whole data plane, equal keys reach one backend
// and requests without a key are spread.
func TestKeyedRequests(t *testing.T) {
	var backends []*weirtest.Backend
	var addrs []string
	for range 3 {
		b := weirtest.Always(t, ok2)
		backends, addrs = append(backends, b), append(addrs, b.Addr())
	}
	r := newRig(t, addrs, rigOptions{
		pool: func(c *pool.Config) {
			c.Policy = balance.NewRendezvous(balance.HashConfig{Fallback: balance.NewRoundRobin()})
		},
		edit: func(r *rig) { r.rt.Key = NewKeyFunc([]KeyPart{{KeyHeader, "X-User"}}) },
	})
	home := map[string]int{}
	client := r.dial()
	ask := func(request string) int {
		var before [3]int
		for i, b := range backends {
			before[i] = len(b.Seen())
		}
		client.Send(request)
		if client.Final("GET") == nil {
			t.Fatal("no answer")
		}
		for i, b := range backends {
			if len(b.Seen()) > before[i] {
				return i
			}
		}
		return -1
	}
	used := map[int]bool{}
	for round := range 3 {
		for _, user := range strings.Fields("a b c d e f g h i j") {
			at := ask("GET /" + user + " HTTP/1.1\r\nHost: h\r\nx-user: " + user + "\r\n\r\n")
			if round > 0 && home[user] != at {
				t.Errorf("user %s moved from %d to %d", user, home[user], at)
			}
			home[user], used[at] = at, true
		}
	}
	if len(used) < 2 {
		t.Errorf("ten keys are all on %v", used)
	}
	spread := map[int]bool{}
	for range 3 {
		spread[ask(get)] = true
	}
	if len(spread) != 3 {
		t.Errorf("without a key: %v", spread)
	}
}
