// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
)

func newStatus() *cobra.Command {
	var opt admin.ClientOptions
	var asJSON bool
	c := &cobra.Command{
		Use:   "status [POOL]",
		Short: "Show what a running weir does",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			s, err := client.Status(cmd.Context())
			if err != nil {
				return err
			}
			var pools []admin.Pool
			if len(args) == 1 {
				p, err := client.Pool(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				pools = append(pools, p)
			} else if pools, err = client.Pools(cmd.Context()); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), struct {
					admin.Status
					Pools []admin.Pool `json:"pools"`
				}{s, pools})
			}
			return printStatus(cmd.OutOrStdout(), &s, pools, len(args) == 1)
		},
	}
	addAdminFlags(c, &opt)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// printStatus writes what runs; alone says that one pool is asked about, and is
// told with its history.
func printStatus(w io.Writer, s *admin.Status, pools []admin.Pool, alone bool) error {
	fmt.Fprintf(w, "weir %s, pid %d, %s for %s, %s\n", s.Version, s.PID, s.State, since(s.UptimeS), readiness(s, pools))
	if p := s.Predecessor; p != nil {
		fmt.Fprintf(w, "  took over from process %d, version %s, %s ago; it drains and has %s\n",
			p.PID, p.Version, since(time.Since(p.Since).Seconds()), count(p.Connections, "connection"))
	}
	if n := s.Successor; n != nil {
		fmt.Fprintf(w, "  process %d, version %s, has taken over\n", n.PID, n.Version)
	}
	for i := range s.Listeners {
		printListener(w, &s.Listeners[i])
	}
	printHost(w, s.Host)
	printMemory(w, &s.Memory)
	for _, warning := range s.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	for i := range pools {
		printPool(w, &pools[i])
		if alone {
			printHistory(w, &pools[i])
		}
	}
	if len(pools) > 0 {
		fmt.Fprintf(w, "\nSHARE is how much a backend takes of what the policy offers it, not its part of the traffic.\n")
	}
	return nil
}

// readiness says whether traffic should be sent here, and of which of the pools that
// helps nobody: weir stays ready while its backends are down, as taking it out would
// bring none of them back.
func readiness(s *admin.Status, pools []admin.Pool) string {
	if !s.Ready {
		return "not ready: " + strings.Join(s.NotReady, "; ")
	}
	var empty []string
	for i := range pools {
		if pools[i].Serving == 0 {
			empty = append(empty, pools[i].Name)
		}
	}
	const named = 5
	switch n := len(empty); {
	case n == 0:
		return "ready"
	case n == 1:
		return "ready, but no backend of pool " + empty[0] + " serves"
	case n > named:
		return fmt.Sprintf("ready, but %d pools have no backend that serves: %s and %d more", n, strings.Join(empty[:named], ", "), n-named)
	default:
		return fmt.Sprintf("ready, but %d pools have no backend that serves: %s", n, strings.Join(empty, ", "))
	}
}

func printPool(w io.Writer, p *admin.Pool) {
	fmt.Fprintf(w, "\npool %s (%s): %d of %d backends serve, %d requests in flight",
		p.Name, p.Balance, p.Serving, len(p.Members), p.InFlight)
	if p.Saturation > 0 {
		fmt.Fprintf(w, " (%.0f%% of what they may have)", p.Saturation*100)
	}
	if p.QueueLength > 0 {
		fmt.Fprintf(w, ", %d wait", p.QueueLength)
	}
	if p.Panic {
		fmt.Fprint(w, ", PANIC: health is being ignored")
	}
	fmt.Fprintln(w)
	if said := correlated(p); said != "" {
		fmt.Fprintln(w, "  "+said)
	}
	if said := adaptiveLimit(p.Adaptive); said != "" {
		fmt.Fprintln(w, "  "+said)
	}
	if p.Known > 0 {
		fmt.Fprintf(w, "  a subset of %d backends\n", p.Known)
	}
	if p.Discovery != nil {
		fmt.Fprintln(w, "  "+discovery(p.Discovery))
	}
	for i := range p.Tiers {
		fmt.Fprintln(w, "  "+tier(&p.Tiers[i]))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  BACKEND\tADMIN\tHEALTH\tSHARE\tWEIGHT\tIN FLIGHT\tREQUESTS\tFAILURES\tP99\tFOR\tWHY")
	for i := range p.Members {
		b := &p.Members[i]
		fmt.Fprintf(t, "  %s\t%s\t%s\t%.0f%%\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n",
			b.ID, b.Admin, b.Health, b.Share*100, b.Weight, b.InFlight, b.Requests, b.Failures,
			latency(b.Latency.P99), since(time.Since(b.Since).Seconds()), why(b))
	}
	_ = t.Flush() // w is standard output; nothing more can be said if it is gone
}

// correlated says in words what a pool's checks fail together for.
func correlated(p *admin.Pool) string {
	switch p.Correlated {
	case "":
		return ""
	case "broken_check":
		return "BROKEN CHECK? " + p.CorrelatedWhy + ". What is checked is not what requests need: look at path, port, host and expect of health.active"
	case "shared_dependency":
		return "SHARED DEPENDENCY? " + p.CorrelatedWhy + ". The checks ask something that all backends share: look there first, and take it out of the readiness page"
	default:
		return p.Correlated + ": " + p.CorrelatedWhy
	}
}

// adaptiveLimit says in words what a pool's adaptive limit is.
func adaptiveLimit(a *admin.AdaptiveLimit) string {
	if a == nil {
		return ""
	}
	said := "adaptive limit: none needed so far"
	if a.Limit > 0 {
		said = fmt.Sprintf("adaptive limit: %d of %d in flight", a.InFlight, a.Limit)
	}
	if a.BaseMS > 0 {
		said += fmt.Sprintf(", latency %s, %s without load", latency(a.LatencyMS), latency(a.BaseMS))
	}
	if low, normal, high := a.Shed["low"], a.Shed["normal"], a.Shed["high"]; low+normal+high > 0 {
		said += fmt.Sprintf(", shed %d low, %d normal, %d high", low, normal, high)
	}
	return said
}

// printHistory tells what became of the pool's backends, the latest last.
func printHistory(w io.Writer, p *admin.Pool) {
	type row struct {
		id string
		admin.Change
	}
	var all []row
	for i := range p.Members {
		for _, c := range p.Members[i].History {
			all = append(all, row{p.Members[i].ID, c})
		}
	}
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b row) int { return a.At.Compare(b.At) })
	fmt.Fprintln(w, "\n  what became of them, the latest last")
	if n := len(all) - historyShown; n > 0 {
		fmt.Fprintf(w, "  (%d earlier changes: --json has them)\n", n)
		all = all[n:]
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := range all {
		c := &all[i]
		what := c.From + " -> " + c.To
		if c.From == c.To {
			what = c.To
		}
		if c.Reason != "" && c.Reason != c.To {
			what += " (" + c.Reason + ")"
		}
		fmt.Fprintf(t, "  %s ago\t%s\t%s\t%s\n", since(time.Since(c.At).Seconds()), c.id, what, c.Why)
	}
	_ = t.Flush()
}

