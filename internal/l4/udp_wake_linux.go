// SPDX-License-Identifier: Apache-2.0

package l4

import "sync"

// wake is how other goroutines ask something of a loop that waits.
type wake struct {
	strikes *poller // constant

	mu     sync.Mutex // guards the rest
	todo   []func()
	ends   []*Flow // to be ended
	asleep bool    // it waits, or is about to
	closed bool
}

// ask has fn run by the loop. It reports false when that is closed.
func (w *wake) ask(fn func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.todo = append(w.todo, fn)
	w.ring()
	return true
}

// await is ask, and returns when fn has run.
func (w *wake) await(fn func()) bool {
	ran := make(chan struct{})
	if !w.ask(func() { defer close(ran); fn() }) {
		return false
	}
	<-ran
	return true
}

// end has a flow ended, if it has not ended.
func (w *wake) end(f *Flow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.ends = append(w.ends, f)
		w.ring()
	}
}

func (w *wake) shut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.ring()
}

// ring wakes the loop. Called under mu.
func (w *wake) ring() {
	if !w.asleep {
		return
	}
	w.asleep = false
	w.strikes.strike()
}

// sleep says that the loop is about to wait; false: there is something to do.
func (w *wake) sleep() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asleep = !w.closed && len(w.todo)+len(w.ends) == 0
	return w.asleep
}

// awake says that it does not wait any more, and returns what was asked for.
func (w *wake) awake() (todo []func(), ends []*Flow, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asleep = false
	todo, ends = w.todo, w.ends
	w.todo, w.ends = nil, nil
	return todo, ends, w.closed
}
