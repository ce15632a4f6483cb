// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
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
	for _, k := range strings.Fields("id url zone weight admin health share reason since flips in_flight requests failures latency_ms last_check history") {
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
		{`{"weight":1000,"admin":"enabled"}`, Patch{Admin: "enabled", Weight: n(1000)}, ""},
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
		{`{"weight":1001}`, Patch{}, "whole number"},
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

// TestPanicIsSaid: a defect in a handler is an error in the log, not a client
// that has gone.
func TestPanicIsSaid(t *testing.T) {
	var said weirtest.Log
	s, err := Listen(Options{
		Bind: "127.0.0.1:0", Controller: newFake(),
		Logger:  slog.New(slog.NewTextHandler(&said, nil)),
		Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("no metrics today") }),
	})
	if err != nil {
		t.Fatal(err)
	}
	started(t, s)
	if _, err := httpClient(t).Get("http://" + s.Addr().String() + "/metrics"); err == nil {
		t.Error("half an answer passes for one")
	}
	if text := said.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "no metrics today") {
		t.Errorf("the log says %q", text)
	}
}
