// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/weirlb/weir/internal/admin"
)

// A drain that ends has cost nothing, or says what.
func TestWasCut(t *testing.T) {
	for _, c := range []struct {
		drain *admin.Drain
		want  string
	}{
		{nil, ""},
		{&admin.Drain{Done: true}, ""},
		{&admin.Drain{Done: true, Cut: 1}, ": 1 request was cut at the deadline"},
		{&admin.Drain{Done: true, Cut: 12}, ": 12 requests were cut at the deadline"},
		{&admin.Drain{Ended: &admin.DrainEnded{Closed: 198, Unanswered: 1, Torn: 1, Streams: 1, Sessions: 2}, Cut: 1},
			": 198 WebSockets were closed, 2 WebSockets were cut without an answer, 1 stream was ended, 2 sessions were ended, 1 request was cut at the deadline"},
	} {
		if got := wasCut(&admin.Backend{Drain: c.drain}); got != c.want {
			t.Errorf("%+v: %q, want %q", c.drain, got, c.want)
		}
	}
}
