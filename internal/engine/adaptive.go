// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// adaptive translates the limit that finds itself.
func adaptive(a *config.AdaptiveLimit) pool.Adaptive {
	if a == nil {
		return pool.Adaptive{}
	}
	return pool.Adaptive{Enabled: true, Floor: a.Floor, Ceiling: a.Ceiling, Tolerance: a.Tolerance}
}

// adaptiveLimit is the limit in the API's words, nil where there is none.
func adaptiveLimit(s *pool.AdaptiveSnapshot) *admin.AdaptiveLimit {
	if !s.Enabled {
		return nil
	}
	out := &admin.AdaptiveLimit{
		InFlight: s.InFlight, Shed: map[string]uint64{}, BaseMS: round(milliseconds(s.Base)), LatencyMS: round(milliseconds(s.Latency)),
	}
	for p := range balance.Priorities {
		out.Shed[p.String()] = s.Shed[p]
	}
	if s.Bounds() {
		out.Limit, out.Allowed = s.Limit, map[string]int64{}
		for p := range balance.Priorities {
			out.Allowed[p.String()] = s.Limits[p]
		}
	}
	return out
}

// limitGauges is the limit as a scrape reads it.
func limitGauges(s *pool.AdaptiveSnapshot) *observe.LimitGauges {
	if !s.Enabled {
		return nil
	}
	out := &observe.LimitGauges{Shed: s.Shed[:]}
	if s.Bounds() {
		out.Limit = s.Limit
	}
	return out
}

// adaptiveInWords says what the limit means for a request of a priority; empty
// where there is none.
func adaptiveInWords(s *pool.AdaptiveSnapshot, p balance.Priority) string {
	switch {
	case !s.Enabled:
		return ""
	case !s.Bounds():
		return "adaptive limit: nothing is bounded so far, latency is within its tolerance"
	}
	word := "let in"
	if s.InFlight >= s.Limits[p] {
		word = "shed"
	}
	return fmt.Sprintf("adaptive limit: %d requests in flight, of %s priority up to %d are let in, %d are in flight now: %s",
		s.Limit, p, s.Limits[p], s.InFlight, word)
}
