// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
)

func newAdd() *cobra.Command {
	var opt admin.ClientOptions
	var b admin.NewBackend
	var weight string
	var asJSON bool
	c := &cobra.Command{
		Use:   "add POOL URL",
		Short: "Add a backend to a running pool",
		Long: "Adds a backend to a running pool, beside those of the configuration and those that are found. It takes work once a probe has passed.\n" +
			"It stays over reloads and upgrades, until 'weir remove', or until the configuration lists its id: one that is to stay belongs there,\n" +
			"as the file is not changed. Said again it changes the weight and the rest.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return wrongUse("give a pool and a URL, for example app http://10.0.1.23:8080")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			b.URL = args[1]
			if cmd.Flags().Changed("weight") {
				w, err := parseWeight(weight)
				if err != nil {
					return err
				}
				b.Weight = &w
			}
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			out, err := client.AddBackend(cmd.Context(), args[0], b)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), out)
			}
			state := "is " + out.Health
			switch {
			case out.OutsideSubset:
				state = "is known, and in the subsets of other balancers"
			case out.Health == "unproven":
				state = "takes work once a probe has passed"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s/%s with weight %d %s\n", args[0], out.ID, out.Weight, state)
			return err
		},
	}
	addAdminFlags(c, &opt)
	f := c.Flags()
	f.StringVar(&weight, "weight", "1", "share of the work, a whole number from 0 to 1000; 0 takes no new work")
	f.StringVar(&b.ID, "id", "", "name within the pool (default host:port)")
	f.StringVar(&b.Zone, "zone", "", "where it is")
	f.BoolVar(&b.Backup, "backup", false, "used only as the others lose health")
	f.IntVar(&b.Priority, "priority", 0, "tier, 0 to 9; the next one takes work as those before it lose health")
	f.BoolVar(&asJSON, "json", false, "print the backend as JSON")
	return c
}

func newRemove() *cobra.Command {
	var opt admin.ClientOptions
	var how admin.Removal
	var wait, asJSON bool
	c := &cobra.Command{
		Use:   "remove POOL/BACKEND",
		Short: "Take out a backend that was added with 'weir add'",
		Long: "Takes out a backend that was added with 'weir add': it gets no new work, and what it has in flight finishes or is cut at the deadline.\n" +
			"Said again while it has work it moves the deadline. One that the configuration lists is not removed here: drain or disable it, or change the file.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return wrongUse("name one backend as POOL/BACKEND, for example app/10.0.1.23:8080; 'weir status' lists them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, id, err := splitBackend(args[0])
			if err != nil {
				return err
			}
			switch {
			case cmd.Flags().Changed("deadline") && how.Deadline <= 0:
				return wrongUse("--deadline must be positive; --force cuts at once")
			case how.Force && how.Deadline > 0:
				return wrongUse("--force cuts at once, so it goes with no --deadline")
			}
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			b, err := client.RemoveBackend(cmd.Context(), pool, id, how)
			if err != nil {
				return err
			}
			progress := func(text string) {
				if !asJSON {
					_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s/%s %s\n", pool, id, text)
				}
			}
			progress("leaves" + inFlight(&b))
			if wait {
				if b, err = waitGone(cmd.Context(), client, pool, b, progress); err != nil {
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
	f := c.Flags()
	f.DurationVar(&how.Deadline, "deadline", 0, "cut what is still in flight after this long (default: the pool's drain.deadline)")
	f.BoolVar(&how.Force, "force", false, "cut what is in flight now")
	f.BoolVar(&wait, "wait", false, "show progress until nothing is in flight")
	f.BoolVar(&asJSON, "json", false, "print the backend as JSON")
	return c
}

// waitGone says how much is in flight until the backend has left, and returns it
// as it was last.
func waitGone(ctx context.Context, client *admin.Client, pool string, b admin.Backend, progress func(string)) (admin.Backend, error) {
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	last := inFlight(&b)
	for b.InFlight > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return b, context.Cause(ctx)
		}
		next, err := client.Backend(ctx, pool, b.ID)
		var p *admin.Problem
		switch {
		case errors.As(err, &p) && p.Status == http.StatusNotFound:
			b.InFlight, b.Drain = 0, &admin.Drain{Done: true}
		case err != nil:
			return b, err
		case !next.Removed:
			return next, fmt.Errorf("%s/%s was added again meanwhile", pool, b.ID)
		default:
			b = next
			if now := inFlight(&b); now != last && now != "" {
				last = now
				progress("still has" + now)
			}
		}
	}
	progress("is gone")
	return b, nil
}
