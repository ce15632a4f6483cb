// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"net"
	"testing"
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
