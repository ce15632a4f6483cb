// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// streamEnds is what clients saw of the ends of their streams.
type streamEnds struct {
	mu  sync.Mutex
	at  []time.Time
	how map[string]int
}

func (e *streamEnds) add(how string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = append(e.at, time.Now())
	if e.how == nil {
		e.how = map[string]int{}
	}
	e.how[how]++
}

// take returns what was added since the last call.
func (e *streamEnds) take() (at []time.Time, how map[string]int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, how = e.at, e.how
	e.at, e.how = nil, nil
	return at, how
}

// eventsServer sends an event every 20 ms for ever, and content with a length
// slowly.
func eventsServer(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		flush := http.NewResponseController(w)
		if strings.HasSuffix(r.URL.Path, "/download") {
			w.Header().Set("Content-Length", "20")
			for range 20 {
				_, _ = io.WriteString(w, "x")
				_ = flush.Flush()
				time.Sleep(110 * time.Millisecond)
			}
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "data: x\n\n")
			_ = flush.Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}))
	t.Cleanup(s.CloseClientConnections)
	return s
}

// listenTo reads a stream of events until its end, and says how that was: cut where
// the answer was not whole.
func listenTo(ctx context.Context, c *http.Client, url string) string {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	a, err := c.Do(r)
	if err != nil {
		return err.Error()
	}
	defer a.Body.Close()
	lines := bufio.NewScanner(a.Body)
	for lines.Scan() {
		if t := lines.Text(); t != "" && t != "data: x" {
			return "torn: " + t
		}
	}
	if lines.Err() == nil {
		return "whole"
	}
	if errors.Is(lines.Err(), context.Canceled) {
		return "left"
	}
	return "cut"
}

// TestStreamsAreEndedInWaves: events and gRPC streams of a backend that drains end
// within drain.spread before the deadline, one after another and not together, no
// event torn and calls with a status; what has an end of its own has until the
// deadline; and whoever drains is told what it has ended. The same when weir stops.
func TestStreamsAreEndedInWaves(t *testing.T) {
	t.Parallel()
	const n, spreadOver = 20, 1500 * time.Millisecond
	events, rpc := eventsServer(t), newRPCBackend(t, time.Millisecond)
	addr := strings.TrimPrefix(events.URL, "http://")
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
shutdown: {delay: none, deadline: 2s, spread: %[3]s}
listeners:
  web:
    bind: "${LISTEN}"
    routes: [{match: {path_prefix: /stream}, pool: rpc}, {pool: app}]
pools:
  app: {backends: ["http://%[1]s"], drain: {deadline: 2500ms, spread: %[3]s}}
  rpc: {backends: ["grpc://%[2]s"], drain: {deadline: 2500ms, spread: %[3]s}}
`, addr, rpc.addr, spreadOver))
	h1 := &http.Client{Transport: &http.Transport{}}
	h2 := newRPCClient(t, w.addr)
	var sse, calls streamEnds
	var all sync.WaitGroup
	open := func() {
		for i := range n {
			c := h1
			if i%2 == 0 {
				c = h2.http
			}
			all.Go(func() { sse.add(listenTo(t.Context(), c, w.url("/events"))) })
			all.Go(func() {
				s, err := h2.call(t.Context(), "/stream/Watch")
				if err != nil {
					s = err.Error()
				}
				calls.add(s)
			})
		}
		eventually(t, 10*time.Second, "all are open", func() bool {
			return w.backends(t, "app")[addr].Streams == n && w.backends(t, "rpc")[rpc.addr].Streams == n
		})
	}
	ended := func() {
		t.Helper()
		for name, e := range map[string]*streamEnds{"events": &sse, "calls": &calls} {
			at, how := e.take()
			if want := map[string]string{"events": "cut", "calls": "14"}[name]; how[want] != n || len(how) != 1 {
				t.Errorf("%s ended: %v, want %d times %s", name, how, n, want)
				continue
			}
			spread(t, at, spreadOver-500*time.Millisecond)
		}
	}
	open()
	download := make(chan error, 1)
	go func() {
		a, err := h1.Get(w.url("/download")) //nolint:noctx // it ends
		if err == nil {
			var b []byte
			b, err = io.ReadAll(a.Body)
			_ = a.Body.Close()
			if err == nil && len(b) != 20 {
				err = fmt.Errorf("%d bytes", len(b))
			}
		}
		download <- err
	}()
	eventually(t, 5*time.Second, "the download is under way", func() bool { return w.backends(t, "app")[addr].InFlight == n+1 })
	patchIn(t, w, "rpc", rpc.addr, `{"admin":"draining"}`)
	out, err := exec.Command(binary, "drain", "app/"+addr, "--wait", "--admin", w.admin).CombinedOutput()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("is empty: %d streams were ended\n", n)) {
		t.Errorf("%v %s", err, out)
	}
	all.Wait()
	ended()
	if err := <-download; err != nil {
		t.Errorf("the download: %v", err)
	}
	if got := w.sum(t, "weir_streams_ended_total", `cause="drain"`); got != 2*n {
		t.Errorf("%v are counted", got)
	}
	patchIn(t, w, "app", addr, `{"admin":"enabled"}`)
	patchIn(t, w, "rpc", rpc.addr, `{"admin":"enabled"}`)
	open()
	w.signal(syscall.SIGTERM)
	if code := w.wait(20 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
	all.Wait()
	ended()
	if text := w.out.String(); !strings.Contains(text, fmt.Sprintf(`msg="streams were ended" streams=%d`, 2*n)) {
		t.Error("it does not say what became of the streams")
	}
}

// TestBrokenBackendsTunnels: those of a backend whose checks fail stay, as they may
// well work, or are closed where on_broken says so, and come back elsewhere. Those
// of others never notice.
func TestBrokenBackendsTunnels(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"keep", "close"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ill, well := newWSBackend(t), newWSBackend(t)
			w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
shutdown: {delay: none, deadline: 500ms}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools:
  app:
    balance: round_robin
    backends: ["http://%s", "http://%s"]
    health: {active: {path: /check, interval: 100ms, fast_interval: 100ms, timeout: 90ms, fall: 2}, panic: off}
    slow_start: off
    drain: {spread: 500ms}
    on_broken: %s
`, ill.addr, well.addr, how))
			ws := startWS(w.addr, 20)
			defer ws.all.Wait()
			defer ws.last.Store(true)
			defer w.signal(syscall.SIGINT)
			eventually(t, 10*time.Second, "all are open", func() bool { return ws.open.Load() == 20 && ill.open.Load() == 10 })
			ill.ill.Store(true)
			eventually(t, 10*time.Second, "it is broken", func() bool { return w.backends(t, "app")[ill.addr].Health == "broken" })
			if how == "close" {
				eventually(t, 10*time.Second, "all have moved", func() bool { return ill.open.Load() == 0 && well.open.Load() == 20 })
				if got := ill.seen(); got[1001] != 10 || len(got) != 1 {
					t.Errorf("its WebSockets were closed with %v", got)
				}
			} else {
				time.Sleep(time.Second) // twice the spread
			}
			_, codes, faults := ws.take()
			if want := map[string]int{"keep": 0, "close": 10}[how]; codes[1012] != want || len(faults) != 0 {
				t.Errorf("clients got codes %v, faults %v, want %d", codes, faults, want)
			}
			if got := well.seen(); len(got) != 0 {
				t.Errorf("WebSockets of the other one were closed with %v", got)
			}
		})
	}
}

