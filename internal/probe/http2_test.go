// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
)

// muxedServer serves in the protocols that are named.
func muxedServer(t *testing.T, secure, h1, h2 bool) (addr string, offers *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Proto", r.Proto)
		switch r.URL.Path {
		case "/hints":
			w.WriteHeader(http.StatusEarlyHints)
		case "/gone":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/busy":
			_, _ = io.WriteString(w, "overloaded\n")
			return
		case "/load":
			w.Header().Set("endpoint-load-metrics", "TEXT application_utilization=0.5")
		case "/long":
			_, _ = io.WriteString(w, strings.Repeat("x", 200<<10))
			return
		case "/endless":
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
			return
		case "/reset":
			panic(http.ErrAbortHandler)
		}
		_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Method, r.Host, r.Proto, r.UserAgent())
	}))
	p := new(http.Protocols)
	p.SetHTTP1(h1)
	p.SetHTTP2(h2 && secure)
	p.SetUnencryptedHTTP2(h2 && !secure)
	s.Config.Protocols, s.Config.ErrorLog = p, log.New(io.Discard, "", 0)
	if secure {
		s.EnableHTTP2 = h2
		s.StartTLS()
		roots := x509.NewCertPool()
		roots.AddCert(s.Certificate())
		offers = &tls.Config{RootCAs: roots, ServerName: "example.com", NextProtos: []string{"h2", "http/1.1"}}
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), offers
}

// TestHTTPOverHTTP2: an HTTP probe asks a backend that speaks HTTP/2 in it, and judges
// the answer as over HTTP/1.1.
func TestHTTPOverHTTP2(t *testing.T) {
	p := newProber(t, Options{Version: "1.2"})
	clear2, _ := muxedServer(t, false, false, true)
	clear1, _ := muxedServer(t, false, true, false)
	both, offers := muxedServer(t, true, true, true)
	old, oldOffers := muxedServer(t, true, true, false)
	match := func(s string) *Match { return &Match{Text: s} }
	for name, c := range map[string]struct {
		addr    string
		tls     *tls.Config
		ask     HTTP
		outcome health.ProbeOutcome
		says    string // the result's error begins so
		load    float64
	}{
		"clear":              {clear2, nil, HTTP{H2: true, Path: "/a?b", Host: "h.test", Body: match("GET h.test HTTP/2.0 weir-probe/1.2")}, health.Pass, "", 0},
		"head":               {clear2, nil, HTTP{H2: true, Path: "/", Host: "h", Method: "HEAD"}, health.Pass, "", 0},
		"hints":              {clear2, nil, HTTP{H2: true, Path: "/hints", Host: "h", Overload: true}, health.Pass, "", 0},
		"status":             {clear2, nil, HTTP{H2: true, Path: "/gone", Host: "h"}, health.NotReady, "status: 503", 0},
		"content":            {clear2, nil, HTTP{H2: true, Path: "/", Host: "h", Body: match("else")}, health.NotReady, "body: ", 0},
		"long content":       {clear2, nil, HTTP{H2: true, Path: "/long", Host: "h", Body: match("y")}, health.NotReady, "body: ", 0},
		"overloaded":         {clear2, nil, HTTP{H2: true, Path: "/busy", Host: "h", Overload: true}, health.Overloaded, "overloaded", 0},
		"content has no end": {clear2, nil, HTTP{H2: true, Path: "/endless", Host: "h", Overload: true}, health.Pass, "", 0},
		"load":               {clear2, nil, HTTP{H2: true, Path: "/load", Host: "h", LoadReports: true}, health.Pass, "", 0.5},
		"reset":              {clear2, nil, HTTP{H2: true, Path: "/reset", Host: "h"}, health.NoAnswer, "reset", 0},
		"agreed on":          {both, offers, HTTP{Path: "/", Host: "h", Body: match("HTTP/2.0")}, health.Pass, "", 0},
		"not agreed on":      {old, oldOffers, HTTP{Path: "/", Host: "h", Body: match("HTTP/1.1")}, health.Pass, "", 0},
		"not spoken":         {clear1, nil, HTTP{H2: true, Path: "/", Host: "h"}, health.NoAnswer, "malformed", 0},
	} {
		t.Run(name, func(t *testing.T) {
			ask := c.ask
			r := one(t, p, Target{Address: c.addr, TLS: c.tls, HTTP: &ask}, 5*time.Second)
			if r.Outcome != c.outcome || !strings.HasPrefix(r.Error, c.says) || r.Load != c.load {
				t.Errorf("%v %q load %v", r.Outcome, r.Error, r.Load)
			}
		})
	}
}
