// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Short cases of the fault suite (make faults has all of them, beside nginx and
// HAProxy): what no other test here does to backends.
func TestFaults(t *testing.T) {
	t.Parallel()
	suite := filepath.Join(t.TempDir(), "faults")
	if out, err := exec.Command("go", "build", "-o", suite, "../bench/faults").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(suite, "-only", "weir", "-short", "-cases", "6", "-scenario",
		"broken/garbage,broken/truncated,broken/overlong,half/answers,half/poison,blip/checks,spiral/refuse,storm/one,storm/three,idle/1s,fleet/100%-serve,half/answers-restart,fleet/90%-serve-upgrade")
	cmd.Env = append(os.Environ(), "WEIR="+binary)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
