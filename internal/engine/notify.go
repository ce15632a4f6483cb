// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/weirlb/weir/internal/systemd"
)

// notifier tells the service manager what the process does. Where nobody
// listens every method does nothing. It is safe for concurrent use.
type notifier struct {
	send func(string) // Options.Notify; constant

	mu       sync.Mutex // held while something is said, so that it arrives in order
	stopping bool       // nothing but the end is told of any more
	away     bool       // another process is the service now
	status   string     // said last
}

// say sends lines, and the status if it differs from the one said last.
// Called under mu.
func (n *notifier) say(status string, lines ...string) {
	if status != "" && status != n.status {
		n.status = status
		lines = append(lines, systemd.Status(status))
	}
	if len(lines) > 0 && !n.away {
		n.send(strings.Join(lines, "\n"))
	}
}

// tell is say for a process that serves: after the end has begun it is silent.
func (n *notifier) tell(status string, lines ...string) {
	if n.send == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.stopping {
		n.say(status, lines...)
	}
}

// ready says that the start, or a reload, is over.
func (n *notifier) ready(status string) { n.tell(status, systemd.Ready) }

// reloading says that a reload begins; ready ends it, whatever came of it.
func (n *notifier) reloading() { n.tell("", systemd.Reloading, systemd.MonotonicTime()) }

// alive says that the process lives, and how it is.
func (n *notifier) alive(status string) { n.tell(status, systemd.Watchdog) }

// end says that the process ends, and asks for the time that this takes. It is
// repeated while it takes, so that a process that hangs in it is noticed.
func (n *notifier) end(status string, atMost time.Duration) {
	if n.send == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := []string{systemd.ExtendTimeout(atMost)}
	if !n.stopping {
		n.stopping = true
		lines = append(lines, systemd.Stopping)
	}
	n.say(status, lines...)
}

// handOver says that another process is the service from now on. What this one
// does is no longer of interest, its end in particular.
func (n *notifier) handOver(pid int) {
	if n.send == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// The sign of life gives the other one a whole interval for its own first.
	n.say("", systemd.MainPID(pid), systemd.Watchdog)
	n.away = true
}

// takeBack undoes handOver: the other process is gone. The manager must accept
// messages from processes other than the main one (NotifyAccess=all).
func (n *notifier) takeBack() {
	if n.send == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = false
	n.say("", systemd.MainPID(os.Getpid()), systemd.Watchdog)
}

const (
	statusEvery = 10 * time.Second // how often the manager is told how it is, if that changed
	endMargin   = 30 * time.Second // how long a drain may be silent; well above statusEvery
)

// lifeEvery is how often signs of life are given: four times in the interval, so
// that one which is late or lost does not matter.
func lifeEvery(watchdog time.Duration) time.Duration {
	if watchdog <= 0 {
		return statusEvery
	}
	return min(statusEvery, max(watchdog/4, time.Millisecond))
}

// live tells the service manager how the process is until it ends.
func (e *Engine) live() {
	t := time.NewTicker(lifeEvery(e.opt.Watchdog))
	defer t.Stop()
	stalled := false
	for {
		select {
		case <-e.quit:
			return
		case <-t.C:
			stalled = e.sign(stalled)
		}
	}
}

// sign says how the process is. It is a sign of life only when the process has
// shown since the previous one that it can do its work: the engine's lock was
// free, without which nothing can be changed, asked or stopped, and on no socket
// did clients wait whom nobody has accepted in all that time. A process that is at
// its ceilings, out of descriptors, or whose backends are all broken lives: a
// restart would mend none of this. It returns whether somebody is not accepted,
// and gets what it returned last.
func (e *Engine) sign(before bool) (stalled bool) {
	status := e.statusLine() // waits for the lock
	if e.state.Load() == phaseDraining {
		e.notify.end(status, endMargin)
		return before
	}
	sockets := e.opt.Sockets.Stalled()
	if len(sockets) == 0 {
		e.notify.alive(status)
		return false
	}
	if !before {
		e.log.Error("clients wait and nobody accepts them: the watchdog gets no sign of life", "sockets", sockets)
	}
	e.notify.tell(status)
	return true
}

// tellReload tells the service manager that a reload begins; what it returns
// tells that it is over and is called without the lock.
func (e *Engine) tellReload(dryRun bool) func() {
	if dryRun || e.opt.Notify == nil {
		return func() {}
	}
	e.notify.reloading()
	return func() { e.notify.ready(e.statusLine()) }
}

// statusLine is what an operator sees of the process in a line.
func (e *Engine) statusLine() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.statusLocked()
}

func (e *Engine) statusLocked() string {
	n := e.front.connections()
	if e.state.Load() == phaseDraining {
		return fmt.Sprintf("draining: %s left", plural(n, "connection"))
	}
	g := e.gen.Load()
	serve := 0
	for _, p := range g.pools {
		if p.pool.Serves() {
			serve++
		}
	}
	return fmt.Sprintf("generation %d, %s, %d of %s ready", g.Number, plural(n, "connection"), serve, plural(len(g.pools), "pool"))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
