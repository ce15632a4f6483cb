// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/netconn"
)

// A limit of descriptors that is another one than was seen last moves the ceiling on
// clients, where that is auto; once it is seen, nothing more is said.
func TestFilesChanged(t *testing.T) {
	limit := uint64(netconn.FileLimit())
	if limit == 0 {
		t.Skip("descriptors have no limit here")
	}
	for config, want := range map[string]int{
		"":                                  maxConnections(0, limit),
		"limits: {max_connections: 1000}\n": 1000,
	} {
		r := start(t, config+`admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools: {app: {backends: ["http://127.0.0.1:1"], health: {active: off}}}
`)
		r.fileLimit.Store(limit - 1)
		r.lookAtFiles()
		r.lookAtFiles()
		if got := r.Engine.front.gate.Limit(); got != want {
			t.Errorf("%q: %d clients, want %d", config, got, want)
		}
		if n := strings.Count(r.log.String(), "was changed from outside"); n != 1 {
			t.Errorf("%q: said %d times:\n%s", config, n, r.log.String())
		}
	}
}

// What is kept to backends gives way first, idle clients only where there is none of
// that; of who was merely told to go no descriptor is free yet.
func TestReliefOrder(t *testing.T) {
	var log bytes.Buffer
	kept, clients := 2, 0
	r := &relief{
		log: slog.New(slog.NewTextHandler(&log, nil)), thin: func() int { return kept },
		idle: func(most int) (told, free int) { return min(clients, most), min(clients, most) / 2 },
	}
	again := func() { r.looked = balance.Instant(1) } // long ago
	for _, c := range []struct {
		kept, clients int
		want          []bool
	}{{8, 5, slices.Repeat([]bool{true}, 8)}, {1, 2, []bool{true, true, false}}, {0, 4, []bool{true, true, false}}, {0, 0, []bool{false}}, {0, 1, []bool{false}}} {
		kept, clients = c.kept, c.clients
		again()
		for i, want := range c.want {
			if got := r.one(); got != want {
				t.Errorf("%+v: request %d: %v", c, i, got)
			}
		}
	}
	if u, n := r.upstream.Load(), r.clients.Load(); u != 9 || n != 7 {
		t.Errorf("counted %d and %d", u, n)
	}
	if n := strings.Count(log.String(), "descriptors run short"); n != 1 {
		t.Errorf("said %d times", n)
	}
}
