// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/weirtest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(successorRole); role != "" { // in an upgrade of these tests
		if err := playSuccessor(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// limit bounds every wait of these tests.
const limit = 10 * time.Second

type logBuffer = weirtest.Log

// running is an engine under test.
type running struct {
	*Engine
	log   *logBuffer
	front string // URL of listener web
	admin *admin.Client
}

// parse reads a configuration, in which access logs are off unless it says so.
func parse(t *testing.T, text string) *config.Plan {
	t.Helper()
	if !strings.HasPrefix(text, "log:") && !strings.Contains(text, "\nlog:") {
		text = "log: {access: off}\n" + text
	}
	plan, err := config.Parse("test.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// build makes an engine that is not started.
func build(t *testing.T, text string) *running {
	t.Helper()
	r := &running{log: &logBuffer{}}
	var err error
	r.Engine, err = New(parse(t, text), Options{
		Version: "test", Logger: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	b := r.Bound()
	r.front = "http://" + b.Listeners[0].Addrs[0]
	if r.admin, err = admin.NewClient(admin.ClientOptions{Address: b.Admin}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.admin.Close()
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			t.Log(r.log)
		}
	})
	return r
}

func start(t *testing.T, text string) *running {
	t.Helper()
	r := build(t, text)
	r.Start()
	return r
}

// server is a backend that answers with its name; /slow waits for release.
type server struct {
	*httptest.Server
	name    string
	arrived chan struct{} // one value for each request to /slow
	release chan struct{} // closed by the test
}

func backend(t *testing.T, name string) *server {
	t.Helper()
	s := &server{name: name, arrived: make(chan struct{}, 16), release: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			s.arrived <- struct{}{}
			select {
			case <-s.release:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, name)
	}))
	t.Cleanup(s.Close)
	return s
}

// rawBackend accepts connections, has each served on a goroutine of its own, with its
// number from 1 on, closes it then, and returns its address.
func rawBackend(t *testing.T, serve func(c net.Conn, n int)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for n := 1; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				serve(c, n)
			}()
		}
	}()
	return ln.Addr().String()
}

func (s *server) id() string { return s.Listener.Addr().String() }

// client returns an HTTP client whose connections end with the test.
func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: limit}
}

// answer is what a test wants to know of a response.
type answer struct {
	status int
	body   string
	closes bool
}

func get(c *http.Client, url string) (answer, error) {
	res, err := c.Get(url)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, string(body), res.Close}, err
}

