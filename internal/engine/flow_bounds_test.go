// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// TestFlowsAreBoundByDescriptors: udp listeners together get no more flows than leave
// descriptors for connections, whatever their own ceilings, and that is said.
func TestFlowsAreBoundByDescriptors(t *testing.T) {
	for files, want := range map[uint64]int{0: 0, 1 << 40: 0, 1064: 600, 100: 21, 3: 1} {
		if got := maxFlows(files); got != want {
			t.Errorf("%d descriptors: %d flows, want %d", files, got, want)
		}
	}
	const udp = `
admin: {bind: "127.0.0.1:0"}
listeners:
  one: {bind: "127.0.0.1:0", protocol: udp, pool: far, limits: {max_connections: 400}}
  two: {bind: "127.0.0.1:0", protocol: udp, pool: far, limits: {max_connections: MOST}}
pools: {far: {backends: ["udp://127.0.0.1:9"]}}
`
	for most, said := range map[string]int{"200": 0, "201": 1} {
		r := start(t, strings.Replace(udp, "MOST", most, 1))
		r.fileLimit.Store(1064)
		before := strings.Count(r.log.String(), "than there are descriptors for")
		r.boundFlows(r.gen.Load().Plan)
		if n := strings.Count(r.log.String(), "than there are descriptors for") - before; n != said {
			t.Errorf("%s: said %d times, want %d:\n%s", most, n, said, r.log.String())
		}
	}
}

// TestReliefByFlows: flows of which nothing is known give way before clients that
// connected, and of none of them a descriptor is promised.
func TestReliefByFlows(t *testing.T) {
	flows, clients := 40, 0
	r := &relief{
		log: slog.New(slog.DiscardHandler), thin: func() int { return 2 },
		idle:  func(most int, _ balance.Instant) (told, free int) { clients += most; return most, most },
		flows: func(most int) int { n := min(most, flows); flows -= n; return n },
	}
	look := func() { r.look(balance.Instant(time.Hour)) }
	if look(); flows != 40-(reliefClients-2) || clients != 0 || r.left != 2 {
		t.Errorf("%d flows are left, %d clients gave way, %d are promised", flows, clients, r.left)
	}
	if look(); flows != 0 || clients != 0 {
		t.Errorf("%d flows are left, %d clients gave way", flows, clients)
	}
	if look(); clients != reliefClients-2 || r.left != reliefClients {
		t.Errorf("without flows %d clients gave way, %d are promised", clients, r.left)
	}
}
