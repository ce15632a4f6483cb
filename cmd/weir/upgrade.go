// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
)

func newUpgrade() *cobra.Command {
	opt := admin.ClientOptions{Timeout: 2 * time.Minute}
	var binary string
	var wait, asJSON bool
	c := &cobra.Command{
		Use:   "upgrade",
		Short: "Make a running weir hand over to a new binary",
		Long: "Makes a running weir start the binary that is now at the path from which it was started, with the same arguments,\n" +
			"hand it the listening sockets and what it knows, and drain. Nobody is refused meanwhile, and no request fails.\n" +
			"When the new process does not serve, the old one goes on: the reason is printed, and the exit code is 1.\n" +
			"SIGUSR2 does the same.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return wrongUse("weir upgrade takes no arguments: name another binary with --binary")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("binary") {
				if binary == "" {
					return wrongUse("--binary is empty")
				}
				abs, err := filepath.Abs(binary)
				if err != nil {
					return err
				}
				binary = abs
			}
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			u, err := client.Upgrade(cmd.Context(), binary)
			var p *admin.Problem
			if errors.As(err, &p) && p.Code == admin.CodeUpgradeFailed {
				return p // the text says that the old process serves on
			}
			if err != nil {
				return err
			}
			say := func(format string, args ...any) {
				if !asJSON {
					_, _ = fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
				}
			}
			say("process %d, version %s, serves; process %d drains", u.PID, u.Version, u.Previous.PID)
			if wait {
				say("waiting for it, no longer than upgrade.deadline (15m unless set); Ctrl-C ends the waiting alone")
				if err := waitPredecessor(cmd.Context(), client, &u, say); err != nil {
					return err
				}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), u)
			}
			return nil
		},
	}
	addAdminFlags(c, &opt)
	c.Flags().StringVar(&binary, "binary", "", "binary to start instead; needs a token, or an admin address unix:/path")
	c.Flags().BoolVar(&wait, "wait", false, "show progress until the old process has ended, at upgrade.deadline at the latest; Ctrl-C ends the waiting alone")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// waitPredecessor says how much the old process still has until it is gone.
func waitPredecessor(ctx context.Context, client *admin.Client, u *admin.Upgrade, say func(string, ...any)) error {
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	last := -1
	for {
		s, err := client.Status(ctx)
		switch {
		case err != nil:
			return err
		case s.PID == u.Previous.PID && s.Successor != nil && s.Successor.PID == u.PID:
			// It drains, and still answers on the connection that asked for the upgrade.
			client.Close()
			s.Predecessor = nil
		case s.PID != u.PID:
			return fmt.Errorf("process %d serves: the new one has ended, its output says why", s.PID)
		case s.Predecessor == nil || s.Predecessor.PID != u.Previous.PID:
			say("process %d has ended", u.Previous.PID)
			return nil
		}
		if s.Predecessor != nil && s.Predecessor.Connections != last {
			last = s.Predecessor.Connections
			say("process %d still has %s", u.Previous.PID, count(last, "connection"))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
