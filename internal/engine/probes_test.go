// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/health"
)

// TestProbesShareTheNames: the probe of a backend that is given by name asks
// the traffic's resolver, so the first request finds the addresses known.
func TestProbesShareTheNames(t *testing.T) {
	s := backend(t, "a")
	_, port, err := net.SplitHostPort(s.id())
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools: {app: {backends: ["http://localhost:%s"]}}
`, port))
	eventually(t, "probed", func() bool {
		b := r.livePools()[0].pool.Snapshot().Backends[0]
		return b.LastCheck.OK
	})
	b := r.livePools()[0].pool.Snapshot().Backends[0].Backend
	if s := targetOf(b).up.Stats(); len(s.Addresses) == 0 || s.Fresh != 0 {
		t.Errorf("no address is known after a probe: %+v", s)
	}
}

// TestProbeTargetIsParsedOnce: what is an address need not be parsed per probe.
func TestProbeTargetIsParsedOnce(t *testing.T) {
	r := build(t, `admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools: {app: {backends: ["http://192.0.2.1:8080", "http://[2001:db8::1]:80", "http://name.invalid:80"], health: {active: {port: 9000}}}}
`)
	want := []string{"192.0.2.1:9000", "[2001:db8::1]:9000", ""}
	for i, b := range r.livePools()[0].pool.Snapshot().Backends {
		got := targetOf(b.Backend).probe.Load().Addr
		if want[i] == "" && got.IsValid() || want[i] != "" && got.String() != want[i] {
			t.Errorf("%v, want %q", got, want[i])
		}
	}
}

// TestProbeTLS: a check speaks TLS as the traffic does, or as it is told, and
// takes the name and the authority of the pool's tls.
func TestProbeTLS(t *testing.T) {
	r := build(t, `admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", pool: auto}}
pools:
  auto: {backends: ["http://192.0.2.1:80", "https://192.0.2.2:443"], health: {active: {path: /readyz}}}
  off: {backends: ["https://192.0.2.1:443"], health: {active: {path: /readyz, port: 8080, tls: off}}}
  on: {backends: ["http://192.0.2.1:80"], health: {active: {path: /readyz, port: 8443, tls: on}}, tls: {server_name: checks.example}}
`)
	for _, p := range r.livePools() {
		for i, b := range p.pool.Snapshot().Backends {
			got := targetOf(b.Backend).probe.Load()
			if want := p.name == "on" || p.name == "auto" && i == 1; (got.TLS != nil) != want {
				t.Errorf("pool %s: the check of %s has TLS %v", p.name, b.ID, !want)
			}
			if p.name == "on" && got.TLS != nil && got.TLS.ServerName != "checks.example" {
				t.Errorf("pool on: the name is %q", got.TLS.ServerName)
			}
		}
	}
}

// TestBodyMatchTakesOut: a backend whose page does not say what is wanted is not
// ready, and status says what it said instead.
func TestBodyMatchTakesOut(t *testing.T) {
	page := func(text string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		t.Cleanup(s.Close)
		return s
	}
	good, bad := page(`{"status":"ok"}`), page(`{"status":"warming"}`)
	r := start(t, fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools: {app: {backends: [%q, %q], health: {active: {path: /readyz, body: '/"status":"(ok|warn)"/'}}}}
`, good.URL, bad.URL))
	eventually(t, "one of them is out", func() bool { return r.Pools()[0].Serving == 1 })
	s := r.livePools()[0].pool.Snapshot()
	if b := s.Backends[1]; b.Health != health.StateNotReady || !strings.Contains(b.Why, `does not contain /"status":"(ok|warn)"/`) {
		t.Errorf("%v: %s", b.Health, b.Why)
	}
}

// TestPoolsShareProbes: three pools with the same backend and check cost it little
// more than one; the pool that asks for something else, or over its own timeout,
// counts apart.
func TestPoolsShareProbes(t *testing.T) {
	var same, control atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			same.Add(1)
		case "/control":
			control.Add(1)
		}
	}))
	t.Cleanup(s.Close)
	pools := ""
	for _, name := range []string{"a", "b", "c", "control"} {
		path := "/readyz"
		if name == "control" {
			path = "/control"
		}
		pools += fmt.Sprintf("  %s: {backends: [%q], health: {active: {path: %s, interval: 200ms, fast_interval: 200ms, timeout: 190ms}}}\n", name, s.URL, path)
	}
	r := start(t, "admin: {bind: \"127.0.0.1:0\"}\nlisteners: {web: {bind: \"127.0.0.1:0\", pool: a}}\npools:\n"+pools)
	eventually(t, "probes", func() bool { return control.Load() >= 12 })
	if n, one := same.Load(), control.Load(); n > 2*one {
		t.Errorf("three pools asked %d times while one asked %d", n, one)
	}
	for _, p := range r.livePools() {
		if b := p.pool.Snapshot().Backends[0]; !b.LastCheck.OK || b.Health != health.StateHealthy {
			t.Errorf("pool %s: %v, %+v", p.name, b.Health, b.LastCheck)
		}
	}
	s.CloseClientConnections()
	s.Close() // each of them must notice
	eventually(t, "all pools have lost it", func() bool {
		for _, p := range r.livePools() {
			if p.pool.Snapshot().Backends[0].Health != health.StateBroken {
				return false
			}
		}
		return true
	})
}
