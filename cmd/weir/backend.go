// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/demo"
)

func newBackend() *cobra.Command {
	var opt demo.Options
	var errorRate, spread string
	c := &cobra.Command{
		Use:   "backend",
		Short: "Run a well-behaved demonstration backend",
		Long: "Runs a backend that answers /readyz, /livez and, for anything else, 'hello from NAME'.\n" +
			"On SIGTERM or SIGINT it drains in order: /readyz says 503 at once, everything else goes on for --drain,\n" +
			"then the listener closes, what is in flight finishes, and it exits 0. A second signal hurries it.\n" +
			"With --delay, --spread and --concurrency it stands for a server of known capacity.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if opt.ErrorRate, err = parseShare(errorRate); err != nil {
				return wrongUse("--error-rate: %w", err)
			}
			if opt.Delay < 0 || opt.Drain < 0 || opt.IdleTimeout < 0 {
				return wrongUse("durations may not be negative")
			}
			switch opt.Spread = demo.Spread(spread); {
			case opt.Spread != demo.SpreadFixed && opt.Spread != demo.SpreadExponential:
				return wrongUse("--spread: %q is neither fixed nor exponential", spread)
			case opt.Concurrency < 0:
				return wrongUse("--concurrency may not be negative; 0 means no limit")
			}
			opt.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			b, err := demo.NewBackend(opt)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "weir backend %s listening on http://%s\n", b.Name(), b.Addr())
			signals := stopSignals()
			go func() {
				<-signals
				b.Stop()
				<-signals
				b.Hurry()
			}()
			return b.Run()
		},
	}
	f := c.Flags()
	f.StringVar(&opt.Listen, "listen", "127.0.0.1:9001", "address to listen on; port 0 takes a free one")
	f.StringVar(&opt.Name, "name", "", "name in answers (default: the bound address)")
	f.DurationVar(&opt.Delay, "delay", 0, "work of a request: its answer comes that much later")
	f.StringVar(&spread, "spread", "fixed", "how work is distributed about --delay: fixed or exponential")
	f.IntVar(&opt.Concurrency, "concurrency", 0, "requests worked on at once, while others wait in order of arrival; 0 means no limit")
	f.Uint64Var(&opt.Seed, "seed", 0, "of the spread, for runs that can be repeated; 0 takes another one each time")
	f.StringVar(&errorRate, "error-rate", "0%", "share of answers that are errors (500)")
	f.DurationVar(&opt.Drain, "drain", 20*time.Second, "how long to go on serving after SIGTERM; 0 cuts everything at once")
	f.DurationVar(&opt.IdleTimeout, "idle-timeout", 65*time.Second, "close kept connections after this long without a request; 0 never does")
	return c
}
