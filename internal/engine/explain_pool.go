// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/pool"
)

// poolInWords turns the core's explanation into the API's; protocol is the listener's.
func poolInWords(name, protocol string, e *pool.Explanation) *admin.ExplainedPool {
	s := &e.Snapshot
	out := &admin.ExplainedPool{
		Name: name, Balance: s.Policy, Panic: s.Panic, PanicWhy: s.PanicWhy, Draws: e.Draws,
		Reasoning: []string{}, Candidates: []admin.ExplainedCandidate{},
	}
	tiers(out, e)
	for i := range e.Candidates {
		out.Candidates = append(out.Candidates, candidate(s, i, &e.Candidates[i]))
	}
	for _, f := range e.Refused {
		r, words := refusedAs(f.Refusal, protocol)
		out.Refused = append(out.Refused, admin.ExplainedRefusal{Reason: r, Part: round(f.Part), Words: words})
	}
	if e.Choice != nil {
		out.Choice = e.Choice.ID()
	}
	if e.After != nil {
		out.After = e.After.ID()
	}
	for _, n := range e.Next {
		out.Next = append(out.Next, admin.ExplainedChance{ID: n.Backend.ID(), Chance: round(n.Chance)})
	}
	return out
}

// keptElsewhere lists the candidates beside the first to which there is an idle
// connection.
func keptElsewhere(e *pool.Explanation) (ids []string) {
	for i := range e.Candidates {
		b := e.Snapshot.Backends[i].Backend
		if !e.Candidates[i].Candidate || b == e.After {
			continue
		}
		if t := targetOf(b); t != nil && t.up.Stats().Idle > 0 {
			ids = append(ids, b.ID())
		}
	}
	return ids
}

// tiers puts down what is asked first, and the reasoning of whoever is.
func tiers(out *admin.ExplainedPool, e *pool.Explanation) {
	pickers := 0
	for i := range e.Tiers {
		pickers += len(e.Tiers[i].Groups)
	}
	for i := range e.Tiers {
		t := &e.Tiers[i]
		row := admin.ExplainedTier{Name: t.Name, Chance: round(t.Chance), Panic: t.Panicked}
		for k := range t.Groups {
			g := &t.Groups[k]
			if len(t.Groups) > 1 {
				row.Zones = append(row.Zones, admin.ExplainedZone{Name: g.Zone, Chance: round(g.Chance)})
			}
			if t.Chance*g.Chance <= 0 {
				continue
			}
			where := ""
			if pickers > 1 {
				where = t.Name + ": "
				if len(t.Groups) > 1 {
					where = t.Name + ", zone " + g.Zone + ": "
				}
			}
			for _, w := range g.Picker.Words {
				out.Reasoning = append(out.Reasoning, where+w)
			}
			for _, step := range g.Picker.Order {
				out.Order = append(out.Order, admin.ExplainedStep{
					Backend: step.Backend.ID(), Place: step.Place, Verdict: step.Verdict, Why: step.Why,
				})
			}
		}
		if pickers > 1 {
			out.Tiers = append(out.Tiers, row)
		}
	}
}

func candidate(s *pool.Snapshot, i int, c *pool.Candidate) admin.ExplainedCandidate {
	b := &s.Backends[i]
	out := admin.ExplainedCandidate{
		ID: b.ID, Candidate: c.Candidate, Why: c.Why, Chance: round(c.Chance), Zone: b.Zone, Weight: b.Weight,
		Admin: b.Admin.String(), Health: b.Health.String(), Share: round(b.Share), Reason: b.Reason.String(), Cause: b.Why,
		Load: round(loadOf(b.Backend, s.At)), InFlight: b.InFlight, Limit: b.Limit,
		LatencyMS: milliseconds(c.Latency), Factor: round(c.Factor),
	}
	if len(s.Tiers) > 1 && b.Tier >= 0 {
		out.Tier = s.Tiers[b.Tier].Name
	}
	return out
}

func loadOf(b *balance.Backend, now balance.Instant) float64 { return b.Load(now) }

// refusedAs says what becomes of what gets no backend at once.
func refusedAs(r pool.Refusal, protocol string) (reason, words string) {
	switch r {
	case pool.NoBackend:
		words, _ = message.NoBackend.Meaning()
		return message.NoBackend.String(), words
	case pool.AllBroken:
		words, _ = message.AllBroken.Meaning()
		return message.AllBroken.String(), words
	case pool.Shed:
		words, _ = message.Shed.Meaning()
		return message.Shed.String(), words
	default:
		switch protocol {
		case "http":
			words = "all slots are taken or others wait: the request waits in the queue, if there is one, for the first that comes free"
		case "udp":
			words = "all slots are taken: what is sent is dropped, as flows do not wait in the queue"
		default:
			words = "all slots are taken or others wait: the client waits in the queue, if there is one, for the first that comes free"
		}
		return "full", words
	}
}
