// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// ask sends a request with fields and returns the answer's text.
func ask(t *testing.T, c *http.Client, url string, fields ...string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d %q %v", resp.StatusCode, text, err)
	}
	return string(text)
}

// TestKeysStay: keys of a header stay with their backends. When one is killed
// its keys alone move, and when it is back they return; requests without a key
// are spread.
func TestKeysStay(t *testing.T) {
	t.Parallel()
	addrs := []string{freeAddr(t), freeAddr(t), freeAddr(t)}
	victim := startBackend(t, addrs[0])
	for _, a := range addrs[1:] {
		startBackend(t, a)
	}
	w := startRun(t, `
listeners: {web: {bind: "${LISTEN}", pool: app}}
admin: {bind: "${ADMIN}"}
pools:
  app:
    balance: maglev
    hash: {key: header:X-User, bounded_load: off, table_size: 1009}
    health: {active: {path: /readyz, interval: 500ms, fast_interval: 100ms, fall: 2}}
    slow_start: off
    backends: [http://`+strings.Join(addrs, ", http://")+`]
`)
	homes := func() map[int]string {
		at := map[int]string{}
		for key := range 60 {
			text := ask(t, http.DefaultClient, w.url("/"), "x-user", fmt.Sprint("user-", key))
			for _, a := range addrs {
				if strings.Contains(text, a) {
					at[key] = a
				}
			}
		}
		return at
	}
	count := func(at map[int]string, addr string) (n int) {
		for _, a := range at {
			if a == addr {
				n++
			}
		}
		return n
	}
	before := homes()
	for _, a := range addrs {
		if n := count(before, a); n < 5 {
			t.Errorf("%s has %d of 60 keys", a, n)
		}
	}
	if again := homes(); fmt.Sprint(again) != fmt.Sprint(before) {
		t.Errorf("keys moved without a cause:\n%v\n%v", before, again)
	}

	victim.signal(syscall.SIGKILL)
	victim.wait(5 * time.Second)
	eventually(t, 10*time.Second, "the dead backend is broken", func() bool { return w.backends(t, "app")[addrs[0]].Health == "broken" })
	without := homes()
	for key, a := range before {
		if a != addrs[0] && without[key] != a {
			t.Errorf("key %d moved from %s, which lives, to %s", key, a, without[key])
		}
	}
	if n := count(without, addrs[0]); n != 0 {
		t.Errorf("%d keys at a dead backend", n)
	}

	startBackend(t, addrs[0])
	eventually(t, 10*time.Second, "the backend is back", func() bool {
		b := w.backends(t, "app")[addrs[0]]
		return b.Health == "healthy" && b.Share == 1
	})
	if back := homes(); fmt.Sprint(back) != fmt.Sprint(before) {
		t.Errorf("keys did not return:\n%v\n%v", before, back)
	}

	spread := map[string]bool{}
	for range 100 {
		spread[ask(t, http.DefaultClient, w.url("/"))] = true
	}
	if len(spread) != 3 {
		t.Errorf("without a key %d backends answer", len(spread))
	}
}

// from is a client with an address of its own on loopback.
func from(t *testing.T, addr string) *http.Client {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	tr := &http.Transport{DialContext: d.DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 10 * time.Second}
}

// TestOverloadedBackends: who says that it is busy, by 503 with Retry-After or
// by a load report, gets less, is never ejected, and comes back by itself.
func TestOverloadedBackends(t *testing.T) {
	for name, sign := range map[string]func(w http.ResponseWriter, n int64){
		"503": func(w http.ResponseWriter, n int64) {
			if n%2 == 0 {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		},
		"load report": func(w http.ResponseWriter, _ int64) {
			w.Header().Set("endpoint-load-metrics", "TEXT cpu_utilization=0.97")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var busy atomic.Bool
			var asked [2]atomic.Int64
			busy.Store(true)
			servers := make([]string, 2)
			for i := range servers {
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if n := asked[i].Add(1); i == 0 && busy.Load() {
						sign(w, n)
					}
				}))
				t.Cleanup(s.Close)
				servers[i] = s.Listener.Addr().String()
			}
			w := startRun(t, `
listeners: {web: {bind: "${LISTEN}", pool: app}}
admin: {bind: "${ADMIN}"}
pools:
  app:
    balance: random
    retry: off
    backends: [http://`+strings.Join(servers, ", http://")+`]
`)
			clients := []*http.Client{from(t, "127.0.0.1"), from(t, "127.0.0.2")}
			send := func(n int) {
				for i := range n {
					resp, err := clients[i%2].Get(w.url("/"))
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
			state := func() backendState { return w.backends(t, "app")[servers[0]] }
			eventually(t, 8*time.Second, "the share sinks", func() bool {
				send(30)
				return state().Share < 0.4
			})
			if b := state(); b.Health != "overloaded" || b.Share < 0.1 {
				t.Errorf("overloaded: %+v", b)
			}
			a0, a1 := asked[0].Load(), asked[1].Load()
			send(200)
			if n0, n1 := asked[0].Load()-a0, asked[1].Load()-a1; n0 == 0 || n0*4 > n1*3 {
				t.Errorf("the overloaded backend got %d, the other %d", n0, n1)
			}
			if m := w.metrics(t); !strings.Contains(m, `weir_backend_state{backend="`+servers[0]+`",pool="app",state="overloaded"} 1`) {
				t.Error("weir_backend_state does not say overloaded")
			}
			busy.Store(false)
			low := 1.0
			eventually(t, 15*time.Second, "the share grows", func() bool { // after what is still counted
				send(2)
				share := state().Share
				low = min(low, share)
				return share > low+0.02
			})
			if n := w.sum(t, "weir_ejections_total", servers[0]); n != 0 {
				t.Errorf("%v ejections", n)
			}
			if b := w.backends(t, "app")[servers[1]]; b.Share != 1 || b.Health != "healthy" {
				t.Errorf("the other: %+v", b)
			}
		})
	}
}

// TestSlowStart: a backend that is enabled again gets its share little by
// little, and status says so.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	a, b := freeAddr(t), freeAddr(t)
	startBackend(t, a)
	startBackend(t, b)
	w := startRun(t, `
listeners: {web: {bind: "${LISTEN}", pool: app}}
admin: {bind: "${ADMIN}"}
pools:
  app:
    slow_start: {window: 3s, from: 10%}
    backends: [http://`+a+`, http://`+b+`]
`)
	if s := w.backends(t, "app")[a]; s.Share != 1 {
		t.Errorf("weir's start is no slow start: %+v", s)
	}
	patch := func(word string) {
		t.Helper()
		url := "http://" + w.admin + "/api/v1/pools/app/backends/" + a
		req, err := http.NewRequest(http.MethodPatch, url, bytes.NewBufferString(`{"admin":"`+word+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
	patch("disabled")
	patch("enabled")
	var shares []float64
	eventually(t, 10*time.Second, "the share is full again", func() bool {
		s := w.backends(t, "app")[a]
		shares = append(shares, s.Share)
		if s.Share < 1 && s.Reason != "slow_start" {
			t.Errorf("share %v for %q", s.Share, s.Reason)
		}
		return s.Share == 1
	})
	if shares[0] > 0.5 || len(shares) < 10 {
		t.Errorf("shares %v", shares)
	}
	for i := 1; i < len(shares); i++ {
		if shares[i] < shares[i-1] {
			t.Errorf("the share sank: %v", shares[i-1:])
		}
	}
}
