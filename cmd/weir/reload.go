// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
)

func newReload() *cobra.Command {
	opt := admin.ClientOptions{Timeout: time.Minute}
	var dryRun, asJSON bool
	c := &cobra.Command{
		Use:   "reload",
		Short: "Make a running weir read its configuration file again",
		Long: "Makes a running weir read its configuration file again, as SIGHUP does, and prints what that changed.\n" +
			"A file with a mistake changes nothing: every reason is printed, and the exit code is 1. No connection is closed.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return wrongUse("weir reload takes no file: the running weir knows which one it reads")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			r, err := client.Reload(cmd.Context(), dryRun)
			var p *admin.Problem
			if errors.As(err, &p) && p.Code == admin.CodeBadConfig {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s\nweir: nothing was changed: the old configuration stays in force\n", p.Detail)
				return errSaid
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), r)
			}
			for _, w := range r.Warnings {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), w)
			}
			for _, d := range r.Changes {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), d.Text)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), inSum(&r))
			return err
		},
	}
	addAdminFlags(c, &opt)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would change, or what is wrong")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// inSum is the last line of a reload.
func inSum(r *admin.Reload) string {
	switch {
	case r.DryRun && len(r.Changes) == 0:
		return fmt.Sprintf("nothing would change: generation %d stays", r.Generation)
	case r.DryRun:
		return fmt.Sprintf("%s would be made; generation %d stays", count(len(r.Changes), "change"), r.Generation)
	case len(r.Changes) == 0:
		return fmt.Sprintf("no change; generation %d serves", r.Generation)
	default:
		return fmt.Sprintf("%s; generation %d serves", count(len(r.Changes), "change"), r.Generation)
	}
}
