// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/engine"
)

func newRun() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "run",
		Short: "Run a configuration",
		Long: "Runs the balancer that the configuration describes until SIGTERM, which drains it and exits 0\n" +
			"(see shutdown: in the configuration); SIGINT or a second SIGTERM skips the delay.\n" +
			"SIGHUP reads the configuration again, as 'weir reload' does: no connection is closed for it, and a file with a\n" +
			"mistake changes nothing. SIGHUP and SIGUSR1 open the access log again, after rotation.",
		Args: noFileArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals := serverSignals() // first: a signal during the start must not kill it half done
			plan, err := config.Load(file)
			if err != nil {
				return err
			}
			return serve(cmd, plan, signals, engine.Options{
				Machine: engine.PrepareMachine(),
				Load:    func() (*config.Plan, error) { return config.Load(file) },
			})
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "weir.yaml", "configuration file")
	return c
}

// serve runs a plan until the process is told to stop. It prints one line with
// the bound addresses once everything is bound.
func serve(cmd *cobra.Command, plan *config.Plan, signals <-chan os.Signal, opt engine.Options) error {
	opt.Stderr, opt.Version = cmd.ErrOrStderr(), readBuildFacts().Version
	e, err := engine.New(plan, opt)
	if err != nil {
		return err
	}
	e.Start()
	// Standard output carries the access log, so this goes to standard error.
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "weir: %s\n", e.Bound())
	return e.Run(signals)
}
