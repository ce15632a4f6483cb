// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"net"
	"regexp"
	"testing"

	"github.com/weirlb/weir/health"
)

// TestTalk: protocols that are asked something, and those in which servers speak
// first.
func TestTalk(t *testing.T) {
	says := func(first, to, then string) string {
		return scripted(t, func(c net.Conn) {
			_, _ = io.WriteString(c, first)
			got := make([]byte, len(to))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != to {
				return
			}
			_, _ = io.WriteString(c, then)
			if then != "" {
				_, _ = io.Copy(io.Discard, c)
			}
		})
	}
	p := newProber(t, Options{})
	banner := &Match{Pattern: regexp.MustCompile(`^220 `)}
	for _, c := range []struct {
		name, addr string
		talk       *Talk
		outcome    health.ProbeOutcome
		cause      health.ProbeCause
	}{
		{"a banner", says("220 mail.test ESMTP\r\n", "", " "), &Talk{Want: banner}, health.Pass, health.CauseNone},
		{"another banner", says("554 no\r\n", "", " "), &Talk{Want: banner}, health.NotReady, health.CauseBody},
		{"any banner", says("x", "", " "), &Talk{}, health.Pass, health.CauseNone},
		{"a question", says("", "PING\r\n", "+PONG\r\n"), &Talk{Send: "PING\r\n", Want: &Match{Text: "+PONG"}}, health.Pass, health.CauseNone},
		{"another answer", says("", "PING\r\n", "-LOADING\r\n"), &Talk{Send: "PING\r\n", Want: &Match{Text: "+PONG"}}, health.NotReady, health.CauseBody},
		{"an answer in pieces", says("+PO", "PING\r\n", "NG\r\n"), &Talk{Send: "PING\r\n", Want: &Match{Text: "+PONG"}}, health.Pass, health.CauseNone},
		{"half an answer, and the end", says("+PO", "PING\r\n", ""), &Talk{Send: "PING\r\n", Want: &Match{Text: "+PONG"}}, health.NotReady, health.CauseBody},
		{"the end", says("", "PING\r\n", ""), &Talk{Send: "PING\r\n"}, health.NoAnswer, health.CauseReset},
		{"silence", scripted(t, silent), &Talk{Send: "PING\r\n"}, health.NoAnswer, health.CauseTimeout},
	} {
		limit := long
		if c.cause == health.CauseTimeout || c.name == "another banner" || c.name == "another answer" {
			limit = short // what is wanted may still come until then
		}
		got := one(t, p, Target{Address: c.addr, Talk: c.talk}, limit)
		if got.Outcome != c.outcome || got.Cause != c.cause {
			t.Errorf("%s: %v, %v", c.name, got.Outcome, got.Cause)
		}
	}
}
