// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirlb/weir/internal/admin"
)

// pageWidth is how wide a page is; names that are longer than their column may
// exceed it.
const pageWidth = 80

// page writes text for people. The first error stays.
type page struct {
	w   io.Writer
	err error

	now   time.Time // of failures: the present
	since time.Time // of failures: from when on they are shown; zero: all
	one   string    // of explanations: request, session, flow
}

func (p *page) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
}

// wrapped writes words in lines of the page's width, the first after head, the
// others below its end.
func (p *page) wrapped(head, text string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(head))
	line, bare := head, true
	for word := range strings.FieldsSeq(text) {
		switch {
		case bare:
			line, bare = line+word, false
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > pageWidth:
			p.line("%s", line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	p.line("%s", line)
}

// cut shortens what would not fit.
func cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-3]) + "..."
}

func percent(f float64) string {
	switch {
	case f <= 0:
		return "-"
	case f < 0.01:
		return "<1%"
	case f < 1 && f > 0.99:
		return ">99%"
	}
	return fmt.Sprintf("%.0f%%", 100*f)
}

// explanation writes what becomes of a request, a session or a flow, in its words.
func (p *page) explanation(e *admin.Explanation) {
	q := &e.Request
	p.one = map[string]string{"udp": "flow", "tcp": "session", "sni": "session"}[e.Protocol]
	if p.one == "" {
		p.one = "request"
	}
	from := "from " + q.Client
	if e.Client != "" && e.Client != q.Client {
		from += ", which is believed that the client is " + e.Client
	}
	p.wrapped("", fmt.Sprintf("%s %s", q.Method, q.URL))
	p.wrapped("  ", fmt.Sprintf("%s, on listener %s (%s)", from, q.Listener, e.Source))
	if e.Assumed != "" {
		p.wrapped("  ", e.Assumed)
	}
	if t := e.Through; t != nil {
		p.wrapped("  ", fmt.Sprintf("through listener %s, which reads the server name, and whose route %s leads there", t.Listener, t.Route))
	}
	p.routes(e)
	if a := e.Answer; a != nil {
		p.line("")
		head := "weir answers itself: "
		if p.one == "session" {
			head = "weir passes it to no backend: "
		}
		if a.Status != 0 {
			head = fmt.Sprintf("weir answers itself, %d %s: ", a.Status, a.Reason)
		}
		p.wrapped("", head+a.Words)
	}
	if len(e.Forwarded) > 0 {
		p.line("")
		p.line("What a backend gets")
		for _, l := range e.Forwarded {
			p.line("  %s", cut(l, pageWidth-2))
		}
	}
	if e.Pool != nil {
		p.pool(e.Pool)
	}
	if e.Failing != nil && e.Pool != nil {
		p.failing(e)
	}
}

func (p *page) routes(e *admin.Explanation) {
	if len(e.Routes) == 0 {
		return
	}
	p.line("")
	p.line("Routes, in the order in which they are tried")
	width := 0
	for _, r := range e.Routes {
		width = max(width, min(len(r.Name), 16))
	}
	for _, r := range e.Routes {
		mark, why := " ", "no: "+r.Why
		switch {
		case r.Chosen:
			mark, why = ">", "chosen"
		case r.Why == "earlier":
			why = "matches, but an earlier one is chosen"
		}
		if len(e.Routes) > 40 && !r.Chosen && r.Why != "earlier" {
			continue // what has nothing to do with it would fill the screen; --json has all
		}
		p.wrapped(fmt.Sprintf("%s %-*s  %s: ", mark, width, r.Name, cut(r.Match, 44)), why)
	}
	if l := e.Limit; l != nil && l.Most > 0 {
		of := "requests in flight"
		if p.one != "request" {
			of = p.one + "s open"
		}
		p.wrapped("  ", fmt.Sprintf("route %s has %d of %d %s", e.Route, l.InFlight, l.Most, of))
	}
}

