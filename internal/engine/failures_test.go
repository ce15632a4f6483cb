// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
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

// hangsUp is a backend that reads requests and closes instead of answering.
func hangsUp(t *testing.T) string {
	return rawBackend(t, func(c net.Conn, _ int) {
		if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
		}
	})
}

// Where what was sent is not sent again, the failure says what would have let it be.
func TestFailuresSayWhyNotRepeated(t *testing.T) {
	r := start(t, `
admin: {bind: "127.0.0.1:0"}
listeners:
  web:
    bind: "127.0.0.1:0"
    routes:
      - {match: {path: /none}, pool: app, retry: {idempotency_key: none}}
      - {match: {path: /named}, pool: app, retry: {idempotency_key: X-Once}}
      - {match: {path: /long}, pool: app, retry: {body: 1KiB}}
      - {pool: app}
pools: {app: {health: {active: off}, backends: ["http://`+hangsUp(t)+`"]}}
`)
	want := map[string]string{
		"POST /":      "not repeated: the method may not be sent twice without an Idempotency-Key",
		"POST /none":  "not repeated: the method may not be sent twice",
		"POST /named": "not repeated: the method may not be sent twice without X-Once",
		"PUT /long":   "not repeated: its content was not kept, or not complete",
		"GET /get":    "", // was, and failed again
	}
	for what := range want {
		method, path, _ := strings.Cut(what, " ")
		q, err := http.NewRequestWithContext(t.Context(), method, r.front+path, strings.NewReader(strings.Repeat("x", 256<<10)))
		if method == http.MethodGet {
			q, err = http.NewRequestWithContext(t.Context(), method, r.front+path, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client(t).Do(q)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		_ = resp.Body.Close()
	}
	var f admin.Failures
	eventually(t, "all are remembered", func() (all bool) {
		var err error
		f, err = r.admin.Failures(t.Context(), "app")
		return err == nil && len(f.Pools) == 1 && len(f.Pools[0].Requests) == len(want)
	})
	for _, line := range f.Pools[0].Requests {
		var l struct {
			Method, Path, Reason, Detail string
			Attempts                     int
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		detail, once := want[l.Method+" "+l.Path], 1
		if detail == "" {
			once = 2
		}
		_, got, _ := strings.Cut(l.Detail, "not repeated: ")
		if got != strings.TrimPrefix(detail, "not repeated: ") || l.Reason != "reset_before_response" || l.Attempts != once {
			t.Errorf("%s %s: %s", l.Method, l.Path, line)
		}
	}
}

// What sessions and flows fail by has the meaning that it has of them.
func TestMeaningsOfSessions(t *testing.T) {
	meanings, backends := map[string]admin.Meaning{}, map[string]bool{}
	for _, line := range []string{
		`{"proto":"HTTP/1.1","reason":"reset_before_response","backend":"a"}`,
		`{"proto":"tcp","reason":"reset_before_response","backend":"b","tried":[{"backend":"c","reason":"connect_refused"}]}`,
		`{"proto":"udp","reason":"response_timeout","backend":"d"}`,
		`{"proto":"HTTP/1.1","reason":"drain_cut","tunnel":true,"backend":"e"}`,
		`{"proto":"udp","reason":"all_broken"}`,
	} {
		noteReasons([]byte(line), meanings, backends)
	}
	for of, want := range map[string]string{
		"reset_before_response": "before it answered", "reset_before_response" + admin.OfSession: "before it had sent a byte",
		"connect_refused": "nothing listens", "response_timeout": "no head", "response_timeout" + admin.OfFlow: "without an answer",
		"drain_cut" + admin.OfTunnel: "Close frame", "drain_cut": "deadline", "all_broken": "no backend",
	} {
		if m := meanings[of]; !strings.Contains(m.What, want) || m.Look == "" {
			t.Errorf("%s: %+v", of, m)
		}
		delete(meanings, of)
	}
	if len(meanings) > 0 || len(backends) != 5 {
		t.Errorf("%v, %v", meanings, backends)
	}
}

// Who found nobody is told what keeps the pool's backends away, the operator's word
// among it.
func TestFailuresSayWhoIsAway(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a, b))
	for _, s := range []*server{a, b} {
		if _, err := r.Patch("app", s.id(), admin.Patch{Admin: "draining"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := mustGet(t, client(t), r.front); got.status != http.StatusServiceUnavailable {
		t.Fatalf("%+v", got)
	}
	eventually(t, "it is remembered", func() bool { return len(r.failures.Last("app")) == 1 })
	f, err := r.Failures("app")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*server{a, b} {
		if said := f.Pools[0].Away[s.id()]; !strings.Contains(said, "draining by an operator") {
			t.Errorf("%s: %q", s.name, said)
		}
	}
}
