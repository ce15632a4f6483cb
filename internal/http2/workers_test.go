// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"testing"
	"testing/synctest"
)

type taskFunc func()

func (f taskFunc) run() { f() }

// TestWorkersStop: a worker that is at work when all are stopped ends with its
// task, and does not wait for another one for ever.
func TestWorkersStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w workers
		for range 3 { // they can be started again
			finish, stopped := make(chan struct{}), false
			w.start(taskFunc(func() {}))
			synctest.Wait()
			w.start(taskFunc(func() { <-finish }))
			w.start(taskFunc(func() { <-finish }))
			go func() { w.stop(); stopped = true }()
			synctest.Wait()
			if stopped {
				t.Fatal("stopped while workers are at work")
			}
			close(finish)
			synctest.Wait()
			if !stopped {
				t.Fatal("stop waits for a worker that waits for work")
			}
		}
	})
}
