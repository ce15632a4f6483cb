// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/weirtest"
)

// asking is a client whose connections are for one server name, whatever host its
// requests are for: what a browser does that reuses a connection.
func asking(t *testing.T, r *running, ca *weirtest.Authority, name string, h2 bool, own ...tls.Certificate) *http.Client {
	t.Helper()
	tr := &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			cfg := &tls.Config{RootCAs: ca.Pool(), ServerName: name, Certificates: own}
			if h2 {
				cfg.NextProtos = []string{"h2"}
			}
			d := &tls.Dialer{Config: cfg}
			return d.DialContext(ctx, "tcp", strings.TrimPrefix(r.front, "http://"))
		},
	}
	tr.Protocols = new(http.Protocols)
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetHTTP2(h2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: limit}
}

// TestServerNames: routes by server name, and requests on connections that are not
// for their host, over both versions of HTTP.
func TestServerNames(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	cert, key := ca.Write(dir, "a", ca.Issue("a.test", "*.a.test", "admin.test", "open.test"))
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.Header.Get("X-Route")) }))
	t.Cleanup(back.Close)
	text := fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners:
  web:
    bind: "127.0.0.1:0"
    tls:
      certificates: [{cert: %q, key: %q}]
      client_auth: {mode: required, ca: %q, sni: admin.test}
    routes:
      - {match: {host: a.test, sni: A.test}, pool: app, request_headers: {set: {X-Route: exact}}}
      - {match: {sni: "*.a.test"}, pool: app, request_headers: {set: {X-Route: wild}}}
      - {match: {host: open.test}, pool: app, request_headers: {set: {X-Route: open}}}
      - {match: {host: admin.test}, pool: app, request_headers: {set: {X-Route: admin}}}
pools:
  app: {backends: [%q]}
`, cert, key, ca.WritePool(dir), back.URL)
	r := start(t, text)
	alice := ca.Issue("alice")
	for _, h2 := range []bool{false, true} {
		for _, c := range []struct {
			name, host string
			own        []tls.Certificate
			status     int
			body       string
		}{
			{"a.test", "a.test", nil, 200, "exact"},
			{"A.TEST", "a.test", nil, 200, "exact"},
			{"x.a.test", "any.test", nil, 200, "wild"},
			{"open.test", "a.test", nil, 421, "misdirected"},
			{"a.test", "open.test", nil, 200, "open"},
			{"open.test", "nowhere.test", nil, 421, "misdirected"}, // a connection for x.a.test would be served
			{"open.test", "admin.test", nil, 421, "misdirected"},
			{"open.test", "ADMIN.test:443", nil, 421, "misdirected"},
			{"admin.test", "admin.test", []tls.Certificate{alice}, 200, "admin"},
			{"admin.test", "open.test", []tls.Certificate{alice}, 421, "misdirected"},
		} {
			got := mustGet(t, asking(t, r, ca, c.name, h2, c.own...), "https://"+c.host+"/")
			if got.status != c.status || !strings.Contains(got.body, c.body) {
				t.Errorf("h2 %v, %s for %s: %d %s", h2, c.name, c.host, got.status, got.body)
			}
		}
		if _, err := asking(t, r, ca, "admin.test", h2).Get("https://admin.test/"); err == nil {
			t.Errorf("h2 %v: served without a certificate", h2)
		}
	}
	for _, c := range []struct{ sni, route, why string }{
		{"", "a.test", ""},
		{"none", "", "another TLS server name"},
		{"x.a.test", "*.a.test", ""},
		{"admin.test", "", "other certificates of clients"},
	} {
		got, err := r.Explain(admin.Question{URL: "https://a.test/", SNI: c.sni})
		if err != nil {
			t.Fatal(err)
		}
		if got.Route != c.route || (c.why != "") != (got.Answer != nil) || c.why != "" && (got.Answer.Status != 421 || !strings.Contains(got.Answer.Words, c.why)) {
			t.Errorf("explained for %q: %q, %+v", c.sni, got.Route, got.Answer)
		}
	}
}

// TestSessionsByName: TLS goes by its name to servers that end it, a reload sends
// the next one elsewhere and leaves those that are open alone, and what explain says
// is what happens.
func TestSessionsByName(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	serve := func(name string) string {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, name, " ", r.TLS.ServerName) }))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue("a.test", "b.test", "x.b.test", "c.test")}}
		s.StartTLS()
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "https://")
	}
	one, two := serve("one"), serve("two")
	text := func(rest string) string {
		return fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners:
  front:
    bind: "127.0.0.1:0"
    protocol: sni
    routes:
      - {match: {sni: a.test}, pool: one}
      - {match: {sni: "*.b.test"}, pool: two}
%spools:
  one: {backends: ["tcp://%s"]}
  two: {backends: ["tcp://%s"]}
`, rest, one, two)
	}
	r := start(t, text(""))
	kept := asking(t, r, ca, "a.test", false)
	check := func(name, want string) {
		t.Helper()
		got, err := asking(t, r, ca, name, false).Get("https://" + name + "/")
		if err != nil {
			if want != "" {
				t.Errorf("%s: %v", name, err)
			} else if !strings.Contains(err.Error(), "unrecognized name") {
				t.Errorf("%s: %v", name, err)
			}
		} else {
			_ = got.Body.Close()
			if want == "" {
				t.Errorf("%s is served", name)
			}
		}
		e, err := r.Explain(admin.Question{URL: "https://" + name + "/"})
		if err != nil {
			t.Fatal(err)
		}
		if said := e.Pool; (said == nil) != (want == "") || said != nil && said.Name != want {
			t.Errorf("%s is explained as %+v, %+v", name, said, e.Answer)
		}
	}
	if got := mustGet(t, kept, "https://a.test/"); got.body != "one a.test" {
		t.Errorf("%+v", got)
	}
	check("a.test", "one")
	check("x.b.test", "two")
	check("c.test", "")
	if _, err := r.Reload(parse(t, strings.Replace(text("      - {pool: two}\n"), "a.test}, pool: one", "a.test}, pool: two", 1)), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := mustGet(t, kept, "https://a.test/"); got.body != "one a.test" {
		t.Errorf("after the reload the open connection is answered %+v", got)
	}
	check("a.test", "two")
	check("c.test", "two")
}
