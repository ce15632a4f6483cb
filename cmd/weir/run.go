// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/engine"
	"github.com/weirlb/weir/internal/handover"
)

func newRun() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "run",
		Short: "Run a configuration",
		Long: "Runs the balancer that the configuration describes until SIGTERM, which drains it and exits 0\n" +
			"(see shutdown: in the configuration); SIGINT or a second SIGTERM skips the delay.\n" +
			"SIGHUP reads the configuration again, as 'weir reload' does: no connection is closed for it, and a file with a\n" +
			"mistake changes nothing. SIGHUP and SIGUSR1 open the access log again, after rotation.\n" +
			"SIGUSR2 hands over to the binary that is now at the path from which this process was started, as 'weir upgrade' does.",
		Args: noFileArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals := serverSignals() // first: a signal during the start must not kill it half done
			load := func() (*config.Plan, error) { return config.Load(file) }
			return serve(cmd, load, signals, engine.Options{Machine: engine.PrepareMachine(), Load: load})
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "weir.yaml", "configuration file")
	return c
}

// serve runs a plan until the process is told to stop, or has handed over. It
// prints one line with the bound addresses once everything is bound.
func serve(cmd *cobra.Command, load func() (*config.Plan, error), signals <-chan os.Signal, opt engine.Options) error {
	stderr := engine.NewLogWriter(cmd.ErrOrStderr()) // whoever reads it may stop
	opt.Stderr, opt.Version = stderr, readBuildFacts().Version
	supervised(stderr, &opt)
	opt.Upgrade = &engine.UpgradeOptions{Program: thisProgram()}
	p, err := handover.Join(opt.Version)
	if err != nil {
		return err
	}
	opt.Predecessor = p
	e, err := begin(load, opt)
	if err != nil {
		if p != nil { // who serves on wants to know why
			p.Fail(opt.Version, err)
		}
		return err
	}
	// Standard output carries the access log, so this goes to standard error.
	_, _ = fmt.Fprintf(stderr, "weir: %s\n", e.Bound())
	return e.Run(signals)
}

// begin builds the balancer and makes it serve.
func begin(load func() (*config.Plan, error), opt engine.Options) (*engine.Engine, error) {
	plan, err := load()
	if err != nil {
		return nil, err
	}
	e, err := engine.New(plan, opt)
	if err != nil {
		return nil, err
	}
	if opt.Predecessor == nil {
		e.Start()
		return e, nil
	}
	if err := e.TakeOver(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// thisProgram is how a successor is started: as this process was. It is asked
// at the start, while the binary is still in its place.
func thisProgram() handover.Program {
	path, err := handover.Invoked()
	if err != nil {
		path = "" // an upgrade then needs a binary that is named
	}
	return handover.Program{Path: path, Args: os.Args, Env: os.Environ()}
}
