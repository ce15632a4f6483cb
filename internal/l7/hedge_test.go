// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// hedged gives attempts a hedge after a millisecond.
func hedged(r *rig) { r.rt.Retry.Hedge = pool.Hedge{After: time.Millisecond} }

// mute is a backend that answers when it is told to, and says when its
// connection has been cut.
type mute struct {
	*weirtest.Backend
	answer chan string   // what it answers; closed: never
	cut    chan struct{} // one element per connection that ended
}

func newMute(t *testing.T) *mute {
	s := &mute{answer: make(chan string, 8), cut: make(chan struct{}, 8)}
	s.Backend = weirtest.NewBackend(t, func(c *weirtest.Conn) {
		m := c.Request()
		if m == nil {
			return
		}
		c.Note(m)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if m := c.ReadHead(); m == nil {
				s.cut <- struct{}{}
			}
		}()
		select {
		case a := <-s.answer:
			_ = c.Try(a)
			<-gone
		case <-gone:
		}
	})
	return s
}

func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(weirtest.Patience):
		t.Fatal("waited in vain: " + what)
	}
}

// TestHedgeWins: the first backend keeps silent, the second one answers; the
// first one's connection is cut at once, and its slot is free.
func TestHedgeWins(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
		slow, quick := newMute(t), weirtest.Always(t, ok2)
		if method == "HEAD" {
			quick = weirtest.Always(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
		}
		r := newRig(t, []string{slow.Addr(), quick.Addr()}, firstPick, rigOptions{edit: hedged})
		if m := r.roundTrip(method + " / HTTP/1.1\r\nHost: h\r\n\r\n"); m.Status() != 200 || method != "HEAD" && m.Body != "ok" {
			t.Fatalf("%s: answer %+v", method, m)
		}
		wait(t, "the loser is cut", slow.cut)
		rec := r.want(200, message.OK, true)
		if rec.Backend != "b1" || rec.Attempts != 2 || rec.Retries != 0 || rec.Detail != "answered by a hedge" ||
			len(rec.Tried) != 1 || rec.Tried[0] != (observe.Try{Backend: "b0", Reason: message.OK}) {
			t.Errorf("%s: record %+v", method, rec)
		}
	}
}

// TestHedgeLoses: the first backend answers while the hedge is under way.
func TestHedgeLoses(t *testing.T) {
	first, second := newMute(t), newMute(t)
	r := newRig(t, []string{first.Addr(), second.Addr()}, firstPick, rigOptions{edit: hedged})
	c := r.dial()
	c.Send(get)
	eventually(t, "a hedge", func() bool { return len(second.Seen()) == 1 })
	first.answer <- ok2
	if m := c.Final("GET"); m == nil || m.Status() != 200 || m.Body != "ok" {
		t.Fatalf("answer %+v", m)
	}
	wait(t, "the hedge is cut", second.cut)
	if rec := r.want(200, message.OK, true); rec.Backend != "b0" || rec.Attempts != 2 || len(rec.Tried) != 0 {
		t.Errorf("record %+v", rec)
	}
}

// TestHedgeIsTheSecondAttempt: when the first attempt fails while its hedge is
// under way, the hedge's answer is waited for, and no third one is made.
func TestHedgeIsTheSecondAttempt(t *testing.T) {
	const busy = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
	for _, c := range []struct {
		first, hedge string // empty: the connection is closed
		status       int
		backend      string
		reason       message.Reason
	}{
		{busy, ok2, 200, "b1", message.OK},
		{"", ok2, 200, "b1", message.OK},
		{busy, busy, 503, "b0", message.OK},
		{busy, "", 503, "b0", message.OK},
		{"", busy, 502, "b0", message.ResetBeforeResponse},
	} {
		t.Run(fmt.Sprintf("%.12s %.12s", c.first, c.hedge), func(t *testing.T) {
			first, second, third := newMute(t), newMute(t), weirtest.Always(t, ok2)
			r := newRig(t, []string{first.Addr(), second.Addr(), third.Addr()}, firstPick, rigOptions{edit: hedged})
			conn := r.dial()
			conn.Send(get)
			eventually(t, "a hedge", func() bool { return len(second.Seen()) == 1 })
			first.answer <- c.first
			if c.first == "" {
				first.Close()
			}
			second.answer <- c.hedge
			if c.hedge == "" {
				second.Close()
			}
			if m := conn.Final("GET"); m == nil || m.Status() != c.status {
				t.Fatalf("answer %+v", m)
			}
			rec := r.want(c.status, c.reason, true)
			if rec.Backend != c.backend || rec.Attempts != 2 || len(third.Seen()) != 0 {
				t.Errorf("record %+v, %d requests on the third backend", rec, len(third.Seen()))
			}
		})
	}
}