// historyShown bounds the changes that are printed of a pool.
const historyShown = 40

// discovery is where backends come from, in one line.
func discovery(d *admin.Discovery) string {
	out := fmt.Sprintf("%d found by %s", d.Found, d.Source)
	if d.LastAnswer != nil {
		out += ", last " + since(time.Since(*d.LastAnswer).Seconds()) + " ago"
	} else {
		out += ", which has not answered yet"
	}
	if d.Held > 0 {
		out += fmt.Sprintf("; %d of them are missing from the last answer and stay until another one confirms that", d.Held)
	}
	if d.Failing {
		out += "; NOW FAILING: " + d.LastError
	}
	if d.NotUsed != "" {
		out += "; not used: " + d.NotUsed
	}
	return out
}

// tier is a tier in one line.
func tier(t *admin.Tier) string {
	out := fmt.Sprintf("tier %s: %d of %d serve, takes %.0f%%", t.Name, t.Serving, t.Backends, t.Load*100)
	if t.Panic {
		out += ", PANIC"
	}
	switch t.Zoned {
	case "":
		return out
	case "on":
	default:
		out += " (zones do not count: " + t.Zoned + ")"
	}
	for i, z := range t.Zones {
		sep := ", "
		if i == 0 {
			sep = "; zones: "
		}
		out += sep + cmp.Or(z.Name, "none")
		if z.Local {
			out += " (local)"
		}
		out += fmt.Sprintf(" %d of %d", z.Serving, z.Backends)
		if t.Zoned == "on" {
			out += fmt.Sprintf(" %.0f%%", z.Load*100)
		}
	}
	return out
}

// why is the reason of a backend's state in one cell: what an operator said of
// it, then what binds its share, with the cause in words.
func why(b *admin.Backend) string {
	var said []string
	if b.Removed {
		said = append(said, "removed, finishes what is in flight")
	}
	if b.Added != nil {
		said = append(said, "added by the API "+since(b.Added.AgeS)+" ago")
	}
	if o := b.Override; o != nil {
		age := " by an operator " + since(o.AgeS) + " ago"
		if o.Admin != "" {
			said = append(said, o.Admin+age)
		}
		if o.Weight != nil {
			said = append(said, fmt.Sprintf("weight %d%s (configured: %d)", *o.Weight, age, o.ConfiguredWeight))
		}
	}
	var cause []string
	if b.Reason != "" && (b.Reason != "override" || b.Override == nil) {
		reason := b.Reason
		if reason == "slow_start" && b.SlowStartLeftS > 0 {
			reason += ", full in " + since(b.SlowStartLeftS)
		}
		cause = append(cause, reason)
	}
	// The words of a healthy state are those of its last pass.
	if b.Why != "" && (b.Health != "healthy" || b.Reason == "probe_failing" || b.Reason == "probation") {
		cause = append(cause, b.Why)
	}
	if c := b.LastCheck; c != nil && !c.OK && c.Error != "" && !strings.Contains(b.Why, c.Error) {
		cause = append(cause, "last check: "+c.Error)
	}
	if len(cause) > 0 {
		said = append(said, strings.Join(cause, ": "))
	}
	if r := b.LoadReport; r != nil {
		said = append(said, fmt.Sprintf("says it is %.0f%% used", r.Utilization*100))
	}
	if b.LearnedIdleS > 0 {
		said = append(said, fmt.Sprintf("closes idle connections after %gs", b.LearnedIdleS))
	}
	return strings.Join(said, "; ")
}

func latency(ms float64) string {
	if ms == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fms", ms)
}

// since rounds a time to what a person wants to know of it.
func since(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	default:
		return strings.TrimSuffix(d.Round(time.Hour).String(), "0m0s")
	}
}