func mustGet(t *testing.T, c *http.Client, url string) answer {
	t.Helper()
	a, err := get(c, url)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var eventually = weirtest.Eventually

func simple(more string, backends ...*server) string {
	var urls []string
	for _, b := range backends {
		urls = append(urls, fmt.Sprintf("%q", b.URL))
	}
	return fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners:
  web: {bind: "127.0.0.1:0", pool: app}
pools:
  app:
    balance: round_robin
    backends: [%s]
%s`, strings.Join(urls, ", "), more)
}

func TestServesThroughTheWholePath(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a, b))
	c := client(t)
	seen := map[string]int{}
	for range 20 {
		got := mustGet(t, c, r.front+"/x")
		if got.status != 200 || got.closes {
			t.Fatalf("got %+v", got)
		}
		seen[got.body]++
	}
	if seen["a"] != 10 || seen["b"] != 10 {
		t.Errorf("round robin over two gave %v", seen)
	}
	s, err := r.admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.State != "serving" || s.Version != "test" || s.Generation != 1 || len(s.Listeners) != 1 || len(s.Pools) != 1 {
		t.Errorf("status: %+v", s)
	}
	p, err := r.admin.Pool(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range p.Members {
		if m.Requests != 10 || m.InFlight != 0 || m.Admin != "enabled" {
			t.Errorf("backend: %+v", m)
		}
	}
	metrics := mustGet(t, c, "http://"+r.Bound().Admin+"/metrics").body
	for _, want := range []string{
		`weir_requests_total{backend="` + a.id() + `",code="2xx",listener="web",pool="app",reason="ok",route=`,
		`weir_connections{listener="web",pool="",side="client"} 1`,
		`weir_config_generation 1`,
		`weir_bug_total{where="lease"} 0`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestDrainThroughTheAdminAPI(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a, b))
	c := client(t)
	slow := make(chan answer, 16)
	ask := func() {
		got, err := get(c, r.front+"/slow")
		if err != nil {
			t.Error(err)
		}
		slow <- got
	}
	go ask()
	go ask()
	<-a.arrived
	<-b.arrived

	got, err := r.admin.Patch(t.Context(), "app", a.id(), admin.Patch{Admin: "draining", Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if got.Admin != "draining" || got.InFlight != 1 || got.Drain == nil || got.Drain.Done {
		t.Errorf("draining: %+v", got)
	}
	for range 10 {
		if got := mustGet(t, c, r.front+"/"); got.body != "b" {
			t.Fatalf("a draining backend got new work: %+v", got)
		}
	}
	close(a.release)
	if got := <-slow; got.status != 200 || got.body != "a" {
		t.Errorf("the request in flight: %+v", got)
	}
	eventually(t, "the backend is empty", func() bool {
		got, err := r.admin.Backend(t.Context(), "app", a.id())
		return err == nil && got.InFlight == 0 && got.Drain != nil && got.Drain.Done
	})
	if got, err = r.admin.Patch(t.Context(), "app", a.id(), admin.Patch{Admin: "enabled"}); err != nil || got.Admin != "enabled" {
		t.Fatalf("enable: %+v, %v", got, err)
	}
	eventually(t, "the backend serves again", func() bool { return mustGet(t, c, r.front+"/").body == "a" })
	close(b.release)
	<-slow
	if _, err := r.admin.Patch(t.Context(), "app", "nobody:1", admin.Patch{Admin: "draining"}); err == nil {
		t.Error("an unknown backend was drained")
	}
}

func TestWeightThroughTheAdminAPI(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a, b))
	c := client(t)
	zero := uint32(0)
	if _, err := r.admin.Patch(t.Context(), "app", a.id(), admin.Patch{Weight: &zero}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "weight 0 takes no work", func() bool {
		for range 4 {
			if mustGet(t, c, r.front+"/").body == "a" {
				return false
			}
		}
		return true
	})
	if got, err := r.admin.Patch(t.Context(), "app", b.id(), admin.Patch{Weight: &zero}); err != nil || !strings.Contains(got.Warning, "no backend of pool app serves now") {
		t.Errorf("the last one was taken out: warning %q, %v", got.Warning, err)
	}
	got, err := r.admin.Patch(t.Context(), "app", a.id(), admin.Patch{ResetWeight: true})
	if err != nil || got.Warning != "" || got.Weight != 1 || got.Override != nil {
		t.Fatalf("reset: %+v, %v", got, err)
	}
	eventually(t, "it takes work again", func() bool { return mustGet(t, c, r.front+"/").body == "a" })
}

// TestLastOneOut: who takes out the last backend that serves is warned, and only who
// does.
func TestLastOneOut(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a, b))
	for _, c := range []struct {
		id, word string
		warned   bool
	}{{a.id(), "draining", false}, {b.id(), "disabled", true}, {b.id(), "draining", true}, {b.id(), "enabled", false}, {a.id(), "enabled", false}} {
		got, err := r.admin.Patch(t.Context(), "app", c.id, admin.Patch{Admin: c.word})
		if err != nil || (got.Warning != "") != c.warned {
			t.Errorf("%s %s: %q, %v", c.id, c.word, got.Warning, err)
		}
	}
	if !strings.Contains(r.log.String(), "no backend of pool app serves now") {
		t.Error("the log does not say it")
	}
}

// TestUnknownNames: who mistypes a name reads which ones there are.
func TestUnknownNames(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a, b))
	if _, err := r.admin.Patch(t.Context(), "ap", a.id(), admin.Patch{Admin: "draining"}); err == nil || !strings.Contains(err.Error(), "no such pool: ap; there is app") {
		t.Error(err)
	}
	if _, err := r.admin.Patch(t.Context(), "app", "x", admin.Patch{Admin: "draining"}); err == nil || !strings.Contains(err.Error(), "no such backend: x in pool app, which has ") ||
		!strings.Contains(err.Error(), a.id()) || !strings.Contains(err.Error(), b.id()) {
		t.Error(err)
	}
	if got, want := listed(strings.Split("j i h g f e d c b a", " ")), "a, b, c, d, e, f, g, h and 2 more"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestDrainDeadlineCuts(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	defer close(a.release)
	defer close(b.release)
	r := start(t, simple("", a, b))
	c := client(t)
	ended := make(chan error, 1)
	go func() {
		res, err := c.Post(r.front+"/slow", "text/plain", strings.NewReader("once")) // never sent twice
		if err == nil {
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode < 500 {
				err = fmt.Errorf("answered %s", res.Status)
			}
		}
		ended <- err
	}()
	var busy *server
	select {
	case <-a.arrived:
		busy = a
	case <-b.arrived:
		busy = b
	}
	if _, err := r.admin.Patch(t.Context(), "app", busy.id(), admin.Patch{Admin: "draining", Deadline: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Fatal("the request outlived the deadline of the drain")
	}
	got := mustGet(t, client(t), "http://"+r.Bound().Admin+"/metrics")
	if !regexp.MustCompile(`weir_requests_total\{[^}]*reason="drain_cut"[^}]*\} 1\n`).MatchString(got.body) || strings.Contains(got.body, `reason="reset_`) {
		t.Errorf("the cut is not counted as one:\n%s", got.body)
	}
	if p, err := r.admin.Pool(t.Context(), "app"); err != nil || p.Failures != 0 {
		t.Errorf("the backend is blamed: %+v, %v", p.PoolSummary, err)
	}
	// Who drained it hears what it cost.
	if b, err := r.admin.Backend(t.Context(), "app", busy.id()); err != nil || b.Drain == nil || b.Drain.Cut != 1 {
		t.Errorf("drain %+v, %v", b.Drain, err)
	}
	if text := r.log.String(); !strings.Contains(text, "msg=drain_over") || !strings.Contains(text, "cut=1") {
		t.Error("the log does not say that a request was cut")
	}
	if _, err := r.admin.Patch(t.Context(), "app", busy.id(), admin.Patch{Admin: "enabled"}); err != nil {
		t.Fatal(err)
	}
	if b, err := r.admin.Patch(t.Context(), "app", busy.id(), admin.Patch{Admin: "draining"}); err != nil || b.Drain == nil || b.Drain.Cut != 0 {
		t.Errorf("the next drain: %+v, %v", b.Drain, err)
	}
}

