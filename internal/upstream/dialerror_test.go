// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"testing"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/pool"
)

// TestOutcomes: every kind has a reason of its own name, and faults of this machine
// are no backend's.
func TestOutcomes(t *testing.T) {
	if len(outcomes) != int(Canceled)+1 {
		t.Fatalf("%d outcomes of %d kinds", len(outcomes), Canceled+1)
	}
	for k := range Canceled + 1 {
		reason, kind := OutcomeOf(&DialError{Kind: k, Err: errors.New("x")})
		if got := reason.String(); got != k.String() && k != Canceled {
			t.Errorf("%s is called %s", k, got)
		}
		if local := kind == pool.LocalFault || kind == pool.Canceled; local != (k.Local() && k != DrainOver) {
			t.Errorf("%s: outcome %s", k, kind)
		}
	}
	if reason, kind := OutcomeOf(errors.New("x")); reason != message.Unreachable || kind != pool.ConnectUnreachable {
		t.Errorf("another error: %s, %s", reason, kind)
	}
}
