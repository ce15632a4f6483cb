// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestUpgradeDeadlineWithinTrial: a deadline that is over before the successor has proved
// itself is kept when it has, and not before: this process could still have to serve. It
// says so.
func TestUpgradeDeadlineWithinTrial(t *testing.T) {
	const trial, warning = 4 * time.Second, "upgrade.deadline is shorter"
	b := backend(t, "one")
	text := upgradeText(t, "upgrade: {deadline: 1s}\nshutdown: {deadline: 1h}\n", b)
	u := startUpgrading(t, text, "serve", text, UpgradeOptions{Trial: trial})
	failed := make(chan error, 1)
	go func() {
		_, err := get(client(t), u.front+"/slow")
		failed <- err
	}()
	<-b.arrived
	begin := time.Now()
	up, err := u.running.admin.Upgrade(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, up.PID)
	weirtest.Eventually(t, "it says so", func() bool { return strings.Contains(u.log.String(), warning) })
	if !strings.Contains(u.log.String(), "cut_after="+trial.String()) {
		t.Errorf("the log does not say when: %s", u.log.String())
	}
	if err := <-failed; err == nil {
		t.Error("a request that never ends has ended well")
	}
	if took := time.Since(begin); took < trial || took > trial+5*time.Second {
		t.Errorf("it was cut after %v, want %v", took, trial)
	}
	u.gone(t)
	if !strings.Contains(u.log.String(), "cut at the end of the drain") {
		t.Error("what was cut is not in the log")
	}
	close(b.release)
}