// TestUnreadLog: a log whose reader hangs costs its lines, not a clean end.
func TestUnreadLog(t *testing.T) {
	path := t.TempDir() + "/pipe"
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	a := backend(t, "a")
	log := &logBuffer{}
	plan := parse(t, simple("", a))
	plan.Log.Access.Off, plan.Log.Access.Path = false, path
	e, err := New(plan, Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	c, url := client(t), "http://"+e.Bound().Listeners[0].Addrs[0]+"/"+strings.Repeat("x", 4000)
	for range 40 { // more than a pipe holds
		mustGet(t, c, url)
	}
	if err := e.Close(); err != nil {
		t.Errorf("closing fails: %v", err)
	}
	if !strings.Contains(log.String(), "lines of the access log are lost") {
		t.Errorf("the log does not say so:\n%s", log.String())
	}
	reader, err := os.Open(path) // lets the writer end
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	if err := e.logs.now.log.Close(limit); err != nil {
		t.Error(err)
	}
}

func TestNewFailsWhole(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	plan := parse(t, fmt.Sprintf(`admin: {bind: none}
listeners:
  one: {bind: "%s", pool: app}
  two: {bind: "%s", pool: app}
pools: {app: {backends: ["http://127.0.0.1:1"]}}
`, free.Addr(), taken.Addr()))
	if _, err := New(plan, Options{}); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "two") {
		t.Fatalf("got %v, want address in use on listener two", err)
	}
	again, err := net.Listen("tcp", free.Addr().String())
	if err != nil {
		t.Fatalf("listener one stayed bound: %v", err)
	}
	_ = again.Close()
}

