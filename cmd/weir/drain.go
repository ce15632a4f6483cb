// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
)

// waitEvery is how often --wait looks.
const waitEvery = 500 * time.Millisecond

// adminWords are the states that the three commands ask for.
var adminWords = map[string]struct{ state, short, long string }{
	"drain": {
		"draining", "Give a backend no new work and let it finish what it has",
		"Gives a backend no new work. What it has in flight finishes, or is cut at the deadline. It stays out until\n" +
			"'weir enable'; with state_file over restarts, else until weir starts anew. The configuration file is not changed.",
	},
	"enable": {"enabled", "Let a backend take work again", "Lets a drained or disabled backend take work again, as far as its health allows."},
	"disable": {
		"disabled", "Give a backend no new work and let it finish without a deadline",
		"Gives a backend no new work, like drain, and cuts nothing however long it takes. It stays out until\n" +
			"'weir enable'; with state_file over restarts, else until weir starts anew. The configuration file is not changed.",
	},
}

// addAdminFlags gives a command the two flags of all that talk to a running
// weir.
func addAdminFlags(c *cobra.Command, opt *admin.ClientOptions) {
	c.Flags().StringVar(&opt.Address, "admin", cmp.Or(os.Getenv("WEIR_ADMIN"), "127.0.0.1:9900"), "admin address of the running weir: host:port or unix:/path; WEIR_ADMIN in the environment says it for all commands")
	c.Flags().StringVar(&opt.TokenFile, "token-file", "", "file that holds the admin token")
}

func newAdminWord(name string) *cobra.Command {
	word := adminWords[name]
	var opt admin.ClientOptions
	var deadline time.Duration
	var wait, asJSON bool
	c := &cobra.Command{
		Use:   name + " POOL/BACKEND",
		Short: word.short,
		Long:  word.long,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return wrongUse("name one backend as POOL/BACKEND, for example app/10.0.1.21:8080; 'weir status' lists them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, id, err := splitBackend(args[0])
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("deadline") && deadline <= 0 {
				return wrongUse("--deadline must be positive")
			}
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			b, err := client.Patch(cmd.Context(), pool, id, admin.Patch{Admin: word.state, Deadline: deadline})
			if err != nil {
				return err
			}
			progress := func(text string) {
				if !asJSON {
					_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s/%s %s\n", pool, id, text)
				}
			}
			progress("is " + b.Admin + inFlight(&b))
			warn(cmd, &b)
			if b.OutsideSubset {
				progress("is in the subsets of other balancers; this is kept for when it is in this one's")
			} else if wait {
				if b, err = waitEmpty(cmd.Context(), client, pool, id, progress); err != nil {
					return err
				}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			return nil
		},
	}
	addAdminFlags(c, &opt)
	c.Flags().BoolVar(&asJSON, "json", false, "print the backend as JSON")
	if name != "enable" {
		c.Flags().BoolVar(&wait, "wait", false, "show progress until nothing is in flight")
	}
	if name == "drain" {
		c.Flags().DurationVar(&deadline, "deadline", 0, "cut what is still in flight after this long (default: the pool's drain.deadline)")
	}
	return c
}

func newWeight() *cobra.Command {
	var opt admin.ClientOptions
	var reset, asJSON bool
	c := &cobra.Command{
		Use:   "weight POOL/BACKEND (N | --reset)",
		Short: "Change a backend's weight until it is reset",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return wrongUse("give POOL/BACKEND and a weight, for example app/10.0.1.21:8080 3")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, id, err := splitBackend(args[0])
			if err != nil {
				return err
			}
			if reset == (len(args) == 2) {
				return wrongUse("give either a weight or --reset")
			}
			p := admin.Patch{ResetWeight: reset}
			if !reset {
				w, err := parseWeight(args[1])
				if err != nil {
					return err
				}
				p.Weight = &w
			}
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			b, err := client.Patch(cmd.Context(), pool, id, p)
			if err != nil {
				return err
			}
			warn(cmd, &b)
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s/%s has weight %d\n", pool, id, b.Weight)
			return err
		},
	}
	addAdminFlags(c, &opt)
	c.Flags().BoolVar(&reset, "reset", false, "go back to the configured weight")
	c.Flags().BoolVar(&asJSON, "json", false, "print the backend as JSON")
	return c
}

// warn says on standard error what a change costs.
func warn(cmd *cobra.Command, b *admin.Backend) {
	if b.Warning != "" {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "weir: %s\n", b.Warning)
	}
}

// waitEmpty says how much is in flight until nothing is, or until the drain's
// deadline has passed with something left.
func waitEmpty(ctx context.Context, client *admin.Client, pool, id string, progress func(string)) (admin.Backend, error) {
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	last := ""
	for {
		b, err := client.Backend(ctx, pool, id)
		if err != nil {
			return b, err
		}
		if b.Admin == "enabled" {
			return b, fmt.Errorf("%s/%s was enabled meanwhile", pool, id)
		}
		if b.InFlight == 0 && (b.Drain == nil || !b.Drain.Sessions) {
			progress("is empty" + wasCut(&b))
			return b, nil
		}
		if now := inFlight(&b); now != last && now != "" {
			last = now
			progress("still has" + now)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return b, context.Cause(ctx)
		}
	}
}

// wasCut says what an empty backend's drain has cost; empty when it cost nothing.
func wasCut(b *admin.Backend) string {
	if b.Drain == nil {
		return ""
	}
	var all []string
	add := func(n int64, one, many string) {
		if n == 1 {
			all = append(all, "1 "+one)
		} else if n > 1 {
			all = append(all, fmt.Sprintf("%d %s", n, many))
		}
	}
	if e := b.Drain.Ended; e != nil {
		add(e.Closed, "WebSocket was closed", "WebSockets were closed")
		add(e.Unanswered+e.Torn, "WebSocket was cut without an answer", "WebSockets were cut without an answer")
		add(e.Streams, "stream was ended", "streams were ended")
		add(e.Sessions, "session was ended", "sessions were ended")
	}
	add(b.Drain.Cut, "request was cut at the deadline", "requests were cut at the deadline")
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, ", ")
}

// inFlight is the progress of a drain in words; empty when nothing is left.
func inFlight(b *admin.Backend) string {
	if b.InFlight == 0 {
		return ""
	}
	text := fmt.Sprintf(" %d in flight", b.InFlight)
	if b.Drain != nil && b.Drain.DeadlineS >= 0 {
		text += fmt.Sprintf(", %.0fs left", b.Drain.DeadlineS)
	}
	return text
}
