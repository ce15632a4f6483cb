// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// rpcMessage is a gRPC message of one byte.
const rpcMessage = "\x00\x00\x00\x00\x01x"

// rpcBackend is a gRPC server: it answers calls after a delay, and those of
// /stream/ by a message now and then until they are broken off. It can be stopped
// and started again on its address.
type rpcBackend struct {
	t     *testing.T
	addr  string
	delay time.Duration
	srv   *http.Server

	mu    sync.Mutex
	calls map[string]int // by first segment of the path
	open  atomic.Int64   // streams
}

func newRPCBackend(t *testing.T, delay time.Duration) *rpcBackend {
	b := &rpcBackend{t: t, addr: "127.0.0.1:0", delay: delay, calls: map[string]int{}}
	b.start()
	t.Cleanup(func() { _ = b.srv.Close() })
	return b
}

func (b *rpcBackend) start() {
	ln, err := net.Listen("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.addr = ln.Addr().String()
	b.srv = &http.Server{Handler: b, Protocols: new(http.Protocols)}
	b.srv.Protocols.SetUnencryptedHTTP2(true)
	go func(s *http.Server) { _ = s.Serve(ln) }(b.srv)
}

func (b *rpcBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := strings.Split(r.URL.Path, "/")[1]
	b.mu.Lock()
	b.calls[kind]++
	b.mu.Unlock()
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "grpc-status")
	if kind == "stream" {
		b.open.Add(1)
		defer b.open.Add(-1)
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, rpcMessage)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return
	}
	time.Sleep(b.delay)
	_, _ = io.WriteString(w, rpcMessage)
	w.Header().Set("grpc-status", "0")
}

func (b *rpcBackend) took(kind string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[kind]
}

// rpcClient makes calls over the connections that its transport opens, which are
// counted.
type rpcClient struct {
	base  string
	http  *http.Client
	dials atomic.Int64
}

func newRPCClient(t *testing.T, addr string) *rpcClient {
	c := &rpcClient{base: "http://" + addr}
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c.dials.Add(1)
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}}
	c.http = &http.Client{Transport: tr}
	t.Cleanup(tr.CloseIdleConnections)
	return c
}

// call returns a call's status once it has ended; an error where it had none.
func (c *rpcClient) call(ctx context.Context, path string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, strings.NewReader(rpcMessage))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("TE", "trailers")
	a, err := c.http.Do(r)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	if _, err := io.Copy(io.Discard, a.Body); err != nil {
		return "", err
	}
	for _, from := range []http.Header{a.Trailer, a.Header} {
		if s := from.Get("grpc-status"); s != "" {
			return s, nil
		}
	}
	return "", fmt.Errorf("%s without a grpc-status", a.Status)
}

// many makes n calls, so many at once.
func (c *rpcClient) many(t *testing.T, path string, n, atOnce int) {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if s, err := c.call(t.Context(), path); s != "0" {
					t.Errorf("status %q %v", s, err)
				}
			}
		})
	}
	all.Wait()
}

// within3 reports that n of total is what p says, to three standard deviations of a
// binomial distribution.
func within3(n, total int, p float64) bool {
	return math.Abs(float64(n)-float64(total)*p) <= 3*math.Sqrt(float64(total)*p*(1-p))
}

