// SPDX-License-Identifier: Apache-2.0

package http2

import "sync"

// idleWorkers is how many goroutines wait for work at most. Those that come on
// top end with their task.
const idleWorkers = 256

// task is what a worker does.
type task interface{ run() }

// workers is a set of goroutines that are used again: their stacks have grown to
// what a request needs, which would cost a new one several copies. The one that
// finished last is taken first, its stack being warm. The zero value is ready.
type workers struct {
	mu       sync.Mutex
	idle     []chan task // guarded by mu
	stopping int         // calls of stop that wait; guarded by mu
	running  sync.WaitGroup
}

// start runs t on a goroutine, without waiting.
func (w *workers) start(t task) {
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		c := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		c <- t
		return
	}
	w.mu.Unlock()
	w.running.Add(1)
	go w.work(t)
}

func (w *workers) work(t task) {
	defer w.running.Done()
	c := make(chan task, 1)
	for {
		t.run()
		w.mu.Lock()
		if len(w.idle) >= idleWorkers || w.stopping > 0 {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, c)
		w.mu.Unlock()
		if t = <-c; t == nil {
			return
		}
	}
}

// stop ends the idle ones and waits for those at work. More may be started
// afterwards; whoever does so stops again.
func (w *workers) stop() {
	w.mu.Lock()
	for _, c := range w.idle {
		c <- nil
	}
	w.idle = nil
	w.stopping++ // who is at work ends with that
	w.mu.Unlock()
	w.running.Wait()
	w.mu.Lock()
	w.stopping--
	w.mu.Unlock()
}
