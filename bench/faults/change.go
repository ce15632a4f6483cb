// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// changes are what may happen to weir itself in the middle of a fault.
var changes = []struct{ name, what string }{
	{"reload", "; weir is reloaded in the middle"},
	{"upgrade", "; weir is upgraded in the middle"},
	{"restart", "; weir is restarted in the middle, with state_file"},
}

// changed returns the case again for each change, for weir alone. Those of the
// brief changes are part of -short.
func changed(c scase, brief ...string) []scase {
	var all []scase
	for _, ch := range changes {
		n := c
		n.name, n.what, n.change, n.subjects = c.name+"-"+ch.name, c.what+ch.what, ch.name, []string{"weir"}
		n.long = !slices.Contains(brief, ch.name)
		if ch.name == "restart" {
			n.extra = map[string]map[string]string{"weir": {}}
			for k, v := range c.extra["weir"] {
				n.extra["weir"][k] = v
			}
			n.extra["weir"]["top"] += "\nstate_file: state.json\nshutdown: {delay: none, deadline: 5s}"
		}
		all = append(all, n)
	}
	return all
}

// disturb does to weir what the case says, if anything, and holds it to what it
// knew before.
func (e *run) disturb() error {
	e.mark("change")
	if e.change == "" {
		return nil
	}
	if err := e.override(); err != nil {
		return err
	}
	before, err := e.know()
	if err == nil {
		err = e.disturbNow()
	}
	if err != nil {
		return err
	}
	return e.forgotten(before)
}

func (e *run) disturbNow() error {
	switch e.change {
	case "reload":
		defer e.sleep(300 * time.Millisecond)
		return e.subject.cmd.Process.Signal(syscall.SIGHUP)
	case "upgrade":
		return e.subject.cmd.Process.Signal(syscall.SIGUSR2)
	case "restart":
		// What is due while nobody listens cannot be answered, and is left out.
		e.gapFrom = time.Now()
		err := e.subject.restart()
		e.gapTo = time.Now()
		e.outcome.figure("restart", "s", e.gapTo.Sub(e.gapFrom).Seconds())
		return err
	}
	return fmt.Errorf("there is no change %q", e.change)
}

// undisturbed drops the samples that were due while weir was away.
func (e *run) undisturbed(all []sample) []sample {
	var some []sample
	for _, s := range all {
		if s.due.Before(e.gapFrom) || s.due.After(e.gapTo) {
			some = append(some, s)
		}
	}
	return some
}

// restart ends the process in order and starts it again, on the same addresses.
func (s *subject) restart() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.done:
	case <-time.After(8 * time.Second):
		return errors.New("it does not end")
	}
	if err := s.start(); err != nil {
		return err
	}
	return waitAddr(s.addr)
}

// gone says whether the process that was started last ends soon: after an
// upgrade another one has its work.
func (s *subject) gone() bool {
	select {
	case <-s.done:
		return true
	case <-time.After(20 * time.Second):
		return false
	}
}
