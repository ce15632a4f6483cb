// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// wsFrame appends a frame. A mask of zeros masks nothing, and is a mask.
func wsFrame(b []byte, first byte, payload []byte, masked bool) []byte {
	b = append(b, first, byte(len(payload)))
	if masked {
		b[len(b)-1] |= 0x80
		b = append(b, 0, 0, 0, 0)
	}
	return append(b, payload...)
}

// wsRead reads a short frame and takes its mask off.
func wsRead(r *bufio.Reader) (first byte, payload []byte, err error) {
	var head [2]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	var mask [4]byte
	if head[1]&0x80 != 0 {
		if _, err = io.ReadFull(r, mask[:]); err != nil {
			return 0, nil, err
		}
	}
	payload = make([]byte, head[1]&0x7f)
	if _, err = io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return head[0], payload, nil
}

func closeCode(payload []byte) int {
	if len(payload) < 2 {
		return 0
	}
	return int(payload[0])<<8 | int(payload[1])
}

// wsBackend echoes WebSocket messages and answers everything else with 200. It
// can be stopped and started again on its address.
type wsBackend struct {
	t     *testing.T
	addr  string
	mu    sync.Mutex
	ln    net.Listener
	codes map[int]int // of the Close frames it got; 0: the connection ended without
	open  atomic.Int64
	ill   atomic.Bool // checks (/check) get no answer
}

func newWSBackend(t *testing.T) *wsBackend {
	b := &wsBackend{t: t, addr: freeAddr(t), codes: map[int]int{}}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *wsBackend) start() {
	ln, err := net.Listen("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.ln = ln
	go func() { _ = http.Serve(ln, b) }()
}

func (b *wsBackend) stop() { _ = b.ln.Close() }

func (b *wsBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if b.ill.Load() && r.URL.Path == "/check" {
		panic(http.ErrAbortHandler)
	}
	if r.Header.Get("Upgrade") != "websocket" {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "ok")
		return
	}
	c, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	b.open.Add(1)
	defer b.open.Add(-1)
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	code := 0
	for {
		first, p, err := wsRead(rw.Reader)
		if err != nil {
			break
		}
		_, _ = c.Write(wsFrame(nil, first, p, false))
		if first == 0x88 {
			code = closeCode(p)
			break
		}
	}
	b.mu.Lock()
	b.codes[code]++
	b.mu.Unlock()
}

// seen returns the codes of Close frames so far.
func (b *wsBackend) seen() map[int]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[int]int{}
	for k, v := range b.codes {
		out[k] = v
	}
	return out
}

// wsClients hold WebSockets and open them again as soon as they are closed.
type wsClients struct {
	addr string
	last atomic.Bool // whoever is closed does not come back
	all  sync.WaitGroup
	open atomic.Int64

	mu     sync.Mutex
	closed []time.Time
	codes  map[int]int
	faults map[string]int
}

func startWS(addr string, n int) *wsClients {
	c := &wsClients{addr: addr, codes: map[int]int{}, faults: map[string]int{}}
	for range n {
		c.all.Go(func() {
			for !c.last.Load() {
				c.one()
			}
		})
	}
	return c
}

func (c *wsClients) fault(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[fmt.Sprintf("%s: %v", what, err)]++
	time.Sleep(10 * time.Millisecond)
}

