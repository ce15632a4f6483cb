// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net"
	"regexp"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
)

// TestExchange: what is asked over UDP, and what comes back, or that nothing does.
func TestExchange(t *testing.T) {
	says := func(answers ...string) string {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			b := make([]byte, 100)
			for {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				for _, a := range answers {
					if string(b[:n]) == "ask" {
						_, _ = c.WriteTo([]byte(a), from)
					}
				}
			}
		}()
		return c.LocalAddr().String()
	}
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := closed.LocalAddr().String()
	_ = closed.Close()

	p := newProber(t, Options{})
	noError := &Match{Pattern: regexp.MustCompile(`(?s)^we.[\x00\x80]`), Bytes: true}
	text := func(s string) *Match { return &Match{Text: s} }
	for _, c := range []struct {
		name, addr string
		want       *Match
		limit      time.Duration
		outcome    health.ProbeOutcome
		cause      health.ProbeCause
	}{
		{"anything", says("x"), nil, long, health.Pass, health.CauseNone},
		{"an empty datagram", says(""), nil, long, health.Pass, health.CauseNone},
		{"what is wanted", says("ready"), text("ready"), long, health.Pass, health.CauseNone},
		{"in the second", says("hello", "ready"), text("ready"), long, health.Pass, health.CauseNone},
		{"in two halves", says("rea", "dy"), text("ready"), short, health.NotReady, health.CauseBody},
		{"another one", says("busy"), text("ready"), short, health.NotReady, health.CauseBody},
		{"bytes", says("we\x81\x80"), noError, long, health.Pass, health.CauseNone},
		{"bytes of a failure", says("we\x81\x82"), noError, short, health.NotReady, health.CauseBody},
		{"a large one", says(string(make([]byte, 60000)) + "ready"), text("ready"), long, health.Pass, health.CauseNone},
		{"silence", says(), nil, short, health.NoAnswer, health.CauseTimeout},
		{"no process", gone, nil, long, health.NoAnswer, health.CauseRefused},
	} {
		start := time.Now()
		got := one(t, p, Target{Address: c.addr, Talk: &Talk{Datagrams: true, Send: "ask", Want: c.want}}, c.limit)
		if got.Outcome != c.outcome || got.Cause != c.cause || got.Retry {
			t.Errorf("%s: %v, %v: %s", c.name, got.Outcome, got.Cause, got.Error)
		}
		if c.limit == long && time.Since(start) > long/2 {
			t.Errorf("%s: took %v", c.name, time.Since(start))
		}
	}
}
