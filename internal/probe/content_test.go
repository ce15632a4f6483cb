// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/weirlb/weir/health"
)

// TestBodyMatch: an answer of an expected status passes only with the content that
// is wanted; what is not looked at (more than 64 KiB) counts as not there, and an
// answer that does not arrive whole is none.
func TestBodyMatch(t *testing.T) {
	p := newProber(t, Options{})
	sized := func(body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	chunked := func(parts ...string) string {
		out := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
		for _, s := range parts {
			out += fmt.Sprintf("%x\r\n%s\r\n", len(s), s)
		}
		return out + "0\r\n\r\n"
	}
	ok := &Match{Text: "all is well"}
	json := &Match{Pattern: regexp.MustCompile(`^\{"status":\s*"(ok|warn)"\}$`)}
	filler := strings.Repeat("x", maxContent-len(ok.Text))
	for name, c := range map[string]struct {
		answer string
		match  *Match
		want   health.ProbeOutcome
		cause  health.Cause
		said   string // part of the error
		hangs  bool
		loads  bool
	}{
		"found":           {answer: sized("yes, all is well here"), match: ok},
		"in chunks":       {answer: chunked("yes, all", " is w", "ell"), match: ok},
		"until close":     {answer: "HTTP/1.0 200 OK\r\n\r\nall is well", match: ok},
		"missing":         {answer: sized("all is lost"), match: ok, want: health.NotReady, cause: health.CauseBody, said: `body: "all is lost" does not contain "all is well"`},
		"empty":           {answer: sized(""), match: ok, want: health.NotReady, cause: health.CauseBody, said: "an empty answer"},
		"no content":      {answer: "HTTP/1.1 204 No Content\r\n\r\n", match: ok, want: health.NotReady, cause: health.CauseBody},
		"case":            {answer: sized("All is well"), match: ok, want: health.NotReady, cause: health.CauseBody},
		"other status":    {answer: "HTTP/1.1 503 Busy\r\nContent-Length: 11\r\n\r\nall is well", match: ok, want: health.NotReady, cause: health.CauseStatus},
		"pattern":         {answer: sized(`{"status": "warn"}`), match: json},
		"pattern missing": {answer: sized(`{"status": "down"}`), match: json, want: health.NotReady, cause: health.CauseBody, said: `does not contain /^\{"status":\s*"(ok|warn)"\}$/`},
		"anchored":        {answer: chunked(`{"status": "ok"}`, ` and more`), match: json, want: health.NotReady, cause: health.CauseBody},
		"at the bound":    {answer: sized(filler + ok.Text), match: ok},
		"behind it":       {answer: sized(filler + "y" + ok.Text), match: ok, want: health.NotReady, cause: health.CauseBody, said: "in its first 64KiB"},
		"endless":         {answer: "HTTP/1.1 200 OK\r\n\r\nall is well" + strings.Repeat(".", maxWord), match: ok, hangs: true},
		"never whole":     {answer: "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nall is", match: ok, want: health.NoAnswer, cause: health.CauseTimeout, said: "content was incomplete", hangs: true},
		"cut short":       {answer: "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nall is well", match: ok, want: health.NoAnswer, cause: health.CauseReset, said: "content was incomplete"},
		"bad chunk":       {answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nall is well", match: ok, want: health.NoAnswer, cause: health.CauseMalformed},
		"overloaded":      {answer: sized("overloaded\n"), match: ok, want: health.Overloaded},
		"load":            {answer: "HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.5\r\nContent-Length: 11\r\n\r\nall is well", match: ok, loads: true},
		"control bytes":   {answer: sized("a\x1b[2J\r\nb"), match: ok, want: health.NotReady, cause: health.CauseBody, said: `"a\x1b[2J\r\nb"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := scripted(t, func(conn net.Conn) {
				readHead(conn)
				_, _ = io.WriteString(conn, c.answer)
				if c.hangs {
					silent(conn)
				}
			})
			h := get()
			h.Body, h.Overload, h.LoadReports = c.match, true, true
			timeout := long
			if c.want == health.NoAnswer && c.hangs {
				timeout = short
			}
			r := one(t, p, Target{Address: address, HTTP: h}, timeout)
			if r.Outcome != c.want || r.Cause != c.cause || !strings.Contains(r.Error, c.said) || r.HasLoad != c.loads {
				t.Errorf("%v, %v (%s), load %v; want %v, %v, %q", r.Outcome, r.Cause, r.Error, r.HasLoad, c.want, c.cause, c.said)
			}
		})
	}
}
