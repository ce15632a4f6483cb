// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
)

// What fails now stands first, however often something else failed before.
func TestFailuresLatestFirst(t *testing.T) {
	line := func(at, reason string) json.RawMessage {
		return json.RawMessage(`{"time":"2026-01-02T` + at + `Z","status":503,"reason":"` + reason + `"}`)
	}
	var b strings.Builder
	p := page{w: &b}
	p.failures(&admin.Failures{Pools: []admin.PoolFailures{{Pool: "app", Failed: 3, Requests: []json.RawMessage{
		line("10:00:00", "old"), line("10:00:01", "old"), line("11:00:00", "now"),
	}}}})
	now, old := strings.Index(b.String(), "1 x 503 now, last at 11:00:00"), strings.Index(b.String(), "2 x 503 old, last at 10:00:01")
	if p.err != nil || now < 0 || old < now {
		t.Errorf("%v\n%s", p.err, b.String())
	}
}
