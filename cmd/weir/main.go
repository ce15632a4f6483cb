// SPDX-License-Identifier: Apache-2.0

// Command weir is the load balancer: flags, wiring and exit codes. What it
// does lives in the packages below internal.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/config"
)

// The exit codes of every command.
const (
	exitFine     = 0
	exitFailed   = 1
	exitWrongUse = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitFine
	}
	var use *usageError
	if errors.As(err, &use) {
		_, _ = fmt.Fprintf(stderr, "weir: %v\nSee '%s --help'.\n", err, cmd.CommandPath())
		return exitWrongUse
	}
	var faults *config.Errors
	switch {
	case errors.Is(err, errSaid):
	case errors.As(err, &faults): // each begins with its place
		_, _ = fmt.Fprintln(stderr, err)
	default:
		_, _ = fmt.Fprintf(stderr, "weir: %v\n", err)
	}
	return exitFailed
}

// usageError marks an error as wrong use of the command line (exit code 2).
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func wrongUse(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errSaid ends a command with exit code 1 after it has already printed why.
var errSaid = errors.New("failed")

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "weir",
		Short:         "weir is a load balancer",
		Long:          "weir balances HTTP requests, connections and datagrams over backends, checks their health, and drains them without\nlosing a request.\nStart with 'weir demo', or 'weir proxy URL...' for a balancer without a file.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return wrongUse("unknown command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.Version = readBuildFacts().String() // --version and -v say what `weir version` does
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(
		newRun(), newProxy(), newBackend(), newDemo(), newCheck(),
		newStatus(), newSessions(), newTop(), newAdminWord("drain"), newAdminWord("enable"), newAdminWord("disable"), newWeight(), newAdd(), newRemove(),
		newSim(), newVersion(), newReload(), newUpgrade(), newExplain(), newEvents(), newDebug(), newDoctor(),
	)
	markUse(root)
	return root
}

// markUse turns every complaint of cobra about flags and arguments into a
// usageError, for all commands below c.
func markUse(c *cobra.Command) {
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				var use *usageError
				if errors.As(err, &use) {
					return err
				}
				return &usageError{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		markUse(sub)
	}
}

// stopSignals delivers SIGTERM and SIGINT. It also makes a closed standard
// output an error of the write instead of the end of the process: a balancer
// must not die because whoever read its log went away.
func stopSignals() <-chan os.Signal {
	signal.Ignore(syscall.SIGPIPE)
	c := make(chan os.Signal, 4)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	return c
}

// serverSignals is stopSignals with those that engine.Run understands beside.
// Of these each kind waits by itself, at most once, since what comes again
// before it is done is done with it: a storm of reloads leaves no signal to stop
// without a place, and lets it wait for no more than the one under way.
func serverSignals() <-chan os.Signal {
	stop := stopSignals()
	one := func(s os.Signal) <-chan os.Signal {
		c := make(chan os.Signal, 1)
		signal.Notify(c, s)
		return c
	}
	reload, reopen, upgrade := one(syscall.SIGHUP), one(syscall.SIGUSR1), one(syscall.SIGUSR2)
	out := make(chan os.Signal)
	go func() {
		for s := os.Signal(nil); ; {
			select {
			case s = <-stop:
				out <- s
				continue
			case s = <-reload:
			case s = <-reopen:
			case s = <-upgrade:
			}
			select {
			case out <- s:
			case s = <-stop: // whatever else was wanted ends with the process
				out <- s
			}
		}
	}()
	return out
}
