// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os/exec"
	"testing"
)

// docs/resilience.md is what the saved results of the fault suite and its
// configurations say, byte for byte.
func TestResilienceDocument(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "run", "./bench/faults", "-page", "check")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
