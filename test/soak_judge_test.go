// SPDX-License-Identifier: Apache-2.0

package test

import (
	"slices"
	"strings"
	"time"
)

// Reasons by who is to blame for them.
var (
	blamesBackend = []string{"connect_refused", "connect_timeout", "unreachable", "tls_failed", "reset_before_response", "reset_mid_response", "bad_response", "response_timeout", "stream_idle_timeout", "backend_overloaded", "upgrade_refused"}
	nobodyServes  = []string{"no_backend", "all_broken", "shed"}
	poolIsFull    = []string{"queue_full", "queue_timeout"}
)

const (
	soakMargin = 300 * time.Millisecond // by which instants in three processes differ
	soakAfter  = 15 * time.Second       // so long after a fault a pool may be smaller for it
)

// fault returns what was wrong with how a request ended; "": nothing. What fails
// must have failed on a backend that ailed at the time, and must have been tried
// elsewhere as the configuration says.
func (s *soak) fault(r *soakRequest, l *soakLine) string {
	from, to := l.Time.Add(-soakMargin), l.end().Add(soakMargin)
	if r.waited && s.stalls.meet(r.began, r.ended) {
		return ""
	}
	if why := s.untrue(r, l); why != "" {
		return why
	}
	if s.stalls.meet(from, to) {
		return ""
	}
	for _, t := range l.Tried {
		if t.Reason == "reset_before_response" && l.Again > 0 && t.Backend == l.Backend && s.twoProcesses() {
			continue // who leaves closes kept connections, of which one may just be taken
		}
		if t.Reason == "ok" && t.Status == 0 {
			if !r.pool.hedged {
				return "an attempt was given up that had not failed"
			}
			continue
		}
		if b := s.named(t.Backend); b == nil || !b.hard.meet(from, to) {
			return "an attempt failed on a backend that was well"
		}
	}
	last := s.named(l.Backend)
	switch {
	case l.Reason == "ok" && l.Status == 500:
		if last == nil || !last.soft.meet(from, to) {
			return "a 500 of a backend that was well"
		}
	case l.Reason == "ok" && l.Status == 503:
		if last == nil || !last.hard.meet(from, to) {
			return "a 503 of a backend that was well"
		}
		return s.givenUp(r, l)
	case l.Reason == "ok" && (l.Status == 200 || l.Status == 204 || l.Status == 101):
	case l.Reason == "client_abort":
		if !r.aborted {
			return "weir says that a client left that did not"
		}
	case slices.Contains(blamesBackend, l.Reason):
		if last == nil || !last.hard.meet(from, to) {
			return "weir blames a backend that was well"
		}
		return s.givenUp(r, l)
	case slices.Contains(nobodyServes, l.Reason):
		if 2*r.pool.well(from.Add(-soakAfter), to) > soakBackends && !s.stalls.meet(from.Add(-soakAfter), to) {
			return "nobody is said to serve, and more than half are well"
		}
	case slices.Contains(poolIsFull, l.Reason):
		if !r.pool.limited || r.pool.well(from.Add(-soakAfter), to) == soakBackends && !s.stalls.meet(from.Add(-soakAfter), to) {
			return "a pool is said to be full whose backends are all well"
		}
	case l.Reason == "request_timeout":
		if !r.pool.hard(from, to) {
			return "a request took too long in a pool that is well"
		}
	default:
		return "a request ended in a way that nothing explains"
	}
	return ""
}

// brief reports that a request may go through the pool that comes and goes.
func (r *soakRequest) brief() bool { return r.pool.name == "p2c" && r.kind == "none" }

// untrue returns where the log and what the client saw differ.
func (s *soak) untrue(r *soakRequest, l *soakLine) string {
	switch {
	case l.Pool != r.pool.name && !(l.Pool == "brief" && r.brief()), l.Method != r.method, l.RequestID != r.id:
		return "the log has another pool, method or id"
	case l.Attempts > r.pool.attempts+1:
		return "more attempts than the configuration has"
	case r.method == "POST" && l.Retries > 0:
		return "a POST was retried"
	case r.trouble != "":
		return r.trouble
	case r.aborted:
	case r.status == 0:
		return "a client got no answer"
	case r.status != l.Status:
		return "the log has another status than the client"
	case r.cut && l.Reason != "reset_mid_response":
		return "an answer was cut, and the log does not say so"
	case l.Reason == "ok" && r.by != l.Backend:
		return "the log has another backend than the answer"
	case l.Reason == "ok" && !slices.ContainsFunc(r.executed, func(b *soakBackend) bool { return b.name == r.by }):
		return "a backend is said to have answered that was not asked"
	}
	return ""
}

// givenUp returns what was wrong with making no further attempt.
func (s *soak) givenUp(r *soakRequest, l *soakLine) string {
	from, to := l.Time.Add(-soakMargin), l.end().Add(soakMargin)
	switch {
	case r.aborted, r.cut, !r.replayable && l.Sent, l.Attempts >= r.pool.attempts:
	case strings.Contains(l.Detail, "budget"), strings.Contains(l.Detail, "too little time"):
	case l.DurationMS > soakWithin.Seconds()*1e3:
	case l.Status == 503 && l.Reason == "ok" && slices.ContainsFunc(l.Tried, func(t struct {
		Backend string `json:"backend"`
		Reason  string `json:"reason"`
		Status  int    `json:"status"`
	}) bool {
		return t.Status == 503
	}): // retried once
	case r.pool.limited && r.pool.well(from.Add(-soakAfter), to) < soakBackends: // the others may be full
	case r.pool.well(from.Add(-soakAfter), to) == 0:
	case s.stalls.meet(from.Add(-soakAfter), to): // the others may have failed their checks for it
	default:
		return "a request was given up that another backend could have answered"
	}
	return ""
}
