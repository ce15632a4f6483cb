// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The keep-alive race: a backend closes an idle connection in the very moment
// that weir wants to use it. No request may see a 5xx for it, and no POST may
// be executed twice, whatever the backend's timeout, whether it announces it,
// and however it closes. Requests come in bursts, one connection each, at
// k x T +- 20 ms after the last burst.
func TestKeepAliveRace(t *testing.T) {
	t.Parallel()
	var cells []*raceCell
	for _, idle := range []time.Duration{time.Second, 5 * time.Second} {
		for _, announce := range []bool{true, false} {
			for _, rst := range []bool{false, true} {
				c := &raceCell{idle: idle}
				c.name = fmt.Sprintf("scripted idle=%s announce=%t rst=%t", idle, announce, rst)
				c.addr = startRacer(t, c, announce, rst)
				cells = append(cells, c)
			}
		}
	}
	for _, s := range []string{"1s", "5s"} {
		idle, _ := time.ParseDuration(s)
		addr := freeAddr(t)
		startBackend(t, addr, "--idle-timeout", s, "--delay", "30ms")
		cells = append(cells, &raceCell{name: "Go idle=" + s, addr: addr, idle: idle})
		cells = append(cells, &raceCell{name: "nginx idle=" + s, addr: startNginxBackend(t, s), idle: idle})
		cells = append(cells, &raceCell{name: "Node idle=" + s, addr: startNodeBackend(t, idle), idle: idle})
	}
	var b strings.Builder
	b.WriteString("admin: {bind: \"${ADMIN}\"}\nlisteners:\n  unused: {bind: \"${LISTEN}\", pool: c0}\n")
	for i, c := range cells {
		c.front = freeAddr(t)
		fmt.Fprintf(&b, "  l%d: {bind: \"%s\", pool: c%d}\n", i, c.front, i)
	}
	b.WriteString("pools:\n")
	for i, c := range cells {
		fmt.Fprintf(&b, "  c%d: {backends: [\"http://%s\"], health: {passive: off, active: {interval: 60s, timeout: 2s}}}\n", i, c.addr)
	}
	startRun(t, b.String())
	still := stills(t)
	var wg sync.WaitGroup
	for _, c := range cells {
		c.stills = still
		wg.Go(func() { c.run(t) })
	}
	wg.Wait()
}

type raceCell struct {
	name  string
	addr  string
	front string
	idle  time.Duration

	stills func() int64

	mu       sync.Mutex
	executed map[string]int // POST id -> times
	closes   int            // idle connections that the backend closed
}

const raceBurst = 20

// run sends raceTrials requests of each method.
func (c *raceCell) run(t *testing.T) {
	hc := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: raceBurst}, Timeout: 30 * time.Second}
	defer hc.CloseIdleConnections()
	bad := map[string]int{}
	var mu sync.Mutex
	rounds := raceTrials/raceBurst*2 + 1 // the first only opens connections
	for r := range rounds {
		method := []string{"GET", "POST"}[r%2]
		wait := c.idle
		switch {
		case r == 0:
			wait = 0
		case r/2%2 == 1 && c.idle <= 2*time.Second:
			wait *= 2 // at T and at 2T
		}
		base, still := time.Now().Add(wait), c.stills()
		var wg sync.WaitGroup
		for i := range raceBurst {
			wg.Go(func() {
				if r > 0 {
					time.Sleep(time.Until(base.Add(time.Duration(rand.IntN(41)-20) * time.Millisecond)))
				}
				var body io.Reader
				if method == "POST" {
					body = strings.NewReader("x")
				}
				req, _ := http.NewRequest(method, "http://"+c.front+"/race", body)
				req.Header.Set("X-Trial", fmt.Sprintf("%s-%d-%d", method, r, i))
				resp, err := hc.Do(req)
				key := ""
				if err != nil {
					key = method + " error " + err.Error()
				} else {
					text, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if resp.StatusCode != 200 {
						key = method + " " + strconv.Itoa(resp.StatusCode) + " " + strings.TrimSpace(string(text))
					}
				}
				if key == "" {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if c.stills() != still {
					t.Logf("%s, round %d: %s; the machine stood still meanwhile", c.name, r, key)
					return
				}
				bad[key]++
			})
		}
		wg.Wait()
	}
	for k, n := range bad {
		t.Errorf("%s: %d x %s", c.name, n, k)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, n := range c.executed {
		if n > 1 && strings.HasPrefix(id, "POST") {
			t.Errorf("%s: %s executed %d times", c.name, id, n)
		}
	}
	if c.executed != nil && len(c.executed) < raceTrials {
		t.Errorf("%s: only %d trials reached the backend", c.name, len(c.executed))
	}
}

// stills counts how often this process did not run for raceStill when it should
// have. What an idle age promises holds on a machine that runs: where weir stands
// still between its look at a connection and its write, the backend's clock goes
// on.
func stills(t *testing.T) func() int64 {
	var n atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	t.Cleanup(func() { close(stop); wg.Wait() })
	wg.Go(func() {
		for last := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-time.After(raceStill / 10):
			}
			now := time.Now()
			if now.Sub(last) > raceStill {
				n.Add(1)
			}
			last = now
		}
	})
	return n.Load
}

// raceStill is half of what is left between the last reuse of a connection and the
// end of an idle timeout of a second.
const raceStill = 100 * time.Millisecond

// startRacer is a backend whose idle timeout is exact and whose way of closing
// is chosen.
func startRacer(t *testing.T, c *raceCell, announce, rst bool) string {
	t.Helper()
	c.executed = map[string]int{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	t.Cleanup(func() { close(done); l.Close(); wg.Wait() })
	extra := ""
	if announce {
		extra = fmt.Sprintf("Keep-Alive: timeout=%d\r\n", int(c.idle.Seconds()))
	}
	answer := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + extra + "\r\nok"
	serve := func(conn net.Conn) {
		defer conn.Close()
		r := bufio.NewReader(conn)
		for {
			select {
			case <-done:
				return
			default:
			}
			_ = conn.SetReadDeadline(time.Now().Add(c.idle))
			req, err := http.ReadRequest(r)
			if err != nil {
				if rst {
					_ = conn.(*net.TCPConn).SetLinger(0)
				}
				c.mu.Lock()
				c.closes++
				c.mu.Unlock()
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			c.mu.Lock()
			c.executed[req.Header.Get("X-Trial")]++
			c.mu.Unlock()
			time.Sleep(30 * time.Millisecond) // so that a burst needs a connection each
			if _, err := io.WriteString(conn, answer); err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(conn) })
		}
	})
	return l.Addr().String()
}

func startNginxBackend(t *testing.T, idle string) string {
	t.Helper()
	addr, dir := freeAddr(t), t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/err; user root;
events {}
http {
  access_log off; keepalive_timeout %[2]s; keepalive_requests 100000;
  client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
  server { listen %[3]s; location / { return 200 ok; } }
}
`, dir, idle, addr)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, tool(t, "nginx"), "-c", conf, "-p", dir, "-e", dir+"/err")
	waitListening(t, p, addr)
	return addr
}

func startNodeBackend(t *testing.T, idle time.Duration) string {
	t.Helper()
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	js := fmt.Sprintf(`const s=require('http').createServer((q,r)=>{q.resume();q.on('end',()=>setTimeout(()=>r.end('ok'),30))});
s.keepAliveTimeout=%d;s.listen(%s,'127.0.0.1')`, idle.Milliseconds(), port)
	p := spawn(t, tool(t, "node"), "-e", js)
	waitListening(t, p, addr)
	return addr
}