func (p *page) pool(e *admin.ExplainedPool) {
	p.line("")
	p.line("Pool %s, %s", e.Name, e.Balance)
	if e.Panic {
		p.wrapped("  ", "in panic: "+e.PanicWhy)
	}
	if e.Key != "" {
		hash := e.KeyHash
		if hash == "" {
			hash = "the " + p.one + " has none"
		}
		p.wrapped("  key: ", e.Key+" ("+hash+")")
	}
	for _, w := range e.Reasoning {
		p.wrapped("  - ", w)
	}
	for _, t := range e.Tiers {
		text := fmt.Sprintf("%s is asked first by %s of such %ss", t.Name, orNone(percent(t.Chance)), p.one)
		for i, z := range t.Zones {
			sep := ", "
			if i == 0 {
				sep = ": "
			}
			text += fmt.Sprintf("%szone %s %s", sep, orNone(z.Name), orNone(percent(z.Chance)))
		}
		p.wrapped("  - ", text)
	}
	if len(e.Order) > 0 {
		p.line("")
		p.line("The key's own order")
		for i, s := range e.Order {
			text := s.Verdict
			if s.Why != "" {
				text += ": " + s.Why
			}
			p.wrapped(fmt.Sprintf("  %d. %s, %s: ", i+1, cut(s.Backend, 32), s.Place), text)
		}
	}
	p.backends(e)
	p.outcome(e)
}

func orNone(s string) string {
	if s == "" || s == "-" {
		return "none"
	}
	return s
}

// backends writes one line each, and below it what there is to say.
func (p *page) backends(e *admin.ExplainedPool) {
	const few = 40
	width := len("BACKEND")
	for _, c := range e.Candidates {
		width = max(width, min(len(c.ID), 32))
	}
	p.line("")
	p.line("  %-*s  CHANCE  WEIGHT  SHARE   LOAD  STATE", width, "BACKEND")
	list, left := e.Candidates, 0
	if len(list) > few {
		list = slices.Clone(list)
		slices.SortStableFunc(list, func(a, b admin.ExplainedCandidate) int { return cmp.Compare(b.Chance, a.Chance) })
		list, left = list[:few], len(list)-few
	}
	for i := range list {
		c := &list[i]
		state := c.Health
		if c.Admin != "enabled" {
			state = c.Admin
		}
		if c.Why != "" && c.Why != state {
			state += ", " + c.Why
		} else if c.Reason != "" && c.Reason != state && c.Reason != c.Why {
			state += ", " + c.Reason
		}
		p.line("  %-*s  %6s  %6d  %5.2f  %5.4g  %s", width, c.ID, percent(c.Chance), c.Weight, c.Share, c.Load, state)
		var more []string
		if c.Source == admin.SourceAPI {
			more = append(more, "added by the API")
		}
		if c.Cause != "" && c.Health != "healthy" {
			more = append(more, c.Cause)
		}
		if c.Limit > 0 {
			of := "in flight"
			if p.one != "request" {
				of = p.one + "s open"
			}
			more = append(more, fmt.Sprintf("%d of %d %s", c.InFlight, c.Limit, of))
		}
		if c.Tunnels > 0 {
			more = append(more, fmt.Sprintf("%d open %s", c.Tunnels, map[string]string{"request": "tunnels", "session": "sessions", "flow": "flows"}[p.one]))
		}
		if c.Factor > 0 {
			more = append(more, fmt.Sprintf("latency %.3g ms, which counts as %.3g times the mean", c.LatencyMS, c.Factor))
		}
		if len(more) > 0 {
			p.wrapped("      ", strings.Join(more, "; "))
		}
	}
	if left > 0 {
		p.line("  and %d more with no greater chance (--json has them)", left)
	}
	p.line("")
	p.wrapped("  ", "CHANCE is of getting such a "+p.one+"; SHARE is how much a backend takes of what the policy offers it, 1 unless it starts, returns, is full or out")
}

