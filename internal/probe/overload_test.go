// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
)

// TestOverloadedAnswers: an expected answer may say that the backend is
// overloaded; one that is not expected means not_ready whatever it says.
func TestOverloadedAnswers(t *testing.T) {
	p := newProber(t, Options{})
	sized := func(body string) string {
		return "HTTP/1.1 200 OK\r\nContent-Length: " + string(rune('0'+len(body)/10)) + string(rune('0'+len(body)%10)) + "\r\n\r\n" + body
	}
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct {
		answer string
		method string
		want   health.ProbeOutcome
		load   float64
	}{
		"word":             {answer: sized("overloaded\n"), want: health.Overloaded},
		"chunks":           {answer: chunked + "4\r\nover\r\n6\r\nloaded\r\n0\r\n\r\n", want: health.Overloaded},
		"until close":      {answer: "HTTP/1.0 200 OK\r\n\r\n overloaded ", want: health.Overloaded},
		"other word":       {answer: sized("not overloaded")},
		"part of a word":   {answer: sized("overload")},
		"empty":            {answer: sized("")},
		"long":             {answer: sized("overloaded" + "                                                                     ")},
		"long chunk":       {answer: chunked + "50\r\noverloaded                                                                      \r\n0\r\n\r\n"},
		"bad chunk":        {answer: chunked + "zz\r\noverloaded"},
		"never comes":      {answer: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\noverload"},
		"503":              {answer: "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.99\r\nContent-Length: 10\r\n\r\noverloaded", want: health.NotReady},
		"head":             {answer: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", method: "HEAD"},
		"load":             {answer: "HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.99\r\nContent-Length: 2\r\n\r\nok", load: 0.99},
		"load of HEAD":     {answer: "HTTP/1.1 200 OK\r\nendpoint-load-metrics-bin: CTMzMzMzM9M/\r\nContent-Length: 2\r\n\r\n", method: "HEAD", load: 0.3},
		"both":             {answer: "HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.5\r\nContent-Length: 10\r\n\r\noverloaded", want: health.Overloaded, load: 0.5},
		"malformed report": {answer: "HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=99%\r\nContent-Length: 2\r\n\r\nok"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := scripted(t, func(conn net.Conn) {
				readHead(conn)
				_, _ = io.WriteString(conn, c.answer)
				if name == "never comes" {
					silent(conn)
				}
			})
			h := &HTTP{Method: c.method, Path: "/readyz", Host: "app.example", Overload: true, LoadReports: true}
			r := one(t, p, Target{Address: address, HTTP: h}, 5*time.Second)
			if r.Outcome != c.want || r.Load != c.load || r.HasLoad != (c.load > 0) {
				t.Errorf("%v (%s), load %v %v; want %v, %v", r.Outcome, r.Error, r.Load, r.HasLoad, c.want, c.load)
			}
			h.Overload, h.LoadReports = false, false
			if r := one(t, p, Target{Address: address, HTTP: h}, 5*time.Second); r.Outcome == health.Overloaded || r.HasLoad {
				t.Errorf("asked for neither: %v, load %v", r.Outcome, r.HasLoad)
			}
		})
	}
}
