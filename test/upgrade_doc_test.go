// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// What docs/operations.md tells to type for an upgrade is typed here, and the
// outcomes that it names are those that are counted.
func TestUpgradeDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Upgrade\n")
	section, _, more := strings.Cut(section, "\n## ")
	if !found || !more {
		t.Fatal("no section about upgrades")
	}
	commands := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(section)
	if commands == nil {
		t.Fatal("no commands")
	}
	r := newUpgradeRig(t, "")
	old := r.pid
	for line := range strings.Lines(commands[1]) {
		line, _, _ = strings.Cut(line, "#")
		args := strings.Fields(line)
		if len(args) == 0 {
			continue
		}
		if args[0] != "weir" {
			t.Fatalf("not a command of weir: %s", line)
		}
		if args[1] == "upgrade" {
			args = append(args, "--admin", r.admin)
		}
		cmd := exec.Command(binary, args[1:]...)
		cmd.Dir = filepath.Dir(r.config)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	s := r.ask()
	if s.PID == old || s.Predecessor != nil {
		t.Errorf("after the commands: %+v", s)
	}
	r.pid = s.PID
	r.reap(r.pid)
	r.gone(time.Minute, old)

	scraped, err := r.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	outcomes := regexp.MustCompile(`weir_upgrades_total\{outcome="([a-z_]+)"\}`).FindAllStringSubmatch(scraped, -1)
	if len(outcomes) < 5 {
		t.Fatalf("outcomes: %q", outcomes)
	}
	for _, o := range outcomes {
		if !strings.Contains(section, "`"+o[1]+"`") && !strings.Contains(section, fmt.Sprintf("%q", o[1])) {
			t.Errorf("outcome %s is not explained", o[1])
		}
	}
	if !strings.Contains(section, "`"+admin.CodeUpgrading+"`") {
		t.Errorf("the code %s is not explained", admin.CodeUpgrading)
	}
}
