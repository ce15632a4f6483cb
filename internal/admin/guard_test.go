// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestGuard is S13's table: who may do what.
func TestGuard(t *testing.T) {
	patch := func(header map[string]string) request {
		h := map[string]string{"Content-Type": "application/json"}
		for k, v := range header {
			if h[k] = v; v == "" {
				delete(h, k)
			}
		}
		return request{"PATCH", "/api/v1/pools/app/backends/10.0.1.21:8080", `{"admin":"draining"}`, h}
	}
	get := func(path string, header map[string]string) request { return request{"GET", path, "", header} }
	type h = map[string]string
	plain := serve(t, Options{Hosts: []string{"weir.internal", "Other.Internal:9900"}})
	guarded := serve(t, Options{TokenFile: tokenFile(t, testToken+"\n")})
	self := "http://" + plain.Addr().String()
	for _, c := range []struct {
		name   string
		server *Server
		q      request
		status int
		code   string
	}{
		{"address itself", plain, get("/api/v1/status", nil), 200, ""},
		{"localhost", plain, get("/api/v1/status", h{"Host": "localhost:9900"}), 200, ""},
		{"LOCALHOST.", plain, get("/api/v1/status", h{"Host": "LOCALHOST."}), 200, ""},
		{"other loopback", plain, get("/api/v1/status", h{"Host": "127.9.9.9"}), 200, ""},
		{"IPv6 loopback", plain, get("/api/v1/status", h{"Host": "[::1]:9900"}), 200, ""},
		{"listed", plain, get("/api/v1/status", h{"Host": "weir.internal:1"}), 200, ""},
		{"listed with port", plain, get("/api/v1/status", h{"Host": "other.internal"}), 200, ""},
		{"rebound name", plain, get("/api/v1/status", h{"Host": "evil.example"}), 421, CodeBadHost},
		{"rebound name, page", plain, get("/", h{"Host": "evil.example:9900"}), 421, CodeBadHost},
		{"rebound name, metrics", plain, get("/metrics", h{"Host": "evil.example"}), 421, CodeBadHost},
		{"name that looks like loopback", plain, get("/api/v1/status", h{"Host": "127.0.0.1.evil.example"}), 421, CodeBadHost},
		{"name that contains localhost", plain, get("/api/v1/status", h{"Host": "localhost.evil.example"}), 421, CodeBadHost},
		{"other address", plain, get("/api/v1/status", h{"Host": "192.0.2.1"}), 421, CodeBadHost},

		{"change by a program", plain, patch(nil), 200, ""},
		{"change by the page", plain, patch(h{"Origin": self, "Sec-Fetch-Site": "same-origin"}), 200, ""},
		{"charset", plain, patch(h{"Content-Type": "application/json; charset=utf-8"}), 200, ""},
		{"form", plain, patch(h{"Content-Type": "application/x-www-form-urlencoded"}), 415, CodeNotJSON},
		{"text", plain, patch(h{"Content-Type": "text/plain"}), 415, CodeNotJSON},
		{"untyped", plain, patch(h{"Content-Type": ""}), 415, CodeNotJSON},
		{"other origin", plain, patch(h{"Origin": "http://evil.example"}), 403, CodeCrossOrigin},
		{"other port", plain, patch(h{"Origin": "http://127.0.0.1:1"}), 403, CodeCrossOrigin},
		{"null origin", plain, patch(h{"Origin": "null"}), 403, CodeCrossOrigin},
		{"cross-site", plain, patch(h{"Sec-Fetch-Site": "cross-site"}), 403, CodeCrossOrigin},
		{"same-site", plain, patch(h{"Sec-Fetch-Site": "same-site"}), 403, CodeCrossOrigin},
		{"same origin, yet cross-site", plain, patch(h{"Origin": self, "Sec-Fetch-Site": "cross-site"}), 403, CodeCrossOrigin},
		{"preflight", plain, request{"OPTIONS", "/api/v1/pools", "", h{"Origin": "http://evil.example", "Access-Control-Request-Method": "PATCH"}}, 403, CodeCrossOrigin},
		{"rebound change", plain, patch(h{"Host": "evil.example", "Origin": "http://evil.example"}), 421, CodeBadHost},
		{"profile without token", plain, get("/debug/pprof/", nil), 403, CodeForbidden},
		{"heap without token", plain, get("/debug/pprof/heap", nil), 403, CodeForbidden},

		{"no token", guarded, get("/api/v1/status", nil), 401, CodeUnauthorized},
		{"wrong token", guarded, get("/api/v1/status", h{"Authorization": "Bearer " + testToken + "x"}), 401, CodeUnauthorized},
		{"part of the token", guarded, get("/api/v1/status", h{"Authorization": "Bearer " + testToken[:20]}), 401, CodeUnauthorized},
		{"empty token", guarded, get("/api/v1/status", h{"Authorization": "Bearer "}), 401, CodeUnauthorized},
		{"other scheme", guarded, get("/api/v1/status", h{"Authorization": "Basic " + testToken}), 401, CodeUnauthorized},
		{"token", guarded, get("/api/v1/status", h{"Authorization": "Bearer " + testToken}), 200, ""},
		{"scheme in lower case", guarded, get("/api/v1/status", h{"Authorization": "bearer " + testToken}), 200, ""},
		{"metrics without token", guarded, get("/metrics", nil), 401, CodeUnauthorized},
		{"change without token", guarded, patch(nil), 401, CodeUnauthorized},
		{"change with token", guarded, patch(h{"Authorization": "Bearer " + testToken}), 200, ""},
		{"token does not help another site", guarded, patch(h{"Authorization": "Bearer " + testToken, "Origin": "http://evil.example"}), 403, CodeCrossOrigin},
		{"page without token", guarded, get("/", nil), 200, ""},
		{"script without token", guarded, get("/ui/app.js", nil), 200, ""},
		{"live without token", guarded, get("/livez", nil), 200, ""},
		{"ready without token", guarded, get("/readyz", nil), 200, ""},
		{"profile with token", guarded, get("/debug/pprof/cmdline", h{"Authorization": "Bearer " + testToken}), 200, ""},
		{"profile without it", guarded, get("/debug/pprof/cmdline", nil), 401, CodeUnauthorized},
		{"profile too long", guarded, get("/debug/pprof/profile?seconds=9999", h{"Authorization": "Bearer " + testToken}), 400, CodeBadBody},
	} {
		w, body := send(t, c.server, c.q)
		var p Problem
		if w.Header.Get("Content-Type") == "application/problem+json" {
			if err := json.Unmarshal([]byte(body), &p); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if p.Status != w.StatusCode || p.Detail == "" {
				t.Errorf("%s: problem %+v with status %d", c.name, p, w.StatusCode)
			}
		}
		if w.StatusCode != c.status || p.Code != c.code {
			t.Errorf("%s: %d %q, want %d %q", c.name, w.StatusCode, p.Code, c.status, c.code)
		}
		for _, k := range []string{"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cross-Origin-Resource-Policy"} {
			if w.Header.Get(k) == "" {
				t.Errorf("%s: no %s", c.name, k)
			}
		}
		if w.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: cross-origin reads are allowed", c.name)
		}
	}
}