func TestReadyAfterTheFirstRoundOfProbes(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-release }))
	defer s.Close()
	r := build(t, fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", pool: app, health_path: /ready}}
pools: {app: {backends: [%q], health: {active: {path: /, interval: 60s, timeout: 30s}}}}
`, s.URL))
	if why := r.NotReady(nil); len(why) != 1 || !strings.Contains(why[0], "bound") {
		t.Errorf("before the start: %v", why)
	}
	r.Start()
	c := client(t)
	if got := mustGet(t, c, r.front+"/ready"); got.status != 503 {
		t.Errorf("before the first round: %+v", got)
	}
	if why := r.NotReady(nil); len(why) != 1 || !strings.Contains(why[0], "app") {
		t.Errorf("before the first round: %v", why)
	}
	close(release)
	eventually(t, "ready", func() bool { return len(r.NotReady([]string{"app"})) == 0 })
	if got := mustGet(t, c, r.front+"/ready"); got.status != 200 {
		t.Errorf("after the first round: %+v", got)
	}
	if why := r.NotReady([]string{"nosuch"}); len(why) != 1 {
		t.Errorf("a pool that does not exist: %v", why)
	}
}

// TestApplyKeepsWhatStays changes a running configuration: connections, pools
// and counters stay, and a bad plan changes nothing.
func TestApplyKeepsWhatStays(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	text := `admin: {bind: "127.0.0.1:0"}
listeners:
  web:
    bind: "127.0.0.1:0"
    routes: [%s{pool: app}]
pools:
  app: {balance: round_robin, backends: [%s]}
`
	r := start(t, fmt.Sprintf(text, "", fmt.Sprintf("%q", a.URL)))
	c := client(t)
	if got := mustGet(t, c, r.front+"/fixed"); got.body != "a" {
		t.Fatalf("got %+v", got)
	}
	before := r.gen.Load().pools["app"]
	next := fmt.Sprintf(text, `{match: {path: /fixed}, respond: {code: 404, body: gone}}, `, fmt.Sprintf("%q, %q", a.URL, b.URL))
	if err := r.Apply(parse(t, next)); err != nil {
		t.Fatal(err)
	}
	if r.gen.Load().pools["app"] != before {
		t.Error("the pool was replaced")
	}
	if got := mustGet(t, c, r.front+"/fixed"); got.status != 404 || got.body != "gone" {
		t.Errorf("the new route: %+v", got)
	}
	eventually(t, "the new backend serves", func() bool { return mustGet(t, c, r.front+"/").body == "b" })

	bad := strings.Replace(next, `bind: "127.0.0.1:0"
    routes`, `bind: ["127.0.0.1:0", "192.0.2.1:80"]
    limits: {max_connections: 7}
    routes`, 1)
	if err := r.Apply(parse(t, bad)); err == nil || !strings.Contains(err.Error(), "web") {
		t.Errorf("an address of another machine gave %v", err)
	}
	if g := r.gen.Load().Number; g != 2 {
		t.Errorf("generation %d after a refused plan, want 2", g)
	}
	if conns := r.front0().ln.Connections(); conns != 1 {
		t.Errorf("%d client connections, want the one kept", conns)
	}
	metrics := mustGet(t, client(t), "http://"+r.Bound().Admin+"/metrics").body
	for _, want := range []string{`weir_config_reloads_total{outcome="failure"} 1`, `weir_config_generation 2`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func (r *running) front0() *liveListener { return r.liveListeners()[0] }

func TestBrokenBackendIsLoggedAndRemembered(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("    health: {active: {path: /, interval: 200ms, timeout: 100ms, fast_interval: 100ms}}\n", a, b))
	c := client(t)
	gone := b.id()
	b.Close()
	eventually(t, "broken", func() bool {
		if got := mustGet(t, c, r.front+"/"); got.status != 200 {
			t.Fatalf("a client saw %+v", got)
		}
		m, err := r.admin.Backend(context.Background(), "app", gone)
		return err == nil && m.Health == "broken" && m.Share == 0
	})
	eventually(t, "an event", func() bool {
		return slices.ContainsFunc(r.Events(0), func(e Event) bool { return e.Backend == gone && strings.Contains(e.Text, "broken") })
	})
	if text := r.log.String(); !strings.Contains(text, "backend="+gone) {
		t.Errorf("the log does not name the backend:\n%s", text)
	}
}

func TestEventsForgetTheOldest(t *testing.T) {
	var r events
	for i := range eventsKept + 10 {
		r.add(Event{Text: fmt.Sprint(i)})
	}
	got := r.since(0)
	if len(got) != eventsKept || got[0].Text != "10" || got[0].Seq != 10 {
		t.Errorf("%d events from %+v", len(got), got[0])
	}
	if got := r.since(eventsKept + 9); len(got) != 1 || got[0].Text != fmt.Sprint(eventsKept+9) {
		t.Errorf("the last one: %+v", got)
	}
	if got := r.since(1 << 40); len(got) != 0 {
		t.Errorf("the future: %+v", got)
	}
}
