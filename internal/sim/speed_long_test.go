// SPDX-License-Identifier: Apache-2.0

//go:build long && !race

package sim

import (
	"testing"
	"time"
)

// TestSpeedGoals: 5,000 requests under each of eight policies within a second, a
// million within 20 s. It needs a machine that does nothing else.
func TestSpeedGoals(t *testing.T) {
	began := time.Now()
	for _, name := range policies {
		sixEqual(t, 1, name, 5000).Finish(forever)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("5,000 requests x 8 policies took %v", took)
	}
	began = time.Now()
	w := million(t, 1_000_000)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a million requests took %v", took)
	} else {
		t.Logf("a million requests took %v, %d events", took, w.Events())
	}
}
