// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// failedRequest is what is shown of a line of the access log.
type failedRequest struct {
	Time    time.Time `json:"time"` // of the beginning
	Backend string    `json:"backend"`
	Method  string    `json:"method"`
	Host    string    `json:"host"`
	Path    string    `json:"path"`
	Status  int       `json:"status"`
	GRPC    string    `json:"grpc_status"` // of a gRPC call
	Proto   string    `json:"proto"`
	Tunnel  bool      `json:"tunnel"`
	Reason  string    `json:"reason"`
	Sent    bool      `json:"sent"`
	ID      string    `json:"request_id"`
	Millis  float64   `json:"duration_ms"`
	Detail  string    `json:"detail"`
	From    string    `json:"client"`   // of a session or a flow
	At      string    `json:"listener"` // the same
	Tried   []struct {
		Backend string `json:"backend"`
		Reason  string `json:"reason"`
	} `json:"tried"`
}

// ended is when a request was over: of a tunnel that was cut nobody asks when it
// began.
func (r *failedRequest) ended() time.Time {
	return r.Time.Add(time.Duration(r.Millis * float64(time.Millisecond)))
}

// outcome is what its client was told: a status of HTTP, of gRPC, whose calls have
// 200 for nearly everything, or none in a protocol that has no statuses.
func (r *failedRequest) outcome() string {
	switch {
	case r.GRPC == "none":
		return "gRPC without a status"
	case r.GRPC != "":
		return "gRPC " + r.GRPC
	case r.Status == 0:
		return r.Proto
	default:
		return strconv.Itoa(r.Status)
	}
}

// lasted is how long it took.
func (r *failedRequest) lasted() string {
	if r.Millis >= 10_000 || r.Tunnel {
		return since(r.Millis / 1000)
	}
	return fmt.Sprintf("%.0fms", r.Millis)
}

// session reports that no request was read.
func (r *failedRequest) session() bool {
	return r.Proto == "tcp" || r.Proto == "sni" || r.Proto == "udp"
}

// meaning is where the meaning of the reason is: of what is no request some have
// another one.
func (r *failedRequest) meaning(all map[string]admin.Meaning) string {
	of := ""
	switch {
	case r.Proto == "udp":
		of = r.Reason + admin.OfFlow
	case r.session():
		of = r.Reason + admin.OfSession
	case r.Tunnel:
		of = r.Reason + admin.OfTunnel
	}
	if all[of].What != "" {
		return of
	}
	if strings.HasSuffix(r.Detail, streamEnded) {
		return streamEnded
	}
	return r.Reason
}

// streamEnded is behind the detail of an answer that went on without end, such as
// an event stream, and that weir ended, for a drain most often.
const streamEnded = ": the stream was ended"

// ofStream is the meaning of drain_cut then: no deadline of any length spares it.
var ofStream = admin.Meaning{
	What: "weir ended a stream that has no end of its own; detail says for what",
	Look: "nothing: the client connects again, to another backend",
}

// failureKind is what failures are counted by.
type failureKind struct {
	outcome, reason, backend string
	meaning                  string
}

// shownFailures is how many requests are shown one by one.
const shownFailures = 10

func (p *page) failures(f *admin.Failures) {
	if len(f.Pools) == 0 {
		if p.since.IsZero() {
			p.line("Nothing has failed.")
		} else {
			p.line("Nothing that is remembered has failed since %s.", p.clock(p.since, "15:04:05"))
		}
		return
	}
	for i := range f.Pools {
		if i > 0 {
			p.line("")
		}
		p.failuresOf(&f.Pools[i], f.Meanings)
	}
}

// youngFailures leaves out what is older than since, and pools of which nothing is
// left.
func youngFailures(f *admin.Failures, since time.Time) error {
	for i := range f.Pools {
		pool := &f.Pools[i]
		young := []json.RawMessage{}
		for _, line := range pool.Requests {
			var r failedRequest
			if err := json.Unmarshal(line, &r); err != nil {
				return err
			}
			if !r.ended().Before(since) {
				young = append(young, line)
			}
		}
		pool.Requests = young
	}
	f.Pools = slices.DeleteFunc(f.Pools, func(p admin.PoolFailures) bool { return len(p.Requests) == 0 })
	return nil
}

