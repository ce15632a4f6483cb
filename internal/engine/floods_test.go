// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

// TestFloodLines: ten a second are told, and those left out are told of with the next.
func TestFloodLines(t *testing.T) {
	var f floodLines
	now := balance.Instant(0).Add(time.Hour)
	count := func(n int) (told, more int) {
		for range n {
			if m, ok := f.next(now); ok {
				told++
				more += m
			}
		}
		return told, more
	}
	for i, c := range []struct {
		after            time.Duration
		come, told, more int
	}{
		{0, 4, 4, 0},
		{500 * time.Millisecond, 20, 6, 0},
		{500 * time.Millisecond, 1, 1, 14},
		{time.Hour, 10, 10, 0},
		{time.Second - 1, 1, 0, 0},
		{1, 1, 1, 1},
	} {
		now = now.Add(c.after)
		if told, more := count(c.come); told != c.told || more != c.more {
			t.Errorf("step %d: %d lines and %d more, want %d and %d", i, told, more, c.told, c.more)
		}
	}
}