// TestLocalAddress: on a wildcard address the connection's own is a good Host.
func TestLocalAddress(t *testing.T) {
	s := serve(t, Options{Bind: "0.0.0.0:0", TokenFile: tokenFile(t, testToken)})
	_, port, err := net.SplitHostPort(s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	g := newGuard("0.0.0.0:"+port, nil, testToken)
	r, err := http.NewRequest("GET", "http://192.0.2.7:"+port+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for local, want := range map[string]bool{"192.0.2.7:1": true, "192.0.2.8:1": false} {
		a, err := net.ResolveTCPAddr("tcp", local)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.hostAllowed(r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(a)))); got != want {
			t.Errorf("Host 192.0.2.7 on %s: %v, want %v", local, got, want)
		}
	}
}

func TestListenRefuses(t *testing.T) {
	plainFile := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plainFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := plainFile + ".pipe"
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct {
		opt  Options
		want string
	}{
		"open without token": {Options{Bind: "0.0.0.0:0"}, "token_file"},
		"all without token":  {Options{Bind: ":0"}, "token_file"},
		"name without token": {Options{Bind: "weir.internal:0"}, "token_file"},
		"short token":        {Options{Bind: "127.0.0.1:0", TokenFile: tokenFile(t, "short")}, "at least 16"},
		"empty token":        {Options{Bind: "127.0.0.1:0", TokenFile: tokenFile(t, "\n"+testToken)}, "at least 16"},
		"no token file":      {Options{Bind: "127.0.0.1:0", TokenFile: plainFile + "x"}, "no such file"},
		"silent pipe":        {Options{Bind: "127.0.0.1:0", TokenFile: pipe}, "at least 16"},
		"endless device":     {Options{Bind: "127.0.0.1:0", TokenFile: "/dev/zero"}, "control characters"},
		"taken":              {Options{Bind: taken.Addr().String()}, "in use"},
		"not a socket":       {Options{Bind: "unix:" + plainFile}, "is no socket"},
		"no directory":       {Options{Bind: "unix:" + plainFile + "x/s"}, "no such file"},
	} {
		c.opt.Controller = newFake()
		if s, err := Listen(c.opt); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
			if s != nil {
				s.Close(context.Background())
			}
		}
	}
}
