// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"strings"
	"sync/atomic"
	"testing"
)

// TestGroupPanics: a panic comes out where it can be recovered, when all have ended.
func TestGroupPanics(t *testing.T) {
	var g group
	var ran atomic.Int32
	for i := range 8 {
		g.Go(func() {
			ran.Add(1)
			if i == 3 {
				panic("a broken question")
			}
		})
	}
	defer func() {
		text, _ := recover().(string)
		if !strings.Contains(text, "a broken question") || !strings.Contains(text, "group_test.go") {
			t.Errorf("recovered %q", text)
		}
		if n := ran.Load(); n != 8 {
			t.Errorf("%d have run", n)
		}
	}()
	g.Wait()
}