func (p *page) outcome(e *admin.ExplainedPool) {
	p.line("")
	for _, r := range e.Refused {
		p.wrapped("", fmt.Sprintf("%s of such %ss: %s (%s)", percent(r.Part), p.one, r.Words, r.Reason))
	}
	switch {
	case e.Choice != "":
		p.wrapped("-> ", e.Choice)
	case e.After != "":
		p.wrapped("-> ", fmt.Sprintf("by chance, as above (counted over %d trial picks)", e.Draws))
	default:
		p.line("-> nobody")
	}
}

func (p *page) failing(e *admin.Explanation) {
	f := e.Failing
	p.line("")
	if e.Pool.After == "" {
		return
	}
	switch p.one {
	case "session":
		p.wrapped("", "If connecting to "+e.Pool.After+" fails")
	case "flow":
		p.wrapped("", "If "+e.Pool.After+" is refused before an answer (ICMP)")
	default:
		p.wrapped("", "If the attempt on "+e.Pool.After+" fails")
	}
	if len(e.Pool.Next) > 0 && f.Attempts > 1 {
		next := make([]string, 0, len(e.Pool.Next))
		for i, n := range e.Pool.Next {
			if i == 8 {
				next = append(next, fmt.Sprintf("%d more", len(e.Pool.Next)-i))
				break
			}
			text := n.ID + " (" + percent(n.Chance) + ")"
			if n.ID == e.Pool.After {
				text = n.ID + " again, as there is no other"
			}
			next = append(next, text)
		}
		p.wrapped("  next:       ", strings.Join(next, ", "))
		if kept := e.Pool.Kept; len(kept) > 0 {
			if len(kept) > 8 {
				kept = append(slices.Clone(kept[:8]), fmt.Sprintf("%d more", len(e.Pool.Kept)-8))
			}
			p.wrapped("              ", "when nothing was sent, rather one to which a connection is open: "+strings.Join(kept, ", "))
		}
	}
	groups := map[string][]string{}
	order := []string{"redispatch", "retry"}
	for _, c := range f.Cases {
		if !slices.Contains(order, c.Then) {
			order = append(order, c.Then)
		}
		groups[c.Then] = append(groups[c.Then], c.Failure)
	}
	for i, then := range order {
		head := map[string]string{"redispatch": "  redispatch: ", "retry": "  retry:      "}[then]
		text := strings.Join(groups[then], ", ")
		if i >= 2 {
			head, text = "  final:      ", then+": "+text
		}
		if len(groups[then]) > 0 {
			p.wrapped(head, text)
		}
	}
	if p.one != "request" {
		p.unrepeated(f)
		return
	}
	text := fmt.Sprintf("%s in all; %s of the retry budget is left", count(f.Attempts, "attempt"), orNone(percent(f.BudgetLeft)))
	if f.WithinS > 0 {
		text += fmt.Sprintf("; retries within %gs", f.WithinS)
	}
	if f.LeastS > 0 {
		text += fmt.Sprintf("; none with less than %s left of the request's time", seconds(f.LeastS))
	}
	switch {
	case f.Replayable:
	case f.KeyField == "":
		text += "; the method may not be sent twice"
	default:
		text += "; the method may not be sent twice without one " + f.KeyField
	}
	p.wrapped("  ", text)
	switch h := f.Hedge; {
	case h == nil:
	case !h.May:
		p.line("  no hedge: the request has content, or its method is not GET, HEAD or OPTIONS")
	case h.AfterS == 0:
		p.line("  no hedge yet: too few answers to know the pool's latency")
	case h.Percent > 0:
		p.line("  hedge:      after %s, in which %d%% of the answers came of late", seconds(h.AfterS), h.Percent)
	default:
		p.line("  hedge:      after %s", seconds(h.AfterS))
	}
}

// unrepeated says of a session or a flow what there is in place of retries.
func (p *page) unrepeated(f *admin.ExplainedRetry) {
	text := count(f.Attempts, "attempt") + " in all, free of the retry budget; once "
	if p.one == "flow" {
		text += "an answer has come, the flow keeps its backend, or ends"
	} else {
		text += "connected, the session keeps its backend, or ends"
	}
	p.wrapped("  ", text)
}