// TestNoHedge: what may not be hedged never is.
func TestNoHedge(t *testing.T) {
	for _, c := range []struct {
		name, request string
		edit          func(*rig)
		pool          func(*pool.Config)
		one           bool
	}{
		{name: "off by default", request: get, edit: func(r *rig) { r.rt.Retry.Hedge = pool.Hedge{} }},
		{name: "POST", request: post},
		{name: "POST with a key", request: keyd},
		{name: "PUT", request: put},
		{name: "DELETE", request: "DELETE / HTTP/1.1\r\nHost: h\r\n\r\n"},
		{name: "content", request: "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"},
		{name: "no budget", request: get, pool: func(c *pool.Config) { c.Retry = pool.Budget{} }},
		{name: "one attempt", request: get, edit: func(r *rig) { r.rt.Retry.Attempts = 1 }},
		{name: "latency not known", request: get, edit: func(r *rig) { r.rt.Retry.Hedge = pool.Hedge{Percent: 95} }},
		{name: "nobody else", request: get, one: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, second := newMute(t), weirtest.Always(t, ok2)
			addrs := []string{first.Addr(), second.Addr()}
			if c.one {
				addrs = addrs[:1]
			}
			r := newRig(t, addrs, firstPick, rigOptions{pool: c.pool, edit: func(r *rig) {
				hedged(r)
				if c.edit != nil {
					c.edit(r)
				}
			}})
			conn := r.dial()
			conn.Send(c.request)
			eventually(t, "the first attempt", func() bool { return len(first.Seen()) == 1 })
			time.AfterFunc(20*time.Millisecond, func() { first.answer <- ok2 })
			method, _, _ := strings.Cut(c.request, " ")
			if m := conn.Final(method); m == nil || m.Status() != 200 {
				t.Fatalf("answer %+v", m)
			}
			if rec := r.want(200, message.OK, true); rec.Attempts != 1 || len(second.Seen()) != 0 {
				t.Errorf("record %+v, %d requests on the second backend", rec, len(second.Seen()))
			}
		})
	}
}

// TestHedgeClientLeaves: both attempts are cut when nobody waits any more.
func TestHedgeClientLeaves(t *testing.T) {
	first, second := newMute(t), newMute(t)
	r := newRig(t, []string{first.Addr(), second.Addr()}, firstPick, rigOptions{edit: hedged})
	c := r.dial()
	c.Send(get)
	eventually(t, "a hedge", func() bool { return len(second.Seen()) == 1 })
	c.Reset()
	wait(t, "the first attempt is cut", first.cut)
	wait(t, "the hedge is cut", second.cut)
	if rec := r.record(); rec.Reason != message.ClientAbort {
		t.Errorf("record %+v", rec)
	}
}

// TestHedgesAreCounted by what became of them.
func TestHedgesAreCounted(t *testing.T) {
	const busy = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
	for outcome, c := range map[string]struct {
		first, second string // what they answer; empty: nothing
		pool          func(*pool.Config)
	}{
		"won":     {"", ok2, nil},
		"lost":    {ok2, "", nil},
		"failed":  {busy, busy, nil},
		"refused": {ok2, "", func(c *pool.Config) { c.Retry = pool.Budget{} }},
	} {
		m := observe.NewMetrics(observe.MetricsOptions{})
		first, second := newMute(t), newMute(t)
		r := newRig(t, []string{first.Addr(), second.Addr()}, firstPick, metered(m), rigOptions{edit: hedged, pool: c.pool})
		conn := r.dial()
		conn.Send(get)
		if outcome == "refused" {
			eventually(t, "a refusal", func() bool { return len(series(m, "weir_hedges_total")) > 0 })
		} else {
			eventually(t, "a hedge", func() bool { return len(second.Seen()) == 1 })
		}
		for b, answer := range map[*mute]string{first: c.first, second: c.second} {
			if answer != "" {
				b.answer <- answer
			}
		}
		if m := conn.Final("GET"); m == nil {
			t.Fatalf("%s: no answer", outcome)
		}
		<-r.done
		if got, want := series(m, "weir_hedges_total"), fmt.Sprintf(`{outcome=%q,pool="app"} 1`, outcome); len(got) != 1 || got[0] != want {
			t.Errorf("counted %q, want %s", got, want)
		}
	}
}

// TestHedgeRace lets both backends answer at the same time, again and again:
// every request gets one whole answer, and nothing is left.
func TestHedgeRace(t *testing.T) {
	script := func(name string) func(*weirtest.Conn) {
		return func(c *weirtest.Conn) {
			for i := 0; c.Request() != nil; i++ {
				timer := time.NewTimer(time.Duration(900+i%7*50) * time.Microsecond)
				<-timer.C
				if c.Try("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"+name) != nil {
					return
				}
			}
		}
	}
	a, b := weirtest.NewBackend(t, script("aa")), weirtest.NewBackend(t, script("bb"))
	r := newRig(t, []string{a.Addr(), b.Addr()}, rigOptions{edit: hedged})
	const clients, each = 4, 100
	done := make(chan struct{})
	for range clients {
		go func() {
			defer func() { done <- struct{}{} }()
			c := r.dial()
			for range each {
				if c.Try(get) != nil {
					t.Error("send failed")
					return
				}
				if m := c.Final("GET"); m == nil || m.Status() != 200 || m.Body != "aa" && m.Body != "bb" {
					t.Errorf("answer %+v", m)
					return
				}
			}
		}()
	}
	for range clients {
		<-done
	}
	won, twice := 0, 0
	for range clients * each {
		rec := r.record()
		if rec.Attempts == 2 {
			twice++
		}
		if len(rec.Tried) == 1 {
			won++
		}
	}
	t.Logf("%d of %d hedged, %d answered by the hedge", twice, clients*each, won)
	if twice == 0 {
		t.Error("nothing was hedged")
	}
}