// one is the life of a connection: a message every 100 ms, each of which comes
// back, until a Close frame comes.
func (c *wsClients) one() {
	nc, err := net.Dial("tcp", c.addr)
	if err != nil {
		c.fault("dial", err)
		return
	}
	defer nc.Close()
	_, _ = io.WriteString(nc, "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	r := bufio.NewReader(nc)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 101 {
		c.fault(fmt.Sprintf("upgrade %+v", res), err)
		return
	}
	c.open.Add(1)
	defer c.open.Add(-1)
	for n := 0; ; n++ {
		_, _ = nc.Write(wsFrame(nil, 0x81, fmt.Append(nil, n), true))
		first, p, err := wsRead(r)
		switch {
		case err != nil:
			c.fault("read", err)
			return
		case first == 0x88:
			c.mu.Lock()
			c.codes[closeCode(p)]++
			c.closed = append(c.closed, time.Now())
			c.mu.Unlock()
			_, _ = nc.Write(wsFrame(nil, 0x88, p[:2], true))
			if _, err := r.ReadByte(); err != io.EOF {
				c.fault("after the Close frames", err)
			}
			return
		case string(p) != fmt.Sprint(n):
			c.fault("echo "+string(p), nil)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// take returns what was closed since the last call.
func (c *wsClients) take() (at []time.Time, codes map[int]int, faults map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, codes, faults = c.closed, c.codes, c.faults
	c.closed, c.codes, c.faults = nil, map[int]int{}, map[string]int{}
	return at, codes, faults
}

func patch(t *testing.T, w *weir, backend, body string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPatch, "http://"+w.admin+"/api/v1/pools/app/backends/"+backend, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != 200 {
		t.Fatalf("%s: %d %s", body, res.StatusCode, text)
	}
}

// spread checks that moments lie over a time, as clients on a busy machine see
// it: from the first to the last between two fifths of it and half a second more,
// and no quarter of it holds over seven tenths.
func spread(t *testing.T, at []time.Time, over time.Duration) {
	t.Helper()
	slices.SortFunc(at, time.Time.Compare)
	if took := at[len(at)-1].Sub(at[0]); took < over*2/5 || took > over+500*time.Millisecond {
		t.Errorf("%d were closed within %s, want about %s", len(at), took, over)
	}
	most := 0
	for i := range at {
		n := 0
		for _, a := range at[i:] {
			if a.Sub(at[i]) < over/4 {
				n++
			}
		}
		most = max(most, n)
	}
	if most > len(at)*7/10 {
		t.Errorf("%d of %d came within a quarter of %s", most, len(at), over)
	}
}

// TestRollingRestartUnderWebSockets restarts all backends one after another
// while 200 WebSockets are open and other requests come: each WebSocket of the
// one that leaves gets 1012 and its backend 1001, spread over the set time, no
// message is lost and no request fails. At the end weir itself stops.
func TestRollingRestartUnderWebSockets(t *testing.T) {
	var bs []*wsBackend
	var urls []string
	for range 3 {
		b := newWSBackend(t)
		bs, urls = append(bs, b), append(urls, `"http://`+b.addr+`"`)
	}
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
shutdown: {delay: 100ms, deadline: %[4]s, spread: %[2]s}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools:
  app:
    balance: least_request
    backends: [%[1]s]
    slow_start: off
    retry: off
    drain: {deadline: %[3]s, spread: %[2]s}
`, strings.Join(urls, ", "), rollingSpread, rollingSpread+200*time.Millisecond, rollingSpread+500*time.Millisecond))
	ws := startWS(w.addr, 200)
	eventually(t, 10*time.Second, "200 are open", func() bool { return ws.open.Load() == 200 })
	stop := make(chan struct{})
	var got tally
	unary := clients{url: w.url("/"), n: 4, methods: []string{"GET", "POST"}, pause: 5 * time.Millisecond}.run(stop, &got)
	for _, b := range bs {
		held := int(b.open.Load())
		if held < 40 {
			t.Errorf("%s holds only %d of 200", b.addr, held)
		}
		_, _, _ = ws.take()
		patch(t, w, b.addr, `{"admin":"draining"}`)
		eventually(t, rollingSpread+5*time.Second, "empty", func() bool { return w.backends(t, "app")[b.addr].InFlight == 0 })
		at, codes, faults := ws.take()
		if len(faults) != 0 || codes[1012] != held || len(codes) != 1 {
			t.Errorf("clients of %d WebSockets got codes %v and faults %v", held, codes, faults)
		}
		if got := b.seen(); got[1001] != held || len(got) != 1 {
			t.Errorf("the backend of %d WebSockets got codes %v", held, got)
		}
		if len(at) > 0 {
			spread(t, at, rollingSpread-max(rollingSpread/5, 500*time.Millisecond)) // the rest of it is for the last to answer
		}
		b.stop()
		b.start()
		patch(t, w, b.addr, `{"admin":"enabled"}`)
		eventually(t, 5*time.Second, "all are open again", func() bool { return ws.open.Load() == 200 })
	}
	if n := w.sum(t, "weir_tunnels_ended_total", `cause="drain",outcome="closed"`); n < 200 {
		t.Errorf("%v are counted", n)
	}
	if n := w.sum(t, "weir_tunnels", `pool="app"`); n != 200 {
		t.Errorf("weir_tunnels says %v", n)
	}
	close(stop)
	unary.Wait()
	if bad := got.bad(); bad != "" {
		t.Errorf("of %d requests: %s", got.total(), bad)
	}
	stopUnderWebSockets(t, w, ws)
}

// stopUnderWebSockets stops weir: all are closed in order, and it says so.
func stopUnderWebSockets(t *testing.T, w *weir, ws *wsClients) {
	_, _, _ = ws.take()
	ws.last.Store(true)
	w.signal(syscall.SIGTERM)
	if code := w.wait(10 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
	ws.all.Wait()
	at, codes, faults := ws.take()
	if len(faults) != 0 || len(codes) != 1 || codes[1012] != 200 {
		t.Errorf("codes %v and faults %v", codes, faults)
	} else {
		spread(t, at, rollingSpread-max(rollingSpread/5, 500*time.Millisecond))
	}
	if text := w.out.String(); !strings.Contains(text, `msg="tunnels were ended" closed=200 unanswered=0 cut=0`) {
		t.Error("it does not say what became of the tunnels")
	}
}
