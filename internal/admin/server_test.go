// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

var golden = weirtest.Golden

type request struct {
	method, path, body string
	header             map[string]string // "Host" sets the Host
}

func send(t *testing.T, s *Server, q request) (*http.Response, string) {
	t.Helper()
	if q.method == "" {
		q.method = http.MethodGet
	}
	r, err := http.NewRequest(q.method, "http://"+s.Addr().String()+q.path, strings.NewReader(q.body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range q.header {
		if k == "Host" {
			r.Host = v
		} else {
			r.Header.Set(k, v)
		}
	}
	w, err := httpClient(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w, string(text)
}

var asJSON = map[string]string{"Content-Type": "application/json"}

// TestDocuments holds every document of the API to its golden file.
func TestDocuments(t *testing.T) {
	s := serve(t, Options{})
	for _, c := range []struct {
		file   string
		q      request
		status int
	}{
		{"status.json", request{path: "/api/v1/status"}, 200},
		{"pools.json", request{path: "/api/v1/pools"}, 200},
		{"pool.json", request{path: "/api/v1/pools/app"}, 200},
		{"backend.json", request{path: "/api/v1/pools/app/backends/a%2Fb:c%25"}, 200},
		{"patched.json", request{method: "PATCH", path: "/api/v1/pools/app/backends/10.0.1.21:8080", body: `{"admin":"draining"}`, header: asJSON}, 200},
		{"unknown_pool.json", request{path: "/api/v1/pools/nope"}, 404},
		{"unknown_backend.json", request{path: "/api/v1/pools/app/backends/nope"}, 404},
		{"unknown_path.json", request{path: "/api/v1/nope"}, 404},
		{"bad_method.json", request{method: "POST", path: "/api/v1/status", body: "{}", header: asJSON}, 405},
		{"bad_patch.json", request{method: "PATCH", path: "/api/v1/pools/app/backends/10.0.1.21:8080", body: `{"admin":"off"}`, header: asJSON}, 400},
		{"refused_patch.json", request{method: "PATCH", path: "/api/v1/pools/app/backends/10.0.1.21:8080", body: `{"admin":"disabled","weight":1}`, header: asJSON}, 422},
	} {
		w, body := send(t, s, c.q)
		if w.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d", c.file, w.StatusCode, c.status)
		}
		want := "application/json"
		if c.status >= 400 {
			want = "application/problem+json"
		}
		if got := w.Header.Get("Content-Type"); got != want {
			t.Errorf("%s: Content-Type %q, want %q", c.file, got, want)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, []byte(body), "", "  "); err != nil {
			t.Fatalf("%s: %v: %s", c.file, err, body)
		}
		golden(t, filepath.Join("testdata", c.file), pretty.Bytes())
	}
}

func TestBackendKeys(t *testing.T) {
	// The keys that the interface promises, whatever their values.
	body, err := json.Marshal(Backend{})
	if err != nil {
		t.Fatal(err)
	}
	var have map[string]any
	if err := json.Unmarshal(body, &have); err != nil {
		t.Fatal(err)
	}
	for _, k := range strings.Fields("id url zone weight admin health share reason since flips in_flight requests failures latency_ms last_check") {
		if _, ok := have[k]; !ok {
			t.Errorf("a backend has no key %s", k)
		}
	}
	for _, k := range []string{"p50", "p99", "ewma"} {
		if _, ok := have["latency_ms"].(map[string]any)[k]; !ok {
			t.Errorf("latency_ms has no key %s", k)
		}
	}
}

func TestParsePatch(t *testing.T) {
	n := func(v uint32) *uint32 { return &v }
	for _, c := range []struct {
		body string
		want Patch
		err  string // contained; empty: none
	}{
		{`{"admin":"draining"}`, Patch{Admin: "draining"}, ""},
		{`{"admin":"draining","deadline":"30s"}`, Patch{Admin: "draining", Deadline: 30 * time.Second}, ""},
		{`{"weight":0}`, Patch{Weight: n(0)}, ""},
		{`{"weight":65535,"admin":"enabled"}`, Patch{Admin: "enabled", Weight: n(65535)}, ""},
		{`{"weight":null}`, Patch{ResetWeight: true}, ""},
		{` {"admin":"disabled"} `, Patch{Admin: "disabled"}, ""},
		{``, Patch{}, "EOF"},
		{`{}`, Patch{}, "nothing to change"},
		{`{"admin":null}`, Patch{}, "nothing to change"},
		{`[]`, Patch{}, "JSON object"},
		{`{"admin":"DRAINING"}`, Patch{}, "use enabled, draining or disabled"},
		{`{"admin":1}`, Patch{}, "JSON object"},
		{`{"weight":-1}`, Patch{}, "whole number"},
		{`{"weight":1.5}`, Patch{}, "whole number"},
		{`{"weight":"1"}`, Patch{}, "whole number"},
		{`{"weight":65536}`, Patch{}, "whole number"},
		{`{"weight":1e99}`, Patch{}, "whole number"},
		{`{"wieght":1}`, Patch{}, "wieght"},
		{`{"weight":1}{"weight":2}`, Patch{}, "goes on"},
		{`{"deadline":"30s"}`, Patch{}, "goes with"},
		{`{"admin":"enabled","deadline":"30s"}`, Patch{}, "goes with"},
		{`{"admin":"draining","deadline":"0s"}`, Patch{}, "duration"},
		{`{"admin":"draining","deadline":"soon"}`, Patch{}, "duration"},
		{`{"admin":"draining","deadline":30}`, Patch{}, "JSON object"},
	} {
		got, err := parsePatch([]byte(c.body))
		switch {
		case c.err == "" && (err != nil || !reflect.DeepEqual(got, c.want)):
			t.Errorf("%s: %+v, %v; want %+v", c.body, got, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %+v, %v; want an error with %q", c.body, got, err, c.err)
		}
		if err == nil { // and back
			text, err := got.marshal()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := parsePatch(text); err != nil || !reflect.DeepEqual(again, got) {
				t.Errorf("%+v became %s and then %+v, %v", got, text, again, err)
			}
		}
	}
}

func FuzzParsePatch(f *testing.F) {
	f.Add([]byte(`{"admin":"draining","weight":null,"deadline":"30s"}`))
	f.Add([]byte(`{"weight":3}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := parsePatch(body)
		if err != nil {
			return
		}
		text, err := p.marshal()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parsePatch(text); err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("%q: %+v became %s and then %+v, %v", body, p, text, again, err)
		}
	})
}

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

func TestReady(t *testing.T) {
	f := newFake()
	admin := serve(t, Options{Controller: f})
	status, err := ListenStatus(StatusOptions{Bind: "127.0.0.1:0", Controller: f, Metrics: http.NotFoundHandler()})
	if err != nil {
		t.Fatal(err)
	}
	started(t, status)
	for _, s := range []*Server{admin, status} {
		if w, body := send(t, s, request{path: "/readyz?pools=a,b&pools=c"}); w.StatusCode != 200 || body != "ok\n" {
			t.Errorf("ready: %d %q", w.StatusCode, body)
		}
		if got := fmt.Sprint(f.asked); got != "[a b c]" {
			t.Errorf("asked for pools %s", got)
		}
		f.unready = []string{"draining", "pool a: no backend serves"}
		if w, body := send(t, s, request{path: "/readyz"}); w.StatusCode != 503 || body != "draining\npool a: no backend serves\n" {
			t.Errorf("not ready: %d %q", w.StatusCode, body)
		}
		if w, body := send(t, s, request{path: "/livez"}); w.StatusCode != 200 || body != "ok\n" {
			t.Errorf("live: %d %q", w.StatusCode, body)
		}
		f.unready = nil
	}
}

// TestStatusIsReadOnly: that address has three paths and no way to change
// anything.
func TestStatusIsReadOnly(t *testing.T) {
	f := newFake()
	s, err := ListenStatus(StatusOptions{Bind: "127.0.0.1:0", Controller: f, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "m") })})
	if err != nil {
		t.Fatal(err)
	}
	started(t, s)
	for path, want := range map[string]int{
		"/livez": 200, "/readyz": 200, "/metrics": 200,
		"/": 404, "/api/v1/status": 404, "/api/v1/pools": 404, "/debug/pprof/": 404, "/ui/app.js": 404,
	} {
		if w, _ := send(t, s, request{path: path}); w.StatusCode != want {
			t.Errorf("GET %s: %d, want %d", path, w.StatusCode, want)
		}
		for _, m := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			if w, _ := send(t, s, request{method: m, path: path, body: "{}", header: asJSON}); w.StatusCode != 405 {
				t.Errorf("%s %s: %d, want 405", m, path, w.StatusCode)
			}
		}
	}
	if len(f.patches) != 0 {
		t.Errorf("patched: %v", f.patches)
	}
}

func TestBodyIsBounded(t *testing.T) {
	s := serve(t, Options{})
	long := `{"admin":"` + strings.Repeat("x", maxBody) + `"}`
	w, body := send(t, s, request{"PATCH", "/api/v1/pools/app/backends/10.0.1.21:8080", long, asJSON})
	if w.StatusCode != 413 {
		t.Errorf("%d %s", w.StatusCode, body)
	}
}

// TestPage: every file that the page names is there, nothing is inline, and
// nothing comes from elsewhere.
func TestPage(t *testing.T) {
	s := serve(t, Options{})
	w, page := send(t, s, request{path: "/"})
	if w.StatusCode != 200 || !strings.HasPrefix(w.Header.Get("Content-Type"), "text/html") {
		t.Fatalf("page: %d %s", w.StatusCode, w.Header.Get("Content-Type"))
	}
	for name, typ := range uiTypes {
		path := "/ui/" + name
		if name == "index.html" {
			path = "/"
		} else if strings.HasSuffix(name, ".js") && name != "app.js" {
			app, err := uiFiles.ReadFile("ui/app.js")
			if err != nil || !strings.Contains(string(app), `"./`+name+`"`) {
				t.Errorf("%s is served and not imported", name)
			}
		} else if !strings.Contains(page, path) {
			t.Errorf("%s is served and not used by the page", path)
		}
		w, body := send(t, s, request{path: path})
		if w.StatusCode != 200 || w.Header.Get("Content-Type") != typ {
			t.Errorf("%s: %d %s", path, w.StatusCode, w.Header.Get("Content-Type"))
		}
		for _, bad := range []string{"<style", "style=\"", "onclick=", "https://", "innerHTML", "eval(", "<script>"} {
			if strings.Contains(body, bad) {
				t.Errorf("%s holds %q", path, bad)
			}
		}
	}
	if w, _ := send(t, s, request{path: "/nope"}); w.StatusCode != 404 {
		t.Errorf("/nope: %d", w.StatusCode)
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.sock")
	// A file left by a process that is gone.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()

	s, err := Listen(Options{Bind: "unix:" + path, Controller: newFake()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode().Perm())
	}
	if _, err := Listen(Options{Bind: "unix:" + path, Controller: newFake()}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second server on the same socket: %v", err)
	}
	c, err := NewClient(ClientOptions{Address: "unix:" + path})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := c.Status(t.Context()); err != nil || st.Version != "1.2.3" {
		t.Errorf("%+v, %v", st, err)
	}
	c.Close()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestUnixSuccessor: closing must not take the path away from a successor.
func TestUnixSuccessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.sock")
	l, cleanup, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // the old one no longer answers
	next, cleanupNext, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	cleanup()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the successor's socket is gone: %v", err)
	}
	next.Close()
	cleanupNext()
}

func TestCloseUnstarted(t *testing.T) {
	s, err := Listen(Options{Bind: "127.0.0.1:0", Controller: newFake()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", s.Addr().String()); err == nil {
		t.Error("still bound after Close")
	}
}

// TestCloseCutsHangers: a client that sends nothing does not hold Close up.
func TestCloseCutsHangers(t *testing.T) {
	s, err := Listen(Options{Bind: "127.0.0.1:0", Controller: newFake()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Close(ctx) // reports that it had to cut
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Close hangs")
	}
}
