// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// scenario is a family of faults with one promise.
type scenario struct {
	name    string
	title   string // what happens, in a sentence
	promise string // what weir promises, in a sentence
	cases   []scase
	after   func(all []*outcome) // checks that compare cases; nil: none
}

// scase is one timeline, run before each of its subjects.
type scase struct {
	name     string
	what     string   // in a few words, for the table
	subjects []string // those that can do it; nil: all three
	backends int      // of the fleet; 0: 3
	backups  int
	settings string // of the backends
	extra    map[string]map[string]string
	long     bool   // left out of -short
	change   string // of weir itself, in the middle; "": none
	run      func(e *run) error
}

// run is one case before one subject.
type run struct {
	*scase
	ctx     context.Context
	short   bool
	dir     string
	subject *subject
	fleet   []*backend
	backups []*backend
	watch   *watch
	loads   []*load
	began   time.Time
	marks   []mark
	gapFrom time.Time // weir was away from here
	gapTo   time.Time // to here
	outcome *outcome
}

// mark is an instant of the timeline with its name.
type mark struct {
	name string
	at   time.Time
}

// execute runs a case before one subject, and returns what became of it.
func (c *scase) execute(ctx context.Context, sc *scenario, name string, o *options) (*outcome, error) {
	dir, err := os.MkdirTemp("", "weir-faults-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	e := &run{scase: c, ctx: ctx, short: o.short, dir: dir}
	e.outcome = &outcome{Scenario: sc.name, Case: c.name, Subject: name}
	defer e.close(o.logs)
	n := c.backends
	if n == 0 {
		n = 3
	}
	for i := range n + c.backups {
		b, err := newBackend(dir, fmt.Sprintf("b%d", i+1), c.settings)
		if err != nil {
			return nil, err
		}
		if i < n {
			e.fleet = append(e.fleet, b)
		} else {
			e.backups = append(e.backups, b)
		}
	}
	if e.subject, err = startSubject(name, dir, settings{Backends: e.fleet, Backups: e.backups, Extra: c.extra[name]}); err != nil {
		return nil, err
	}
	e.watch = startWatch(e.subject)
	e.sleep(2 * time.Second) // first probes
	e.watch.settled(n+c.backups, 10*time.Second)
	e.began = time.Now()
	if err := c.run(e); err != nil {
		return nil, fmt.Errorf("%s, %s, %s: %w", sc.name, c.name, name, err)
	}
	if c.change == "upgrade" {
		gone := 0.0
		if e.subject.gone() {
			gone = 1
		}
		e.outcome.atLeast("predecessors gone at the end", gone, 1)
	}
	return e.outcome, ctx.Err()
}

// close ends everything, and keeps what the balancer wrote where that is wanted.
func (e *run) close(logs string) {
	for _, l := range e.loads {
		l.end()
	}
	if e.watch != nil {
		e.watch.stop()
	}
	if e.subject != nil {
		e.subject.stop()
		if logs != "" {
			file := filepath.Join(logs, e.outcome.Scenario+"-"+e.outcome.Case+"-"+e.subject.name+".log")
			_ = os.WriteFile(file, e.subject.said(), 0o644)
		}
	}
	for _, b := range append(e.fleet, e.backups...) {
		b.kill()
	}
}

// sleep waits; a cancelled run does not.
func (e *run) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-e.ctx.Done():
	}
}

// pass waits for d, or for little in a short run.
func (e *run) pass(d, little time.Duration) {
	if e.short {
		d = little
	}
	e.sleep(d)
}

// send starts a load; each has a seed, and so ids, of its own.
func (e *run) send(l *load) *load {
	if l.addr == "" {
		l.addr = e.subject.addr
	}
	l.seed = uint64(len(e.loads) + 1)
	e.loads = append(e.loads, l)
	l.start()
	return l
}

// all tells every backend of the fleet the same.
func (e *run) all(command string) error {
	var errs []error
	for _, b := range e.fleet {
		errs = append(errs, b.tell(command))
	}
	return errors.Join(errs...)
}

// mark names this instant.
func (e *run) mark(name string) {
	e.marks = append(e.marks, mark{name, time.Now()})
}

func (e *run) when(name string) time.Time {
	for _, m := range e.marks {
		if m.name == name {
			return m.at
		}
	}
	return time.Time{}
}

// ledger reads what all backends, or those given, wrote down since the case began.
func (e *run) ledger(of ...*backend) ([]entry, error) {
	if of == nil {
		of = append(append(of, e.fleet...), e.backups...)
	}
	var all []entry
	for _, b := range of {
		some, err := readLedger(filepath.Join(e.dir, b.name+".ledger"))
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}