// TestGRPCShares: one client with one connection, one backend of three is slow.
// Each policy gives what it promises, whatever is under way at once; backends that
// are added get theirs within 3 s, and the client never connects anew.
func TestGRPCShares(t *testing.T) {
	var bs []*rpcBackend
	var urls []string
	for i := range 6 {
		delay := time.Millisecond
		if i == 0 {
			delay = 10 * time.Millisecond
		}
		b := newRPCBackend(t, delay)
		bs, urls = append(bs, b), append(urls, `"grpc://`+b.addr+`"`)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "weir.yaml")
	w := &weir{addr: freeAddr(t), admin: freeAddr(t)}
	write := func(n int) {
		var routes, pools strings.Builder
		for _, p := range []string{"round_robin", "random", "p2c"} {
			fmt.Fprintf(&routes, "      - {match: {path_prefix: /%s}, pool: %s}\n", p, p)
			fmt.Fprintf(&pools, "  %s: {balance: %s, backends: [%s], slow_start: off, health: {active: {initial: up}}}\n", p, p, strings.Join(urls[:n], ", "))
		}
		text := fmt.Sprintf("admin: {bind: %q}\nlog: {access: {path: off}}\nlisteners:\n  web:\n    bind: %q\n    routes:\n%spools:\n%s", w.admin, w.addr, routes.String(), pools.String())
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(3)
	w.process = spawn(t, binary, "run", "-c", file)
	waitListening(t, w.process, w.addr)
	c := newRPCClient(t, w.addr)

	// ask makes calls and returns who took how many of them.
	ask := func(path string, n, atOnce int) []int {
		took := make([]int, len(bs))
		for i, b := range bs {
			took[i] = -b.took(path)
		}
		c.many(t, "/"+path+"/Call", n, atOnce)
		for i, b := range bs {
			took[i] += b.took(path)
		}
		return took
	}
	fair := func(took []int, among int, policy string) bool {
		total := 0
		for _, n := range took[:among] {
			total += n
		}
		for _, n := range took[:among] {
			even := policy == "round_robin" && math.Abs(float64(n)-float64(total)/float64(among)) <= 1
			if !even && (policy == "round_robin" || !within3(n, total, 1/float64(among))) {
				return false
			}
		}
		return true
	}
	for _, atOnce := range []int{1, 8, 64} {
		for _, policy := range []string{"round_robin", "random", "p2c"} {
			n := map[int]int{1: 150, 8: 240, 64: 640}[atOnce]
			good := func(took []int) bool {
				if policy != "p2c" || atOnce == 1 { // with nothing else under way there is nothing to choose by
					return fair(took, 3, policy)
				}
				return float64(took[0]) < float64(n)/3-3*math.Sqrt(float64(n)*2/9) && within3(took[1], took[1]+took[2], 0.5)
			}
			took := ask(policy, n, atOnce)
			if !good(took) { // once in a hundred times by chance
				t.Logf("%s, %d at once: %v, once more", policy, atOnce, took)
				if took = ask(policy, n, atOnce); !good(took) {
					t.Errorf("%s, %d at once: %v", policy, atOnce, took)
				}
			}
		}
	}

	write(6)
	begun := time.Now()
	w.signal(syscall.SIGHUP)
	eventually(t, 3*time.Second, "a new backend is asked", func() bool {
		c.many(t, "/random/Call", 6, 1)
		return bs[5].took("random") > 0
	})
	for _, policy := range []string{"round_robin", "random"} {
		took := ask(policy, 240, 8)
		if !fair(took, 6, policy) {
			if took = ask(policy, 240, 8); !fair(took, 6, policy) {
				t.Errorf("after three more were added, %s: %v", policy, took)
			}
		}
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("new backends had their share after %v", took)
	}
	if n := c.dials.Load(); n != 1 {
		t.Errorf("the client connected %d times", n)
	}
}

// TestGRPCPinnedByStreams is what balancing by connection does in TestGRPCShares'
// place, so that it is known to test something: nginx's stream module.
func TestGRPCPinnedByStreams(t *testing.T) {
	nginx := tool(t, "nginx")
	const module = "/usr/lib/nginx/modules/ngx_stream_module.so"
	if _, err := os.Stat(module); err != nil {
		t.Skip("nginx has no stream module here")
	}
	var bs []*rpcBackend
	servers := ""
	for range 3 {
		b := newRPCBackend(t, 0)
		bs, servers = append(bs, b), servers+"server "+b.addr+"; "
	}
	dir, addr := t.TempDir(), freeAddr(t)
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf("load_module %s;\ndaemon off; master_process off; pid %s/pid; error_log %s/log;\nevents {}\nstream { upstream b { %s} server { listen %s; proxy_pass b; } }\n", module, dir, dir, servers, addr)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	waitListening(t, spawn(t, nginx, "-c", conf, "-p", dir), addr)
	newRPCClient(t, addr).many(t, "/x/Call", 60, 8)
	var took []int
	for _, b := range bs {
		took = append(took, b.took("x"))
	}
	if slices.Max(took) != 60 {
		t.Errorf("calls of one connection: %v", took)
	}
}

// TestGRPCRollingRestart restarts all backends one after another while 50 clients
// hold streams, 200 hold WebSockets, and others make calls: no call fails, streams
// end with UNAVAILABLE, WebSockets with 1012.
func TestGRPCRollingRestart(t *testing.T) {
	var rpcs []*rpcBackend
	var wss []*wsBackend
	var rpcURLs, wsURLs []string
	for range 3 {
		r, s := newRPCBackend(t, 2*time.Millisecond), newWSBackend(t)
		rpcs, rpcURLs = append(rpcs, r), append(rpcURLs, `"grpc://`+r.addr+`"`)
		wss, wsURLs = append(wss, s), append(wsURLs, `"http://`+s.addr+`"`)
	}
	const drain = time.Second
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: off}}
shutdown: {delay: 100ms, deadline: 2s, spread: 1s}
listeners:
  web:
    bind: "${LISTEN}"
    routes:
      - {match: {path_prefix: /stream}, pool: rpc}
      - {match: {path_prefix: /unary}, pool: rpc}
      - {pool: app}
pools:
  rpc: {balance: least_request, backends: [%s], slow_start: off, retry: off, drain: {deadline: %s}}
  app: {balance: least_request, backends: [%s], slow_start: off, retry: off, drain: {deadline: %[2]s, spread: %[2]s}}
