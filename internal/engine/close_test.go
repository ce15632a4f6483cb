// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestCloseWithoutDisk: a state file whose disk does not answer in the midst of a write
// does not keep the process from ending.
func TestCloseWithoutDisk(t *testing.T) {
	text, _, _ := fileRig(t)
	r := build(t, text)
	r.patience = 20 * time.Millisecond
	r.states.mu.Lock() // as a write holds it
	r.Start()
	eventually(t, "a write is under way", func() bool {
		b := make([]byte, 1<<20)
		return strings.Contains(string(b[:runtime.Stack(b, true)]), "(*stateFile).write(")
	})
	closes(t, r)
	r.states.mu.Unlock()
	r.retirer.Wait()
	eventually(t, "the last write is over, too", func() bool { return r.states.written.Load() == 2 }) // before the folder is removed
	if log := r.log.String(); !strings.Contains(log, "what was learned last is lost") || !strings.Contains(log, "does not end") {
		t.Error("the log does not say so")
	}
}

// TestCloseOutlastsOne: a connection that does not end although it was cut does not keep
// the process from ending, and is told of as a defect.
func TestCloseOutlastsOne(t *testing.T) {
	text, _, _ := fileRig(t)
	r := build(t, text)
	r.ending = 20 * time.Millisecond
	r.Start()
	stays := make(chan struct{})
	r.Engine.front.reapers.Go(func() { <-stays })
	closes(t, r)
	if log := r.log.String(); !strings.Contains(log, "do not end") {
		t.Error("the log does not say so")
	}
	close(stays)
	r.Engine.front.reapers.Wait()
	r.Engine.front.relay.Close()
	r.Engine.front.flows.Close()
	if err := r.Engine.front.parker.Close(); err != nil {
		t.Error(err)
	}
}

// closes checks that an engine ends in time, and in order.
func closes(t *testing.T, r *running) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Error("it does not end")
	}
}
