// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// failedRequest is what is shown of a line of the access log.
type failedRequest struct {
	Time    time.Time `json:"time"`
	Backend string    `json:"backend"`
	Method  string    `json:"method"`
	Host    string    `json:"host"`
	Path    string    `json:"path"`
	Status  int       `json:"status"`
	Reason  string    `json:"reason"`
	Sent    bool      `json:"sent"`
	ID      string    `json:"request_id"`
	Millis  float64   `json:"duration_ms"`
	Detail  string    `json:"detail"`
	Tried   []struct {
		Backend string `json:"backend"`
		Reason  string `json:"reason"`
	} `json:"tried"`
}

// failureKind is what failures are counted by.
type failureKind struct {
	status          int
	reason, backend string
}

// shownFailures is how many requests are shown one by one.
const shownFailures = 10

func (p *page) failures(f *admin.Failures) {
	if len(f.Pools) == 0 {
		if p.since.IsZero() {
			p.line("No request has failed.")
		} else {
			p.line("No request that is remembered has failed since %s.", p.clock(p.since, "15:04:05"))
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
			var r struct{ Time time.Time }
			if err := json.Unmarshal(line, &r); err != nil {
				return err
			}
			if !r.Time.Before(since) {
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
	since := ""
	if !p.since.IsZero() {
		since = " since " + p.clock(p.since, "15:04:05")
	}
	p.wrapped("", fmt.Sprintf("%s: %d failed, %d more failed by their clients; the last of them%s:", name, f.Failed, f.Faults, since))
	counts, first, last := map[failureKind]int{}, map[failureKind]time.Time{}, map[failureKind]time.Time{}
	var all []failedRequest
	for _, line := range f.Requests {
		var r failedRequest
		if err := json.Unmarshal(line, &r); err != nil {
			p.err = err
			return
		}
		all = append(all, r)
		k := failureKind{r.Status, r.Reason, r.Backend}
		if counts[k]++; counts[k] == 1 || r.Time.Before(first[k]) {
			first[k] = r.Time
		}
		if r.Time.After(last[k]) {
			last[k] = r.Time
		}
	}
	kinds := make([]failureKind, 0, len(counts))
	for k := range counts {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b failureKind) int {
		return cmp.Or(last[b].Truncate(time.Second).Compare(last[a].Truncate(time.Second)), cmp.Compare(counts[b], counts[a]), cmp.Compare(a.status, b.status), cmp.Compare(a.reason, b.reason), cmp.Compare(a.backend, b.backend))
	})
	for _, k := range kinds {
		head := fmt.Sprintf("%d x %d %s", counts[k], k.status, k.reason)
		if k.backend != "" {
			head += " on " + k.backend
		}
		head += ", last at " + p.clock(last[k], "15:04:05")
		if counts[k] > 1 {
			head += ", first at " + p.clock(first[k], "15:04:05")
		}
		p.line("")
		p.line("  %s", head)
		if m := meanings[k.reason]; m.What != "" {
			p.wrapped("      ", m.What)
			p.wrapped("      look at: ", m.Look)
		}
		if now := f.Backends[k.backend]; now != "" {
			p.wrapped("      now: ", now)
		}
	}
	p.line("")
	slices.SortStableFunc(all, func(a, b failedRequest) int { return b.Time.Compare(a.Time) })
	for _, r := range all[:min(len(all), shownFailures)] {
		sent := ""
		if !r.Sent {
			sent = ", nothing sent"
		}
		p.line("  %s %d %s %.0fms%s", p.clock(r.Time, "15:04:05.000"), r.Status, r.Reason, r.Millis, sent)
		p.line("      %s %s%s", r.Method, r.Host, cut(r.Path, max(pageWidth-8-len(r.Method)-len(r.Host), 16)))
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
