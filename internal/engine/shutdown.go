// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/handover"
)

// Run serves until a signal asks for the end, and returns when the balancer
// has stopped. SIGTERM drains in full, SIGINT skips the delay. Each further
// one skips one step: first the delay, then the wait for what is in flight and
// for tunnels that are being cut.
// SIGHUP and SIGUSR1 are for upkeep, and end nothing. SIGUSR2 starts an upgrade;
// after one Run returns when this process, which no longer serves, has drained.
// A signal to stop that comes during an upgrade ends it, and the process that was
// to take over; once that serves, it makes this one hurry.
func (e *Engine) Run(signals <-chan os.Signal) error {
	first := os.Signal(nil)
	for first == nil {
		select {
		case s := <-e.upgrade.done:
			if back, err := e.leave(s, signals, false); !back {
				return err
			}
		case s := <-signals:
			if !e.upkeep(s) {
				first = s
			}
		}
	}
	e.log.Info("signal received", "signal", first.String())
	e.abortUpgrade(ErrStopping)
	select {
	case s := <-e.upgrade.done: // it was faster: the end of this process is near anyway
		_, err := e.leave(s, signals, true)
		return err
	default:
	}
	steps := make(chan struct{}, 2)
	if first != syscall.SIGTERM {
		steps <- struct{}{}
	}
	over := make(chan struct{})
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		for {
			select {
			case s := <-signals:
				if e.upkeep(s) {
					continue
				}
				e.log.Info("signal received, hurrying", "signal", s.String())
				select {
				case steps <- struct{}{}:
				default: // there is nothing left to skip
				}
			case <-over:
				return
			}
		}
	}()
	err := e.Shutdown(steps)
	close(over)
	<-forwarded
	return err
}

// upkeep does what a signal asks of a process that goes on, and reports whether
// it was such a signal. Operators and log rotation send them to every daemon,
// so what this version does not do yet is said instead of dying from it.
func (e *Engine) upkeep(s os.Signal) bool {
	switch s {
	case syscall.SIGHUP:
		e.reloadSaid("SIGHUP")
	case syscall.SIGUSR1:
	case syscall.SIGUSR2:
		go func() { _, _ = e.Upgrade(context.Background(), "") }() // it says in the log what came of it
		return true
	default:
		return false
	}
	if any, err := e.logs.reopen(); err != nil {
		e.log.Error("the access log could not be opened again: the old file stays in use", "error", err)
	} else if any {
		e.log.Info("access log opened again", "signal", s.String())
	}
	return true
}

// Shutdown drains in order (S7): readiness fails at once while accepting goes
// on for the delay, every answer says Connection: close and idle client
// connections are closed spread over the delay; then accepting stops, what is
// in flight finishes; tunnels are ended spread over the last seconds before the
// deadline, and what is left then is cut and counted in the log. Each value
// received from skip ends the current wait early; one that is there at the
// beginning leaves the delay out. It returns when everything
// has stopped.
func (e *Engine) Shutdown(skip <-chan struct{}) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.state.Store(phaseDraining)
	e.notify.end(e.statusLocked(), endMargin)
	e.mu.Unlock()

	plan := e.gen.Load().Plan
	begin := time.Now()
	delay, deadline := plan.Shutdown.Delay, plan.Shutdown.Deadline
	select {
	case <-skip: // as with SIGINT: there is none to begin with
		delay = 0
	default:
	}
	e.log.Info("draining", "delay", delay, "deadline", deadline)
	e.events.add(Event{At: begin, Kind: "draining", Text: "draining"})

	e.tellPredecessor(handover.Stopping)
	e.front.drain(delay)
	if delay > 0 {
		waitFor(delay, skip, nil)
	}
	e.front.stop()
	e.front.drain(0)
	e.log.Info("accepting stopped", "connections", e.front.connections())

	empty := e.front.empty()
	connections := 0
	if !e.waitEmpty(begin, deadline, skip, empty) {
		connections = e.front.cut()
	}
	err := e.Close()
	if requests := e.front.cutCount(); connections > 0 || requests > 0 {
		e.log.Warn("cut at the end of the drain", "requests_and_tunnels", requests, "busy_connections", connections)
	}
	e.sayTunnels()
	e.log.Info("stopped", "took", time.Since(begin).Round(time.Millisecond))
	return err
}

// waitEmpty waits for the last connection and reports whether it ended by
// itself. deadline runs from begin; 0 is none.
func (e *Engine) waitEmpty(begin time.Time, deadline time.Duration, skip <-chan struct{}, empty <-chan struct{}) bool {
	if deadline <= 0 {
		return waitFor(-1, skip, empty) == endedByEvent
	}
	left := deadline - time.Since(begin)
	spread := min(e.gen.Load().Plan.Shutdown.Spread, left)
	switch waitFor(left-spread, skip, empty) {
	case endedByEvent:
		return true
	case endedBySkip:
		return false
	}
	hurry, cut := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(cut)
		e.front.endTunnels(spread, hurry)
	}()
	how := waitFor(max(deadline-time.Since(begin), 0), skip, empty)
	close(hurry)
	<-cut
	return how == endedByEvent
}

// What ended a wait.
type ended uint8

const (
	endedByTime ended = iota
	endedBySkip
	endedByEvent
)

// waitFor waits for d (negative: without end), a value from skip, or event. An
// event that has happened already wins.
func waitFor(d time.Duration, skip <-chan struct{}, event <-chan struct{}) ended {
	select {
	case <-event:
		return endedByEvent
	default:
	}
	var expired <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-event:
		return endedByEvent
	case <-skip:
		return endedBySkip
	case <-expired:
		return endedByTime
	}
}
