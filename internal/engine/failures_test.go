// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
)

// Failures are remembered, a backend's own among them, and successes are not; the
// API explains the request that failed.
func TestFailuresOverTheAPI(t *testing.T) {
	status := make(chan int, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(<-status) }))
	defer s.Close()
	r := start(t, `
admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", routes: [{name: all, match: {path_prefix: /}, pool: app, retry: {attempts: 1}}]}}
pools: {app: {health: {active: off}, backends: [{url: "`+s.URL+`"}]}}
`)
	for _, code := range []int{200, 500, 404} {
		status <- code
		resp, err := http.Get(r.front + "/p")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if err := resp.Body.Close(); err != nil || resp.StatusCode != code {
			t.Fatalf("%s, %v", resp.Status, err)
		}
	}
	f, err := r.admin.Failures(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Pools) != 1 || len(f.Pools[0].Requests) != 1 || f.Pools[0].Failed != 1 || f.Meanings["ok"].What == "" {
		t.Fatalf("%+v", f)
	}
	var line struct {
		Path   string
		Status int
	}
	if err := json.Unmarshal(f.Pools[0].Requests[0], &line); err != nil || line.Path != "/p" || line.Status != 500 {
		t.Errorf("%s: %v", f.Pools[0].Requests[0], err)
	}
	var p *admin.Problem
	if _, err := r.admin.Failures(t.Context(), "nope"); !errors.As(err, &p) || p.Status != http.StatusNotFound {
		t.Errorf("an unknown pool: %v", err)
	}

	x, err := r.admin.Explain(t.Context(), admin.Question{URL: r.front + "/p", Headers: admin.Lines{"Connection: X-Gone", "X-Gone: 1"}})
	if err != nil || x.Route != "all" || x.Pool == nil || x.Pool.Choice == "" || x.Failing.Attempts != 1 {
		t.Fatalf("%+v, %v", x, err)
	}
	for _, l := range x.Forwarded {
		if l == "X-Gone: 1" || l == "Connection: X-Gone" {
			t.Errorf("%s is forwarded", l)
		}
	}
	for _, q := range []admin.Question{
		{URL: ""}, {URL: "ftp://x/"}, {URL: "http://"}, {URL: "/", Client: "nobody"}, {URL: "/", Listener: "no"},
		{URL: "/", Headers: admin.Lines{"nothing"}}, {URL: "/", Headers: admin.Lines{"A: b\r\nC: d"}}, {URL: "/ HTTP/1.1\r\nX: y", Method: "GET"},
		{URL: "/", Method: "GET / HTTP/1.1\r\n\r\nGET"}, {URL: "http://a@b/"},
	} {
		if _, err := r.admin.Explain(t.Context(), q); !errors.As(err, &p) || p.Code != admin.CodeBadQuestion {
			t.Errorf("%+v: %v", q, err)
		}
	}
	for url, want := range map[string]int{"/a b": 400, "/%2f": 400, "/\x01": 400} {
		if x, err := r.admin.Explain(t.Context(), admin.Question{URL: url}); err != nil || x.Answer == nil || x.Answer.Status != want {
			t.Errorf("%q: %+v, %v", url, x.Answer, err)
		}
	}
}

// What a client may have sent as a secret is in the access log where the operator
// asked for it, and never among the failures: neither in the API nor in a bundle.
func TestFailuresHoldNoSecrets(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	defer s.Close()
	r := start(t, `
admin: {bind: "127.0.0.1:0"}
log: {access: {query: on, request_headers: [X-Tenant]}}
listeners: {web: {bind: "127.0.0.1:0", routes: [{pool: app, retry: {attempts: 1}}]}}
pools: {app: {health: {active: off}, backends: [{url: "`+s.URL+`"}]}}
`)
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.front+"/p?token=hush-query", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("X-Tenant", "hush-field")
	q.Header.Set("Authorization", "Bearer hush-bearer")
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	f, err := r.admin.Failures(t.Context(), "")
	if err != nil || len(f.Pools) != 1 || len(f.Pools[0].Requests) != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	if line := string(f.Pools[0].Requests[0]); strings.Contains(line, "hush") || !strings.Contains(line, `"/p"`) {
		t.Error(line)
	}
}
