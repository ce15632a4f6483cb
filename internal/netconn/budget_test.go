// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"sync"
	"testing"
)

func TestBudget(t *testing.T) {
	var none *Budget
	if none.Give(3); !none.Take(1 << 40) {
		t.Error("nil refuses")
	}
	b := &Budget{}
	if !b.Take(1 << 40) {
		t.Error("without a limit it refuses")
	}
	b.Give(1 << 40)
	b.SetLimit(100)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if b.Take(30) {
					if b.Used() > 100+8*30 { // those that are being refused count for a moment
						t.Error(b.Used())
					}
					b.Give(30)
				}
			}
		})
	}
	wg.Wait()
	if b.Used() != 0 || !b.Take(100) || b.Take(1) || b.Used() != 100 {
		t.Error(b.Used())
	}
}
