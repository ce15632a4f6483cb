// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/demo"
	"github.com/weirlb/weir/internal/engine"
)

// demoBackends are the names of the demonstration's backends.
var demoBackends = []string{"alder", "birch", "cedar"}

func newDemo() *cobra.Command {
	var listen, adminAddr string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run three backends, the balancer and its page on loopback",
		Long:  "Runs three backends and a balancer over them in this process and says what to try. Ctrl-C ends it.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd, listen, adminAddr)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "address of the balancer")
	c.Flags().StringVar(&adminAddr, "admin", "127.0.0.1:9900", "address of the page and the admin API")
	return c
}

func runDemo(cmd *cobra.Command, listen, adminAddr string) error {
	signals := serverSignals() // of those that are not for a demo the log says so
	opt := config.ProxyOptions{
		Listen: listen, Admin: adminAddr, Balance: "p2c",
		HealthPath: "/readyz", HealthInterval: time.Second, Retries: 1,
	}
	var backends []*demo.Backend
	for _, name := range demoBackends {
		b, err := demo.NewBackend(demo.Options{Listen: "127.0.0.1:0", Name: name, IdleTimeout: 65 * time.Second, Controls: true})
		if err != nil {
			return err
		}
		backends = append(backends, b)
		opt.URLs = append(opt.URLs, "http://"+b.Addr())
	}
	plan, err := config.FromProxy(opt)
	if err != nil {
		return &usageError{err}
	}
	for i, b := range backends {
		plan.Pools[0].Backends[i].ID = b.Name() // easier to type than an address
	}
	plan.Log.Access.Off = true // the page shows more, and the three things to try stay in sight
	plan.Log.Level = "warn"
	plan.Shutdown = config.Shutdown{Deadline: time.Second}
	e, err := engine.New(plan, engine.Options{
		Stderr: cmd.ErrOrStderr(), Version: readBuildFacts().Version, Machine: engine.PrepareMachine(),
	})
	if err != nil {
		return err
	}
	done := make(chan error, len(backends))
	for _, b := range backends {
		go func() { done <- b.Run() }()
	}
	e.Start()
	printDemo(cmd.OutOrStdout(), e, plan.Pools[0].Name, backends)
	err = e.Run(signals)
	for _, b := range backends {
		b.Stop()
	}
	for range backends {
		err = errors.Join(err, <-done)
	}
	return err
}

// printDemo says what runs and exactly three things to try.
func printDemo(w io.Writer, e *engine.Engine, pool string, backends []*demo.Backend) {
	b := e.Bound()
	front, page := "http://"+b.Listeners[0].Addrs[0], "http://"+b.Admin
	self := selfCommand()
	flag := ""
	if b.Admin != "127.0.0.1:9900" {
		flag = " --admin " + b.Admin
	}
	fmt.Fprintf(w, `weir balances %s over %d backends. Live page: %s (Ctrl-C stops all)

Try, in another terminal:

1. Ask ten times and see who answers:
   for i in 1 2 3 4 5 6 7 8 9 10; do curl -s %s/; done

2. Break one backend, ask again (nobody notices), see why it gets nothing, and mend it:
   curl -s -X POST http://%s/break; sleep 5; %s status%s; curl -s -X POST http://%s/mend

3. Take another one out gently, and back:
   %s drain %s/%s --wait%s; %s status%s; %s enable %s/%s%s

`,
		front, len(backends), page, front,
		backends[0].Addr(), self, flag, backends[0].Addr(),
		self, pool, backends[1].Name(), flag, self, flag, self, pool, backends[1].Name(), flag)
}

// selfCommand is how this program can be called again from another terminal.
func selfCommand() string {
	exe, err := os.Executable()
	if err != nil {
		return "weir"
	}
	if !strings.Contains(exe, "go-build") {
		return exe
	}
	// `go run`: its binary is gone when this process is.
	if _, err := os.Stat("cmd/weir/main.go"); err != nil {
		return exe
	}
	return "go run ./cmd/weir"
}