`, strings.Join(rpcURLs, ", "), drain, strings.Join(wsURLs, ", ")))
	ws := startWS(w.addr, 200)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := newRPCClient(t, w.addr)
	var all sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	for range 50 {
		all.Go(func() {
			for ctx.Err() == nil {
				s, err := c.call(ctx, "/stream/Watch")
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					s = err.Error()
				}
				mu.Lock()
				ends[s]++
				mu.Unlock()
			}
		})
	}
	var calls, failed atomic.Int64
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				if s, err := c.call(ctx, "/unary/Call"); s != "0" && ctx.Err() == nil {
					failed.Add(1)
					t.Errorf("a call ended with %q %v", s, err)
				}
				calls.Add(1)
			}
		})
	}
	held := func() (n int64) {
		for _, b := range rpcs {
			n += b.open.Load()
		}
		return n
	}
	eventually(t, 10*time.Second, "all are open", func() bool { return held() == 50 && ws.open.Load() == 200 })
	for i, b := range rpcs {
		streams := int(b.open.Load())
		set := func(pool, backend, body string) {
			t.Helper()
			patchIn(t, w, pool, backend, body)
		}
		set("rpc", b.addr, `{"admin":"draining"}`)
		set("app", wss[i].addr, `{"admin":"draining"}`)
		eventually(t, drain+5*time.Second, "both are empty", func() bool {
			return w.backends(t, "rpc")[b.addr].InFlight == 0 && w.backends(t, "app")[wss[i].addr].InFlight == 0
		})
		if streams < 10 {
			t.Errorf("%s held only %d streams of 50", b.addr, streams)
		}
		_ = b.srv.Close()
		wss[i].stop()
		b.start()
		wss[i].start()
		set("rpc", b.addr, `{"admin":"enabled"}`)
		set("app", wss[i].addr, `{"admin":"enabled"}`)
		eventually(t, 5*time.Second, "all are open again", func() bool { return held() == 50 && ws.open.Load() == 200 })
	}
	cancel()
	all.Wait()
	if len(ends) != 1 || ends["14"] < 50 {
		t.Errorf("streams ended: %v", ends)
	}
	if _, codes, faults := ws.take(); len(faults) != 0 || codes[1012] < 200 || len(codes) != 1 {
		t.Errorf("WebSockets: codes %v, faults %v", codes, faults)
	}
	if n := calls.Load(); n < 100 {
		t.Errorf("only %d calls", n)
	}
	t.Logf("%d calls, %d failed; streams ended: %v", calls.Load(), failed.Load(), ends)
	stopUnderWebSockets(t, w, ws)
}

// patchIn is patch for any pool.
func patchIn(t *testing.T, w *weir, pool, backend, body string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPatch, "http://"+w.admin+"/api/v1/pools/"+pool+"/backends/"+backend, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if text, _ := io.ReadAll(a.Body); a.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s", body, a.StatusCode, text)
	}
}

// TestGRPCDrain stops weir with 1,000 calls under way on ten connections: all are
// answered. A stream that has no end ends with UNAVAILABLE at the deadline.
func TestGRPCDrain(t *testing.T) {
	for _, endless := range []bool{false, true} {
		t.Run(fmt.Sprintf("endless=%v", endless), func(t *testing.T) {
			t.Parallel()
			b := newRPCBackend(t, 1500*time.Millisecond)
			deadline := 20 * time.Second
			if endless {
				deadline = 2500 * time.Millisecond
			}
			w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: off}}
shutdown: {delay: 100ms, deadline: %s, spread: 500ms}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: ["grpc://%s"], health: {active: {initial: up}}}}
`, deadline, b.addr))
			var all sync.WaitGroup
			var mu sync.Mutex
			ends := map[string]int{}
			ask := func(c *rpcClient, path string) {
				all.Go(func() {
					s, err := c.call(context.Background(), path)
					if err != nil {
						s = err.Error()
					}
					mu.Lock()
					ends[path+" "+s]++
					mu.Unlock()
				})
			}
			want := map[string]int{}
			for range 10 {
				c := newRPCClient(t, w.addr)
				n := 100
				if endless {
					ask(c, "/stream/Watch")
					want["/stream/Watch 14"]++
					n = 5
				}
				for range n {
					ask(c, "/unary/Call")
					want["/unary/Call 0"]++
				}
			}
			eventually(t, 10*time.Second, "all are under way", func() bool { return b.took("unary")+b.took("stream") == want["/unary/Call 0"]+want["/stream/Watch 14"] })
			begun := time.Now()
			w.signal(syscall.SIGTERM)
			all.Wait()
			if code := w.wait(deadline + 2*time.Second); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if took := time.Since(begun); took > deadline+2*time.Second || endless && took < deadline-time.Second {
				t.Errorf("it took %v", took)
			}
			if !maps.Equal(ends, want) {
				t.Errorf("calls ended: %v, want %v", ends, want)
			}
		})
	}
}
