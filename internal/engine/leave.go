// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"os"
	"time"

	"github.com/weirlb/weir/internal/handover"
)

const (
	// leaveSpread is over how long idle client connections are closed after a
	// successor took over: their clients come back to it, and not all at once.
	leaveSpread = 5 * time.Second
	// reportEvery is how often the successor hears how far the drain is.
	reportEvery = time.Second
)

// departure is the drain of a process whose successor serves. It belongs to
// the goroutine of Run.
type departure struct {
	e         *Engine
	s         *handover.Successor
	signals   <-chan os.Signal
	words     <-chan handover.Word // nil: nothing more will be said
	deadline  time.Time
	stopped   bool // accepting has ended for good
	signalled bool // once
	hurried   bool
	cut       bool // what is left is not waited for
}

// leave drains after a successor took over, and returns when nothing is left:
// this process then ends. For the first seconds it only rests: if the successor
// dies then, it serves again, and back is true. stop says that this process was
// told to stop meanwhile.
func (e *Engine) leave(s *handover.Successor, signals <-chan os.Signal, stop bool) (back bool, err error) {
	begin := time.Now()
	plan := e.gen.Load().Plan
	d := &departure{e: e, s: s, signals: signals, words: s.Words(), deadline: begin.Add(plan.Upgrade.Deadline)}
	e.log.Info("draining after an upgrade", "deadline", plan.Upgrade.Deadline, "connections", e.front.connections())
	if trial := e.trial(); plan.Upgrade.Deadline < trial && !stop {
		// To be able to serve again is worth more than to be gone in time: a successor
		// that dies alone is an outage.
		d.deadline = begin.Add(trial)
		e.log.Warn("upgrade.deadline is shorter than the time for which this process can serve again if the new one dies: what is left then is cut after that time",
			"deadline", plan.Upgrade.Deadline, "cut_after", trial)
	}
	e.front.drain(leaveSpread)
	if stop {
		d.signal("told to stop")
	} else if d.rest() {
		e.takeBack(s)
		return true, nil
	}
	e.front.flows.Abandon() // the successor has them for good
	e.front.stop()
	e.ops.release()
	if e.front.connections() == 0 {
		e.front.drain(0) // nobody is left to spread
	}
	d.stopped = true
	connections := 0
	if !d.wait() {
		connections = e.front.cut()
	}
	err = e.Close()
	if requests := e.front.cutCount(); connections > 0 || requests > 0 {
		e.log.Warn("cut at the end of the drain", "requests_and_tunnels", requests, "busy_connections", connections)
	}
	e.sayTunnels()
	e.log.Info("stopped", "took", time.Since(begin).Round(time.Millisecond))
	s.Leave()
	return false, err
}

// trial is for how long a process that has handed over can serve again.
func (e *Engine) trial() time.Duration {
	if t := e.opt.Upgrade.Trial; t > 0 {
		return t
	}
	return defaultTrial
}

// rest waits until the successor has proved itself, and reports whether it died
// instead.
func (d *departure) rest() (died bool) {
	over := time.NewTimer(d.e.trial())
	defer over.Stop()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	d.report()
	for {
		select {
		case <-over.C:
			return false
		case <-tick.C:
			d.report()
		case w, ok := <-d.words:
			if !ok {
				return true
			}
			if w == handover.Stopping {
				d.hurry("the new process stops")
			}
			if w == handover.Stopping || w == handover.Settled {
				return false
			}
		case s := <-d.signals:
			if !d.e.upkeep(s) {
				d.signal(s.String())
				return false
			}
		}
	}
}

// wait waits for the last connection and reports whether it ended by itself.
// Tunnels are ended spread over the last seconds before the deadline.
func (d *departure) wait() bool {
	empty := d.e.front.empty()
	d.report()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	spread := d.e.gen.Load().Plan.Shutdown.Spread
	hurry, cut := make(chan struct{}), make(chan struct{})
	cutting := false
	defer func() {
		close(hurry)
		if cutting {
			<-cut
		}
	}()
	for !d.cut {
		left := time.Until(d.deadline)
		switch {
		case left <= 0:
			return false
		case left <= spread && !cutting:
			cutting = true
			go func() {
				defer close(cut)
				d.e.front.endTunnels(left, hurry)
			}()
		}
		if !cutting {
			left -= spread
		}
		next.Reset(left)
		select {
		case <-empty:
			return true
		case <-next.C:
		case <-tick.C:
			d.report()
		case w, ok := <-d.words:
			if !ok {
				d.words = nil // it has ended, and what begins now is not ours
			} else if w == handover.Stopping {
				d.hurry("the new process stops")
			}
		case s := <-d.signals:
			if !d.e.upkeep(s) {
				d.signal(s.String())
			}
		}
	}
	return false
}

// signal makes the drain hurry; a second one ends it. What the successor says is
// not counted: a service manager that stops the service may signal both.
func (d *departure) signal(what string) {
	if d.signalled {
		d.e.log.Info("the drain is ended", "cause", what)
		d.cut = true
		return
	}
	d.signalled = true
	d.hurry(what)
}

// hurry shortens the drain to that of a process that stops.
func (d *departure) hurry(why string) {
	e := d.e
	if d.hurried {
		return
	}
	e.log.Info("hurrying", "cause", why)
	d.hurried = true
	if !d.stopped { // afterwards the spread is nearly over, and the end of it is waited for
		e.front.drain(0) // idle connections need none any more
	}
	if by := time.Now().Add(e.gen.Load().Plan.Shutdown.Deadline); by.Before(d.deadline) {
		d.deadline = by
	}
	e.tellPredecessor(handover.Stopping) // if there is still one before this one
}

func (d *departure) report() {
	n := d.e.front.connections()
	// Who does not listen does not miss it.
	_ = d.s.Report(handover.Report{Connections: n})
}

// takeBack makes this process serve again after its successor died.
func (e *Engine) takeBack(s *handover.Successor) {
	e.opt.Sockets.Return() // first: clients wait
	e.front.undrain()
	s.Kill() // it may have closed the pair and gone on
	e.front.flows.TakeBack()
	e.opt.Sockets.Recall()
	e.mu.Lock()
	e.state.Store(phaseServing)
	e.upgrade.mu.Lock()
	e.upgrade.successor = nil
	e.upgrade.mu.Unlock()
	e.upgrade.stop(nil)
	e.ops.back()
	e.notify.takeBack()
	e.mu.Unlock()
	e.metrics.Upgrade("taken_back")
	e.log.Error("the new process has ended: this one serves again", "new_pid", s.PID(), "how", s.How())
	e.events.add(Event{At: time.Now(), Kind: "upgrade", Text: fmt.Sprintf("process %d has ended (%s): process %d serves again", s.PID(), s.How(), os.Getpid())})
}