// TestRebalanceAfterScalingOut: a newcomer gets its part of what is open already,
// where that is asked for, WebSockets and streams of gRPC alike; who is moved comes
// back at once.
func TestRebalanceAfterScalingOut(t *testing.T) {
	t.Parallel()
	var wss []*wsBackend
	var rpcs []*rpcBackend
	var wsURLs, rpcURLs []string
	for range 3 {
		s, r := newWSBackend(t), newRPCBackend(t, time.Millisecond)
		wss, wsURLs = append(wss, s), append(wsURLs, `"http://`+s.addr+`"`)
		rpcs, rpcURLs = append(rpcs, r), append(rpcURLs, `"grpc://`+r.addr+`"`)
	}
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: off}}
shutdown: {delay: none, deadline: 500ms}
listeners:
  web:
    bind: "${LISTEN}"
    routes: [{match: {path_prefix: /stream}, pool: rpc}, {pool: app}]
pools:
  app: {balance: least_request, slow_start: off, backends: [%s], rebalance: {above: 5%%, per_minute: 1000%%, min_age: 10ms}}
  rpc: {balance: least_request, slow_start: off, backends: [%s], rebalance: {above: 5%%, per_minute: 1000%%, min_age: 10ms}}
`, strings.Join(wsURLs, ", "), strings.Join(rpcURLs, ", ")))
	patchIn(t, w, "app", wss[2].addr, `{"admin":"disabled"}`)
	patchIn(t, w, "rpc", rpcs[2].addr, `{"admin":"disabled"}`)
	ctx, leave := context.WithCancel(t.Context())
	c := newRPCClient(t, w.addr)
	var ends streamEnds
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			for ctx.Err() == nil {
				s, err := c.call(ctx, "/stream/Watch")
				if ctx.Err() == nil {
					ends.add(fmt.Sprint(s, err))
				}
			}
		})
	}
	ws := startWS(w.addr, 200)
	eventually(t, 20*time.Second, "all are open", func() bool {
		return ws.open.Load() == 200 && rpcs[0].open.Load()+rpcs[1].open.Load() == 200
	})
	patchIn(t, w, "app", wss[2].addr, `{"admin":"enabled"}`)
	patchIn(t, w, "rpc", rpcs[2].addr, `{"admin":"enabled"}`)
	// The part of each is 67; what chance explains, 16 more, is left alone.
	eventually(t, 30*time.Second, "the newcomers have got some", func() bool { return wss[2].open.Load() >= 25 && rpcs[2].open.Load() >= 25 })
	eventually(t, 10*time.Second, "all are open again", func() bool { return ws.open.Load() == 200 })
	leave()
	all.Wait()
	if _, how := ends.take(); how["14<nil>"] < 25 || len(how) != 1 {
		t.Errorf("streams ended: %v", how)
	}
	if _, codes, faults := ws.take(); codes[1012] < 25 || len(codes) != 1 || len(faults) != 0 {
		t.Errorf("WebSockets: codes %v, faults %v", codes, faults)
	}
	if n := w.sum(t, "weir_streams_ended_total", `cause="rebalance"`); n < 25 {
		t.Errorf("%v are counted", n)
	}
	ws.last.Store(true)
	w.signal(syscall.SIGINT)
	ws.all.Wait()
}
