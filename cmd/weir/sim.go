// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/sim"
)

// simFlags are what `weir sim` was told.
type simFlags struct {
	list          bool
	asJSON, asCSV bool
	ascii         bool
	policies      []string
	load          string
	opt           sim.Options
	file, fleet   string
	pool          string
}

const simLong = `Runs the balancing, health, retry and limit code of weir in virtual time against servers and clients that are made up.
The same seed gives the same output, byte for byte.

A SCENARIO tells one story about a fleet; 'weir sim --list' has them all, 'weir sim --list SCENARIO' says what one shows.
With -c, a pool of that configuration is run against the fleet that --fleet describes; without --fleet, against one of
healthy servers that answer in 50 ms at 70 % load. docs/simulator.md has the keys of a fleet.`

func newSim() *cobra.Command {
	var f simFlags
	c := &cobra.Command{
		Use:   "sim [SCENARIO]",
		Short: "Play out scenarios, or a configuration against a fleet, in virtual time",
		Long:  simLong,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSim(cmd, args, &f)
		},
	}
	flags := c.Flags()
	flags.BoolVar(&f.list, "list", false, "list the scenarios, or say what SCENARIO shows")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	flags.BoolVar(&f.asCSV, "csv", false, "print CSV: one record per figure, point of a line, and event")
	flags.BoolVar(&f.ascii, "ascii", false, "draw charts without Unicode (default: when the locale is not UTF-8)")
	flags.StringSliceVar(&f.policies, "policy", nil, "balance policies to run, with commas between (default: the scenario's)")
	flags.Uint64Var(&f.opt.Seed, "seed", 1, "of all chance")
	flags.IntVar(&f.opt.Seeds, "seeds", 1, "runs with seeds counted up from --seed; figures become medians with a 5-95 % band")
	flags.IntVar(&f.opt.Requests, "requests", 0, "how many arrive (default: the scenario's)")
	flags.DurationVar(&f.opt.Duration, "duration", 0, "for how long they arrive, in virtual time (default: the scenario's or the fleet's)")
	flags.IntVar(&f.opt.Backends, "backends", 0, "how many serve (default: the scenario's)")
	flags.StringVar(&f.load, "load", "", "part of their capacity that is asked for, such as 70% (default: the scenario's)")
	flags.StringVarP(&f.file, "config", "c", "", "configuration file or folder whose pool is run")
	flags.StringVar(&f.fleet, "fleet", "", "file that describes servers, clients and what happens")
	flags.StringVar(&f.pool, "pool", "", "which pool of the configuration (default: the fleet's, or the only one)")
	return c
}

func runSim(cmd *cobra.Command, args []string, f *simFlags) error {
	if f.asJSON && f.asCSV {
		return wrongUse("--json and --csv: keep one of them")
	}
	if err := f.read(cmd); err != nil {
		return err
	}
	switch {
	case f.file != "" && (len(args) > 0 || f.list):
		return wrongUse("a scenario or a configuration (-c), not both")
	case f.file == "" && (f.fleet != "" || f.pool != ""):
		return wrongUse("--fleet and --pool are for a configuration: weir sim -c weir.yaml --fleet fleet.yaml")
	case f.file != "":
		return simConfig(cmd, f)
	case len(args) == 0:
		if cmd.Flags().NFlag() == 0 || f.list {
			return listScenarios(cmd.OutOrStdout(), f.asJSON)
		}
		return wrongUse("no scenario: 'weir sim --list' has them all, for example: weir sim race")
	}
	s := sim.Find(args[0])
	if s == nil {
		return unknownScenario(args[0])
	}
	if f.list {
		return explainScenario(cmd.OutOrStdout(), s)
	}
	if err := s.Check(f.opt); err != nil {
		return &usageError{err}
	}
	return f.print(cmd.OutOrStdout(), s.Run(f.opt))
}

// read turns what was written into options.
func (f *simFlags) read(cmd *cobra.Command) error {
	f.opt.Each = eachAtOnce
	if f.load != "" {
		number, ok := strings.CutSuffix(f.load, "%")
		percent, err := strconv.ParseFloat(number, 64)
		if !ok || err != nil || !(percent > 0 && percent < 1e9) { // NaN is not
			return wrongUse("--load: %q is not a share: write it like 70%%", f.load)
		}
		f.opt.Load = percent / 100
	}
	f.opt.Policies = f.policies
	for _, flag := range []string{"seed", "seeds", "requests", "duration", "backends"} {
		if v := cmd.Flags().Lookup(flag); v.Changed && strings.TrimSuffix(v.Value.String(), "s") == "0" {
			return wrongUse("--%s: 0 is too small", flag)
		}
	}
	if !f.ascii {
		f.ascii = !speaksUTF8(os.Getenv)
	}
	return nil
}

// speaksUTF8 reads the locale as setlocale(3) does.
func speaksUTF8(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(env(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// eachAtOnce spreads independent runs over the processors.
func eachAtOnce(n int, do func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				do(int(i - 1))
			}
		})
	}
	workers.Wait()
}

func (f *simFlags) print(w io.Writer, reports ...*sim.Report) error {
	switch {
	case f.asJSON:
		return sim.WriteJSON(w, reports)
	case f.asCSV:
		return sim.WriteCSV(w, reports)
	}
	for i, r := range reports {
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		if err := r.WriteText(w, sim.TextOptions{ASCII: f.ascii}); err != nil {
			return err
		}
	}
	return nil
}

func listScenarios(w io.Writer, asJSON bool) error {
	all := sim.Scenarios()
	if asJSON {
		type entry struct {
			Name  string   `json:"name"`
			Title string   `json:"title"`
			Doc   []string `json:"doc"`
		}
		out := []entry{}
		for _, s := range all {
			out = append(out, entry{s.Name, s.Title, s.Doc})
		}
		return printJSON(w, out)
	}
	for _, s := range all {
		_, _ = fmt.Fprintf(w, "%-15s %s\n", s.Name, s.Title)
	}
	_, err := fmt.Fprintln(w, "\n'weir sim SCENARIO' runs one, 'weir sim --list SCENARIO' says what it shows,\n'weir sim -c weir.yaml --fleet fleet.yaml' runs your configuration.")
	return err
}

func explainScenario(w io.Writer, s *sim.Scenario) error {
	return s.WriteDoc(w, 80)
}

// unknownScenario names the scenario that was probably meant.
func unknownScenario(word string) error {
	var names []string
	for _, s := range sim.Scenarios() {
		names = append(names, s.Name)
	}
	if near := config.Nearest(word, names); near != "" {
		return wrongUse("unknown scenario %q: did you mean %s? 'weir sim --list' has them all", word, near)
	}
	return wrongUse("unknown scenario %q: use one of %s", word, strings.Join(names, ", "))
}
