// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/engine"
)

func newExplain() *cobra.Command {
	var opt admin.ClientOptions
	var q admin.Question
	var file, pool, since string
	var failures, asJSON bool
	c := &cobra.Command{
		Use:   "explain [-X METHOD] [-H 'NAME: VALUE'] URL | --failures",
		Short: "Say where a request, a session or a flow would go, and why; or why the last ones failed",
		Long: "Says what weir would make of a request, without sending it: the route and why others do not match, the\n" +
			"request as a backend would get it, every backend of the pool with its chance or what keeps it out, and what\n" +
			"would follow if the attempt failed. It asks the running weir, or with -c a configuration: then no backend has\n" +
			"been probed or has work. With --failures it shows the last ones that failed and what their reasons mean.\n\n" +
			"Of a listener that reads no requests it says where a session goes, by tcp://HOST:PORT, or by https://NAME where\n" +
			"routes go by the server name (see --sni, --alpn), and by udp://HOST:PORT where a flow of datagrams does.",
		Example: "  weir explain http://shop.example.com/cart\n" +
			"  weir explain -c weir.yaml tcp://db.example.com:5432\n" +
			"  weir explain --client 192.0.2.7 udp://:53",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case failures && len(args) > 0:
				return wrongUse("--failures goes without a URL")
			case failures && file != "":
				return wrongUse("only a running weir has failures: leave out -c")
			case !failures && since != "":
				return wrongUse("--since goes with --failures")
			case !failures && len(args) != 1:
				return wrongUse("give one URL, for example http://shop.example.com/cart or tcp://db:5432, or --failures")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if failures {
				return explainFailures(cmd, opt, pool, since, asJSON)
			}
			q.URL = args[0]
			e, err := explained(cmd, opt, file, q)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), e)
			}
			p := page{w: cmd.OutOrStdout()}
			p.explanation(&e)
			return p.err
		},
	}
	addAdminFlags(c, &opt)
	f := c.Flags()
	f.StringVarP(&file, "config", "c", "", "explain a configuration file or folder instead of the running weir")
	f.StringVar(&q.Listener, "listener", "", "the listener that gets it (default: by the URL's port, or its scheme)")
	f.StringVarP(&q.Method, "request", "X", "GET", "the request's method")
	f.StringArrayVarP((*[]string)(&q.Headers), "header", "H", nil, "a header of the request, 'Name: value'; may be repeated")
	f.StringVar(&q.Client, "client", "127.0.0.1", "the address that it comes from")
	f.StringVar(&q.SNI, "sni", "", "the server name that the client asks for in TLS, or none (default: the URL's host)")
	f.StringSliceVar(&q.ALPN, "alpn", nil, "the protocols that the client offers in TLS, where a listener routes by name (default: h2,http/1.1)")
	f.BoolVar(&failures, "failures", false, "show the last requests, sessions and flows that failed")
	f.StringVar(&pool, "pool", "", "with --failures: of this pool only")
	f.StringVar(&since, "since", "", "with --failures: only those younger than this, such as 10m, or later than this, such as 15:04")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// explained asks the running weir, or a plan.
func explained(cmd *cobra.Command, opt admin.ClientOptions, file string, q admin.Question) (admin.Explanation, error) {
	if file != "" {
		plan, err := config.Load(file)
		if err != nil {
			return admin.Explanation{}, err
		}
		return engine.ExplainPlan(plan, q)
	}
	client, err := admin.NewClient(opt)
	if err != nil {
		return admin.Explanation{}, err
	}
	defer client.Close()
	return client.Explain(cmd.Context(), q)
}

func explainFailures(cmd *cobra.Command, opt admin.ClientOptions, pool, since string, asJSON bool) error {
	p := page{w: cmd.OutOrStdout(), now: time.Now()}
	var err error
	if p.since, err = parseSince(since, p.now); err != nil {
		return err
	}
	client, err := admin.NewClient(opt)
	if err != nil {
		return err
	}
	defer client.Close()
	f, err := client.Failures(cmd.Context(), pool)
	if err != nil {
		return err
	}
	if !p.since.IsZero() {
		if err := youngFailures(&f, p.since); err != nil {
			return err
		}
	}
	if asJSON {
		return printJSON(cmd.OutOrStdout(), f)
	}
	p.failures(&f)
	return p.err
}
