// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// group runs functions side by side. One that panics has Wait panic, in the goroutine of
// whoever runs the source and can recover it: elsewhere it would end the process.
type group struct {
	wait  sync.WaitGroup
	first atomic.Pointer[string]
}

func (g *group) Go(f func()) {
	g.wait.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				text := fmt.Sprintf("%v\n%s", v, debug.Stack())
				g.first.CompareAndSwap(nil, &text)
			}
		}()
		f()
	})
}

// Wait returns when all have.
func (g *group) Wait() {
	g.wait.Wait()
	if text := g.first.Load(); text != nil {
		panic(*text)
	}
}
