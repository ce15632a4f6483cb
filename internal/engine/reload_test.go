// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
)

// reloadWorld is what the load of TestReloadUnderLoad talks to.
type reloadWorld struct {
	backends []string // URLs
	stop     chan struct{}
}

func newReloadWorld(t *testing.T) *reloadWorld {
	t.Helper()
	w := &reloadWorld{stop: make(chan struct{})}
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Upgrade") != "":
			c, buf, err := rw.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(c, buf)
		case strings.HasSuffix(r.URL.Path, "/download"):
			for {
				if _, err := io.WriteString(rw, "0123456789"); err != nil {
					return
				}
				if err := http.NewResponseController(rw).Flush(); err != nil {
					return
				}
				select {
				case <-w.stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		default:
			_, _ = io.WriteString(rw, r.Header.Get("X-Generation"))
		}
	})
	for range 4 {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		w.backends = append(w.backends, s.URL)
	}
	return w
}

// text is the configuration number n. Pool stay keeps its first backend and gets
// and loses others; pool brief is there every other time; the route /g says n.
func (w *reloadWorld) text(n int) string {
	var more, brief, route string
	if n%3 != 0 {
		more = fmt.Sprintf(`, {url: %q, weight: %d}`, w.backends[1+n%2], 1+n%5)
	}
	if n%2 == 0 {
		brief = fmt.Sprintf("  brief: {backends: [%q], health: {passive: off}}\n", w.backends[3])
		route = `{match: {path_prefix: /brief}, pool: brief}, `
	}
	policy := []string{"p2c", "round_robin", "peak_ewma", "maglev"}[n%4]
	return fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners:
  web:
    bind: "127.0.0.1:0"
    routes: [%s{match: {path_prefix: /g}, pool: stay, request_headers: {set: {X-Generation: "%d"}}}, {pool: stay}]
pools:
  stay:
    balance: %s
    limits: {requests: %s}
    timeouts: {connect: %ds}
    health: {active: {interval: %ds}}
    drain: {deadline: none}
    backends: [%q%s]
%s`, route, n, policy, []string{"none", "1000"}[n%2], 2+n%3, 2+n%4, w.backends[0], more, brief)
}

// TestReloadUnderLoad reloads again and again while downloads, tunnels and
// keep-alive clients go on: no request fails, nothing is closed, every reload is
// in force for the next request, and nothing is left of the generations before.
func TestReloadUnderLoad(t *testing.T) {
	w := newReloadWorld(t)
	r := start(t, w.text(0))
	if _, err := r.admin.Patch(t.Context(), "stay", strings.TrimPrefix(w.backends[0], "http://"), admin.Patch{Weight: new(uint32(9))}); err != nil {
		t.Fatal(err)
	}
	l := &reloadLoad{t: t, front: r.front, stop: make(chan struct{})}
	l.begin(reloadStreams)
	want := &l.generation
	var before reloadUse
	for n := 1; n <= reloadTimes; n++ {
		if n%10 == 0 {
			bad := strings.Replace(w.text(n), "pools:", "polls:", 1)
			if _, err := config.Parse("bad.yaml", []byte(bad), os.LookupEnv); err == nil {
				t.Fatal("a bad file is not bad")
			}
			if _, err := r.ApplyConfig([]byte(bad), 0, false); !errors.Is(err, admin.ErrBadConfig) {
				t.Fatalf("a bad file: %v", err)
			}
			continue
		}
		if _, err := r.Reload(parse(t, w.text(n)), ReloadOptions{}); err != nil {
			t.Fatal(err)
		}
		want.Store(int64(n))
		if n == reloadTimes/5+2 { // with both pools: // until then buffers, series and idle connections come into being
			before = reloadSettled(t, r)
		}
		time.Sleep(10 * time.Millisecond) // for the load to be a load
	}
	if got := mustGet(t, client(t), "http://"+r.Bound().Admin+"/metrics").body; !strings.Contains(got, fmt.Sprintf(`weir_config_reloads_total{outcome="failure"} %d`, reloadTimes/10)) {
		t.Error("refused reloads are not counted")
	}
	want.Store(0)
	if _, err := r.Reload(parse(t, w.text(0)), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	b, err := r.admin.Backend(t.Context(), "stay", strings.TrimPrefix(w.backends[0], "http://"))
	if err != nil || b.Weight != 9 || b.Override == nil {
		t.Errorf("the override has gone: %+v, %v", b, err)
	}
	after := reloadSettled(t, r)
	if l.closed.Load() != 0 || l.failed.Load() != 0 {
		t.Errorf("%d requests failed, %d streams ended", l.failed.Load(), l.closed.Load())
	}
	t.Logf("%d requests; before %+v, after %+v", l.done.Load(), before, after)
	if float64(after.goroutines) > 1.02*float64(before.goroutines)+reloadIdle || float64(after.files) > 1.02*float64(before.files)+reloadIdle {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if after.heap > before.heap*102/100+reloadHeapSlack {
		t.Errorf("heap: before %d, after %d", before.heap, after.heap)
	}
	close(w.stop)
	l.end()
}

// reloadUse is what a process uses.
type reloadUse struct {
	goroutines, files int
	heap              uint64
}

// reloadIdle is what five keep-alive clients may hold at one moment and not at
// another: an idle connection to each of two backends, both ends in this process.
const reloadIdle = 5 * 2 * 2

// reloadHeapSlack covers counters that are kept by name (series of backends that
// left, for ten minutes) and what keep-alive clients happen to hold.
const reloadHeapSlack = 1 << 20

// reloadSettled waits until no pool is leaving, and measures.
func reloadSettled(t *testing.T, r *running) reloadUse {
	t.Helper()
	eventually(t, "nothing is left of what was removed", func() bool {
		runtime.GC()
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.leaving) == 0
	})
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := reloadUse{goroutines: runtime.NumGoroutine(), heap: m.HeapAlloc}
	if list, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.files = len(list)
	}
	return u
}

// reloadLoad is clients that notice when anything goes wrong.
type reloadLoad struct {
	t          *testing.T
	front      string
	stop       chan struct{}
	all        sync.WaitGroup
	generation atomic.Int64 // that requests must see at least
	done       atomic.Int64
	failed     atomic.Int64
	closed     atomic.Int64
}

func (l *reloadLoad) begin(streams int) {
	var ready sync.WaitGroup
	for range streams {
		ready.Add(2)
		l.all.Go(func() { l.download(&ready) })
		l.all.Go(func() { l.tunnel(&ready) })
	}
	for range 4 {
		l.all.Go(func() { l.ask("/g") })
	}
	l.all.Go(func() { l.ask("/brief") }) // through a pool that comes and goes
	ready.Wait()
}

func (l *reloadLoad) end() {
	close(l.stop)
	l.all.Wait()
}

func (l *reloadLoad) over() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// ask is a keep-alive client: each request must see the newest generation that
// was published before it was sent.
func (l *reloadLoad) ask(path string) {
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr, Timeout: limit}
	for !l.over() {
		least := l.generation.Load()
		got, err := get(c, l.front+path)
		n := int64(-1)
		if err == nil && path == "/g" {
			_, err = fmt.Sscan(got.body, &n)
		}
		l.done.Add(1)
		old := path == "/g" && n < min(least, l.generation.Load())
		if err != nil || got.status != 200 || old || got.closes {
			l.failed.Add(1)
			l.t.Errorf("request after generation %d: %+v, %v", least, got, err)
			return
		}
	}
}

func (l *reloadLoad) download(ready *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.front+"/download", nil)
	if err != nil {
		l.t.Error(err)
		ready.Done()
		return
	}
	res, err := (&http.Client{Transport: tr}).Do(req)
	ready.Done()
	if err != nil {
		l.closed.Add(1)
		l.t.Error(err)
		return
	}
	defer func() { _ = res.Body.Close() }()
	go func() { <-l.stop; cancel() }()
	if n, err := io.Copy(io.Discard, res.Body); !l.over() && err != nil {
		l.closed.Add(1)
		l.t.Errorf("a download ended after %d bytes: %v", n, err)
	}
}

func (l *reloadLoad) tunnel(ready *sync.WaitGroup) {
	c, err := net.Dial("tcp", strings.TrimPrefix(l.front, "http://"))
	if err != nil {
		l.t.Error(err)
		ready.Done()
		return
	}
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	_, _ = io.WriteString(c, "GET /tunnel HTTP/1.1\r\nHost: x\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
	for line := "-"; line != "\r\n" && err == nil; {
		line, err = in.ReadString('\n')
	}
	ready.Done()
	for n := 0; err == nil && !l.over(); n++ {
		want := fmt.Sprintf("%d\n", n)
		_ = c.SetDeadline(time.Now().Add(limit))
		if _, err = io.WriteString(c, want); err != nil {
			break
		}
		var got string
		if got, err = in.ReadString('\n'); err == nil && got != want {
			err = fmt.Errorf("got %q, want %q", got, want)
		}
		time.Sleep(2 * time.Millisecond)
	}
	if err != nil {
		l.closed.Add(1)
		l.t.Errorf("a tunnel ended: %v", err)
	}
}

// TestRemovedPoolServesWhoHoldsIt takes a pool out of the configuration while a
// request is on its way through it.
func TestRemovedPoolServesWhoHoldsIt(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	text := `admin: {bind: "127.0.0.1:0"}
listeners:
  web: {bind: "127.0.0.1:0", pool: %s}
pools:
  %s: {backends: [%q]}
`
	r := start(t, fmt.Sprintf(text, "one", "one", a.URL))
	got := make(chan answer, 1)
	go func() {
		x, err := get(client(t), r.front+"/slow")
		if err != nil {
			t.Error(err)
		}
		got <- x
	}()
	<-a.arrived
	d, err := r.Reload(parse(t, fmt.Sprintf(text, "two", "two", b.URL)), ReloadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Join(d.Lines(), "\n")
	for _, want := range []string{"+ pools.two", "- pools.one", "one -> two"} {
		if !strings.Contains(lines, want) {
			t.Errorf("the difference lacks %q:\n%s", want, lines)
		}
	}
	if x := mustGet(t, client(t), r.front+"/"); x.body != "b" {
		t.Errorf("the new pool: %+v", x)
	}
	close(a.release)
	if x := <-got; x.status != 200 || x.body != "a" {
		t.Errorf("the request in the removed pool: %+v", x)
	}
	if s := reloadSettled(t, r); s.goroutines == 0 {
		t.Error("nothing runs")
	}
}

// TestDryRunChangesNothing tells the difference and the faults.
func TestDryRunChangesNothing(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a))
	d, err := r.Reload(parse(t, simple("", b)), ReloadOptions{DryRun: true})
	if err != nil || len(d.Changes) != 2 || d.Generation != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if got := mustGet(t, client(t), r.front+"/"); got.body != "a" {
		t.Errorf("a dry run changed the backends: %+v", got)
	}
	if _, err := r.Reload(parse(t, simple("", b)), ReloadOptions{If: 7}); !errors.Is(err, ErrGeneration) {
		t.Errorf("another generation: %v", err)
	}
}

// TestReloadRefusedWhole: what cannot be had is named by a dry run as by the
// run, and nothing else of the plan is in force afterwards.
func TestReloadRefusedWhole(t *testing.T) {
	a := backend(t, "a")
	r := start(t, simple("", a))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	bound := r.Bound().String()
	for what, c := range map[string]struct{ old, next, want string }{
		"listener":    {`bind: "127.0.0.1:0", pool`, `bind: ["127.0.0.1:0", "` + taken.Addr().String() + `"], timeouts: {idle: 5s}, pool`, "listener web: bind " + taken.Addr().String()},
		"admin":       {`admin: {bind: "127.0.0.1:0"}`, `admin: {bind: "` + taken.Addr().String() + `"}`, "admin: bind " + taken.Addr().String()},
		"status":      {`admin:`, `status: {bind: "` + taken.Addr().String() + `"}` + "\nadmin:", "status: bind " + taken.Addr().String()},
		"token":       {`admin: {bind: "127.0.0.1:0"}`, `admin: {bind: "127.0.0.1:0", token_file: /nonexistent/token}`, "admin: token file: open /nonexistent/token"},
		"access log":  {`admin:`, "admin:", "access log: "},
		"certificate": {`bind: "127.0.0.1:0", pool`, `bind: "127.0.0.1:0", tls: {certificates: [{cert: /nonexistent/c, key: /nonexistent/k}]}, pool`, "listener web: certificate /nonexistent/c"},
	} {
		text := strings.Replace(simple("", a), c.old, c.next, 1)
		parsed := func() *config.Plan {
			plan := parse(t, text)
			if what == "access log" {
				plan.Log.Access = config.AccessLog{Path: "/nonexistent/log", Format: "json", Sample: 1}
			}
			return plan
		}
		var said []string
		for _, dry := range []bool{true, false} {
			_, err := r.Reload(parsed(), ReloadOptions{DryRun: dry})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: dry run %v: %v, want %q", what, dry, err, c.want)
				continue
			}
			said = append(said, err.Error())
		}
		if len(said) == 2 && said[0] != said[1] {
			t.Errorf("%s: the dry run says\n%s\nand the run\n%s", what, said[0], said[1])
		}
	}
	if n, now := r.gen.Load().Number, r.Bound().String(); n != 1 || now != bound {
		t.Errorf("generation %d after refusals, bound to %s, before %s", n, now, bound)
	}
	if got := mustGet(t, client(t), r.front+"/"); got.body != "a" {
		t.Errorf("after refusals: %+v", got)
	}
	if _, err := r.Reload(parse(t, "limits: {max_connections: 7}\n"+simple("", a)), ReloadOptions{}); err != nil || r.Engine.front.gate.Limit() != 7 {
		t.Errorf("limit %d, %v", r.Engine.front.gate.Limit(), err)
	}
}

// TestReloadAddsAndRemovesListeners: a new one accepts at once, one that left
// stops accepting, and its connection finishes what it has.
func TestReloadAddsAndRemovesListeners(t *testing.T) {
	a := backend(t, "a")
	base := simple("", a)
	more := strings.Replace(base, "pools:", `  extra: {bind: "127.0.0.1:0", pool: app}`+"\npools:", 1)
	r := start(t, base)
	if _, err := r.Reload(parse(t, more), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	addr := r.Bound().Listeners[0].Addrs[0]
	if n := r.Bound().Listeners[0].Name; n != "extra" {
		t.Fatalf("listener %s", n)
	}
	slow := make(chan answer, 1)
	go func() {
		x, err := get(client(t), "http://"+addr+"/slow")
		if err != nil {
			t.Error(err)
		}
		slow <- x
	}()
	<-a.arrived
	if _, err := r.Reload(parse(t, base), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		_ = c.Close()
		t.Error("a removed listener accepts")
	}
	close(a.release)
	if x := <-slow; x.status != 200 || x.body != "a" {
		t.Errorf("the request on a removed listener: %+v", x)
	}
}

// TestConfigThroughTheAPI: what serves is shown without secrets, and a posted
// configuration needs more than loopback.
func TestConfigThroughTheAPI(t *testing.T) {
	a := backend(t, "a")
	r := start(t, strings.Replace(simple("", a), "pool: app}", `routes: [{pool: app, request_headers: {set: {X-Token: hunter2}}}]}`, 1))
	url := "http://" + r.Bound().Admin + "/api/v1/config"
	res, err := client(t).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.Header.Get("ETag") != `"1"` || strings.Contains(string(text), "hunter2") || !strings.Contains(string(text), "***") {
		t.Errorf("shown with %v: %s, %v", res.Header, text, err)
	}
	res, err = client(t).Post(url, "application/json", strings.NewReader(`{"text": ""}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("posted without a token: %s", res.Status)
	}
	if _, err := r.admin.Reload(t.Context(), false); err == nil || !strings.Contains(err.Error(), "without a configuration file") {
		t.Errorf("reload of a configuration from flags: %v", err)
	}
}

// TestReloadOfPipes: a secret or a certificate that became a pipe costs that
// reload, and the process still takes orders.
func TestReloadOfPipes(t *testing.T) {
	pipe := t.TempDir() + "/pipe"
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	a := backend(t, "a")
	r := start(t, simple("", a))
	for name, change := range map[string]func(*config.Plan){
		"token":       func(p *config.Plan) { p.Admin.TokenFile = pipe },
		"endless":     func(p *config.Plan) { p.Admin.TokenFile = "/dev/zero" },
		"authorities": func(p *config.Plan) { p.Pools[0].TLS.CA = pipe },
		"key":         func(p *config.Plan) { p.Pools[0].TLS.Cert, p.Pools[0].TLS.Key = pipe, pipe },
		"certificate": func(p *config.Plan) {
			p.Listeners[0].TLS = &config.ListenerTLS{Certificates: []config.KeyPair{{Cert: pipe, Key: "/dev/zero"}}}
		},
	} {
		plan := parse(t, simple("", a))
		change(plan)
		for _, dry := range []bool{true, false} {
			if _, err := r.Reload(plan, ReloadOptions{DryRun: dry}); err == nil {
				t.Errorf("%s, dry run %v: accepted", name, dry)
			}
		}
	}
}
