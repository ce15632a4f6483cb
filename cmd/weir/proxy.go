// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/engine"
)

func newProxy() *cobra.Command {
	var opt config.ProxyOptions
	var printConfig bool
	c := &cobra.Command{
		Use:   "proxy [flags] URL...",
		Short: "Balance over the given backends, without a configuration file",
		Long: "Balances over the given backends with the defaults of a configuration.\n" +
			"--print-config prints the configuration that does the same, to start a file from.",
		Example: "  weir proxy --health-path /readyz http://10.0.1.21:8080 http://10.0.1.22:8080",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return wrongUse("no backends: give at least one URL, for example http://10.0.1.21:8080")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			opt.URLs = args
			plan, err := config.FromProxy(opt)
			if err != nil {
				return &usageError{err}
			}
			if printConfig {
				_, err := cmd.OutOrStdout().Write(plan.YAML(true))
				return err
			}
			load := func() (*config.Plan, error) { return plan, nil }
			return serve(cmd, load, serverSignals(), engine.Options{Machine: engine.PrepareMachine()})
		},
	}
	f := c.Flags()
	f.StringVar(&opt.Listen, "listen", ":8080", "address to listen on; port 0 takes a free one")
	f.StringVar(&opt.Admin, "admin", "127.0.0.1:9900", "admin address; 'none' for none")
	f.StringVar(&opt.Balance, "balance", "p2c", "balance policy: p2c, round_robin, random, least_request, peak_ewma, ring_hash, rendezvous or maglev; keys are client addresses")
	f.StringVar(&opt.HealthPath, "health-path", "", "probe backends with GET of this path (default: a TCP connect)")
	f.DurationVar(&opt.HealthInterval, "health-interval", 5*time.Second, "time between probes")
	f.IntVar(&opt.Retries, "retries", 1, "further attempts after the first")
	f.StringVar(&opt.TLSCert, "tls-cert", "", "certificate chain (PEM) to terminate TLS with")
	f.StringVar(&opt.TLSKey, "tls-key", "", "its key (PEM)")
	f.BoolVar(&printConfig, "print-config", false, "print the equivalent configuration and exit")
	return c
}
