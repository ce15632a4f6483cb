// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/listen"
)

// stagedFront is what a plan makes of the listeners: everything that can fail
// has been done, and nothing is different for clients.
type stagedFront struct {
	listeners    map[string]*liveListener // by name
	commit, undo []func()
}

// stage takes the sockets of a plan and loads its certificates. Either adopt or
// drop is to be called with the result.
func (f *front) stage(plan *config.Plan) (*stagedFront, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &stagedFront{listeners: make(map[string]*liveListener, len(plan.Listeners))}
	var faults []error
	for i := range plan.Listeners {
		cfg := &plan.Listeners[i]
		l, undo, err := f.stageOne(s, plan, cfg)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s%w", cfg.Pos, err))
			continue
		}
		l.issued = f.e.issued.next
		s.listeners[cfg.Name] = l
		s.undo = append(s.undo, undo)
	}
	if len(faults) > 0 {
		f.dropLocked(s)
		return nil, errors.Join(faults...)
	}
	return s, nil
}

// stageOne prepares one listener. Called under mu.
func (f *front) stageOne(s *stagedFront, plan *config.Plan, cfg *config.Listener) (l *liveListener, undo func(), err error) {
	if running := f.runningAs(s, plan, cfg); running != nil {
		commit, undo, err := running.ln.Change(f.options(cfg))
		if err != nil {
			return nil, nil, err
		}
		l := running.with(cfg)
		s.commit = append(s.commit, func() {
			l.srv.Change(cfg)
			commit()
		})
		return l, undo, nil
	}
	ln, err := listen.Listen(f.options(cfg))
	if err != nil {
		return nil, nil, err
	}
	l = f.newListener(f.slot()).with(cfg)
	l.ln, l.srv.ln, l.srv.flows.ln = ln, ln, ln
	l.srv.Change(cfg)
	s.commit = append(s.commit, func() {
		if f.started {
			f.serve(l)
		}
	})
	return l, func() {
		ln.StopNow()
		f.slots[l.slot] = false
	}, nil
}

// runningAs returns the listener that a plan's goes on with: the one of its
// name, or one that was renamed, which has all its binds and which the plan no
// longer names. Called under mu.
func (f *front) runningAs(s *stagedFront, plan *config.Plan, cfg *config.Listener) *liveListener {
	if l := f.listeners[cfg.Name]; l != nil {
		if l.cfg.Datagrams() != cfg.Datagrams() {
			return nil // of the same name, and nothing else
		}
		return l
	}
	for _, l := range f.listeners {
		if plan.Listener(l.name) == nil && l.cfg.Datagrams() == cfg.Datagrams() && len(cfg.Bind) > 0 && sameBinds(l.cfg.Bind, cfg.Bind) && !s.has(l) {
			return l
		}
	}
	return nil
}

func (s *stagedFront) has(l *liveListener) bool {
	for _, o := range s.listeners {
		if o.ln == l.ln {
			return true
		}
	}
	return false
}

func sameBinds(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// slot gives out an index that no connection uses. Called under mu.
func (f *front) slot() int {
	i := slices.Index(f.slots, false)
	if i < 0 {
		i = len(f.slots)
		f.slots = append(f.slots, false)
	}
	f.slots[i] = true
	return i
}

// drop gives up what stage took.
func (f *front) drop(s *stagedFront) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropLocked(s)
}

func (f *front) dropLocked(s *stagedFront) {
	for _, undo := range s.undo {
		undo()
	}
}

// adopt puts what is staged into force; new listeners begin to accept if the
// others already do. Those that the plan no longer has are retired: their
// sockets are given up, or are another one's by now, and their connections are
// closed as they become idle, over a few seconds.
func (f *front) adopt(s *stagedFront) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, commit := range s.commit {
		commit()
	}
	old := f.listeners
	f.listeners = s.listeners
	for _, l := range old {
		if s.has(l) {
			continue
		}
		f.retired = append(f.retired, l)
		l.ln.Stop()
		l.srv.Drain(retireSpread)
		f.reapers.Go(func() { f.reap(l) })
	}
}

// retireSpread is over how long the idle connections of a listener that left
// the plan are closed.
const retireSpread = 10 * time.Second

// reap forgets a retired listener when its last connection has ended.
func (f *front) reap(l *liveListener) {
	l.ln.Wait()
	l.srv.CloseAll() // there is none left, and none to come: it ends the drain
	l.srv.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retired = slices.DeleteFunc(f.retired, func(o *liveListener) bool { return o == l })
	f.slots[l.slot] = false
}

// detach keeps for the connections of listeners that a plan no longer has what
// they were served by: the generation to come has nothing for them.
func (f *front) detach(s *stagedFront, old *Generation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.listeners {
		if !s.has(l) {
			l.last.Store(old.handlers[l.slot])
			l.srv.streams.last.Store(old.streams[l.slot])
		}
	}
}
