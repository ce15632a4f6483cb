// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// role is set in the environment of child processes.
const role = "WEIR_FAULTS_ROLE"

// suite returns all scenarios, in the order of the page.
func suite() []*scenario {
	return []*scenario{broken(), half(), blip(), spiral(), flapping(), storm(), deploy(), slow(), idle(), fleet()}
}

type options struct {
	scenarios, only string
	short, list     bool
	parallel, cases int
	out, page, logs string
}

func main() {
	if os.Getenv(role) == "backend" {
		if err := backendMain(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "backend:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.scenarios, "scenario", "", "names of scenarios or of cases (scenario/case), separated by commas; all without it")
	flag.StringVar(&o.only, "only", "", "balancers, separated by commas: weir, nginx, haproxy; all without it")
	flag.BoolVar(&o.short, "short", false, "leave out what takes long")
	flag.BoolVar(&o.list, "list", false, "list scenarios and cases")
	flag.IntVar(&o.parallel, "parallel", 3, "balancers of one case that run at the same time")
	flag.IntVar(&o.cases, "cases", 1, "cases that run at the same time; more than one only to see that promises hold")
	flag.StringVar(&o.out, "out", "", "save results under this name with .txt and .json")
	flag.StringVar(&o.logs, "logs", "", "keep what the balancers write in this folder")
	flag.StringVar(&o.page, "page", "", "check or write: hold docs/resilience.md to the saved results, or write its tables, and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

var errBroken = errors.New("weir broke a promise")

func (o *options) run(ctx context.Context, w io.Writer) error {
	if o.page != "" {
		return page(o.page == "write")
	}
	if o.list {
		for _, sc := range suite() {
			for _, c := range sc.cases {
				fmt.Fprintf(w, "%-28s %s\n", sc.name+"/"+c.name, c.what)
			}
		}
		return nil
	}
	rep := newReport(o.short)
	var err error
	if rep.Outcomes, err = o.execute(ctx, w); err != nil {
		return err
	}
	if len(rep.Outcomes) == 0 {
		return fmt.Errorf("nothing is called %q for %q: -list shows what there is", o.scenarios, o.only)
	}
	rep.finish()
	if o.out != "" {
		if err := rep.save(o.out); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(rep.Outcomes, func(x *outcome) bool { return x.Subject == "weir" && !x.holds() }) {
		return errBroken
	}
	return nil
}

// job is one case to be run, and what came of it.
type job struct {
	sc   *scenario
	c    *scase
	some []*outcome
	err  error
}

// execute runs the chosen cases in order, so many at a time, and prints each as
// it ends; those that are compared with each other at the end of all.
func (o *options) execute(ctx context.Context, w io.Writer) ([]*outcome, error) {
	jobs := o.choose()
	todo := make(chan *job, len(jobs))
	for _, j := range jobs {
		todo <- j
	}
	close(todo)
	var mu sync.Mutex // of w
	var wg sync.WaitGroup
	for range max(1, o.cases) {
		wg.Go(func() {
			for j := range todo {
				begin := time.Now()
				if j.err = ctx.Err(); j.err == nil {
					j.some, j.err = o.beside(ctx, j.sc, j.c)
				}
				if j.err == nil && j.sc.after == nil {
					mu.Lock()
					show(w, j.some, time.Since(begin))
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	o.again(ctx, w, jobs)
	var all []*outcome
	compared := map[*scenario][]*outcome{}
	for _, j := range jobs {
		if j.err != nil {
			return nil, j.err
		}
		all = append(all, j.some...)
		compared[j.sc] = append(compared[j.sc], j.some...)
	}
	for sc, some := range compared {
		if sc.after != nil {
			sc.after(some)
			show(w, some, 0)
		}
	}
	return all, nil
}

// tooLate is the lateness of the client (p99) from which on a broken promise may be
// the doing of a machine that runs too much at once.
const tooLate = 50 // ms

// again runs those alone that broke a promise beside others, on a machine that had
// no time for the client itself. Once: what is broken then is broken.
func (o *options) again(ctx context.Context, w io.Writer, jobs []*job) {
	if o.cases <= 1 {
		return
	}
	for _, j := range jobs {
		broken := slices.ContainsFunc(j.some, func(x *outcome) bool { return x.Subject == "weir" && !x.holds() && x.Late > tooLate })
		if j.err != nil || j.sc.after != nil || !broken {
			continue
		}
		fmt.Fprintf(w, "%s/%s once more, alone: the client was late\n", j.sc.name, j.c.name)
		begin := time.Now()
		j.some, j.err = o.beside(ctx, j.sc, j.c)
		if j.err == nil {
			show(w, j.some, time.Since(begin))
		}
	}
}

// choose returns the cases that are to be run.
func (o *options) choose() (jobs []*job) {
	for _, sc := range suite() {
		for i := range sc.cases {
			if o.chosen(sc, &sc.cases[i]) {
				jobs = append(jobs, &job{sc: sc, c: &sc.cases[i]})
			}
		}
	}
	return jobs
}

func show(w io.Writer, some []*outcome, d time.Duration) {
	for _, x := range some {
		x.print(w, d)
	}
}

func (o *options) chosen(sc *scenario, c *scase) bool {
	if o.short && c.long {
		return false
	}
	names := strings.Split(o.scenarios, ",")
	return o.scenarios == "" || slices.Contains(names, sc.name) || slices.Contains(names, sc.name+"/"+c.name)
}

// beside runs a case before all its subjects at the same time.
func (o *options) beside(ctx context.Context, sc *scenario, c *scase) ([]*outcome, error) {
	subjects := c.subjects
	if subjects == nil {
		subjects = []string{"weir", "nginx", "haproxy"}
	}
	if o.only != "" {
		subjects = slices.DeleteFunc(slices.Clone(subjects), func(s string) bool { return !slices.Contains(strings.Split(o.only, ","), s) })
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(1, o.parallel))
	results, errs := make([]*outcome, len(subjects)), make([]error, len(subjects))
	for i, name := range subjects {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i], errs[i] = c.execute(ctx, sc, name, o)
		})
	}
	wg.Wait()
	return results, errors.Join(errs...)
}