// clock is a time in the zone of this machine, with its day unless it is today.
func (p *page) clock(t time.Time, form string) string {
	t, now := t.In(p.now.Location()), p.now
	if t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		form = "2006-01-02 " + form
	}
	return t.Format(form)
}

func (p *page) failuresOf(f *admin.PoolFailures, meanings map[string]admin.Meaning) {
	name := "Pool " + f.Pool
	if f.Pool == "" {
		name = "Without a route"
	}
	shown := "the last of them"
	if !p.since.IsZero() {
		shown = fmt.Sprintf("of those that are remembered %d since %s", len(f.Requests), p.clock(p.since, "15:04:05"))
	}
	p.wrapped("", fmt.Sprintf("%s: %d failed, %d more failed by their clients; %s:", name, f.Failed, f.Faults, shown))
	counts, first, last := map[failureKind]int{}, map[failureKind]time.Time{}, map[failureKind]time.Time{}
	var all []failedRequest
	for _, line := range f.Requests {
		var r failedRequest
		if err := json.Unmarshal(line, &r); err != nil {
			p.err = err
			return
		}
		all = append(all, r)
		k := failureKind{r.outcome(), r.Reason, r.Backend, r.meaning(meanings)}
		at := r.ended()
		if counts[k]++; counts[k] == 1 || at.Before(first[k]) {
			first[k] = at
		}
		if at.After(last[k]) {
			last[k] = at
		}
	}
	kinds := make([]failureKind, 0, len(counts))
	for k := range counts {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b failureKind) int {
		return cmp.Or(last[b].Truncate(time.Second).Compare(last[a].Truncate(time.Second)), cmp.Compare(counts[b], counts[a]), cmp.Compare(a.outcome, b.outcome), cmp.Compare(a.reason, b.reason), cmp.Compare(a.backend, b.backend), cmp.Compare(a.meaning, b.meaning))
	})
	for _, k := range kinds {
		head := fmt.Sprintf("%d x %s %s", counts[k], k.outcome, k.reason)
		if k.backend != "" {
			head += " on " + k.backend
		}
		head += ", last at " + p.clock(last[k], "15:04:05")
		if counts[k] > 1 {
			head += ", first at " + p.clock(first[k], "15:04:05")
		}
		p.line("")
		p.line("  %s", head)
		m := meanings[k.meaning]
		if k.meaning == streamEnded {
			m = ofStream
		}
		if m.What != "" {
			p.wrapped("      ", m.What)
			p.wrapped("      look at: ", m.Look)
		}
		if now := f.Backends[k.backend]; now != "" {
			p.wrapped("      now: ", now)
		}
		if k.reason == "no_backend" || k.reason == "all_broken" {
			for _, id := range slices.Sorted(maps.Keys(f.Away)) {
				p.wrapped("      now: ", id+" is "+f.Away[id])
			}
		}
	}
	p.line("")
	slices.SortStableFunc(all, func(a, b failedRequest) int { return b.ended().Compare(a.ended()) })
	for _, r := range all[:min(len(all), shownFailures)] {
		took := " " + r.lasted()
		switch {
		case r.Tunnel:
			took = fmt.Sprintf(", ended after %s, begun %s", r.lasted(), p.clock(r.Time, "15:04:05"))
		case r.Proto == "udp": // what was sent of a flow is nobody's work to be done twice
		case !r.Sent:
			took += ", nothing sent"
		}
		p.line("  %s %s %s%s", p.clock(r.ended(), "15:04:05.000"), r.outcome(), r.Reason, took)
		if r.Method != "" {
			p.line("      %s %s%s", r.Method, r.Host, cut(r.Path, max(pageWidth-8-len(r.Method)-len(r.Host), 16)))
		}
		if r.session() && r.From != "" {
			asked := ""
			if r.Host != "" {
				asked = ", which asked for " + r.Host
			}
			p.line("      from %s on listener %s%s", r.From, r.At, cut(asked, pageWidth))
		}
		var more []string
		for _, t := range r.Tried {
			more = append(more, "first "+t.Backend+" ("+t.Reason+")")
		}
		if r.Backend != "" {
			more = append(more, "last "+r.Backend)
		}
		if r.Detail != "" {
			more = append(more, r.Detail)
		}
		if r.ID != "" {
			more = append(more, "id "+r.ID)
		}
		p.wrapped("      ", strings.Join(more, ", "))
	}
}
