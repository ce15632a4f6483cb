// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAddAndRemove: backends come into a running pool and leave it under load, by
// command, over a reload, and no client notices.
func TestAddAndRemove(t *testing.T) {
	var addrs []string
	for range 3 {
		addrs = append(addrs, freeAddr(t))
		startBackend(t, addrs[len(addrs)-1], "--delay", "5ms")
	}
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {slow_start: off, balance: round_robin, health: {active: {path: /readyz, interval: 1s}}, backends: ["http://%s"]}}
`, addrs[0]))
	command := func(code int, args ...string) string {
		t.Helper()
		cmd := exec.Command(binary, append(args, "--admin", w.admin)...)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Fatalf("weir %s: exit code %d\n%s", strings.Join(args, " "), got, out)
		}
		return string(out)
	}
	stop, answers := make(chan struct{}), &tally{}
	running := clients{url: w.url("/"), n: 4, methods: []string{"GET", "POST"}, fresh: true}.run(stop, answers)

	for _, a := range addrs[1:] {
		if out := command(0, "add", "app", "http://"+a, "--weight", "2"); !strings.Contains(out, "app/"+a+" with weight 2 ") {
			t.Errorf("%q", out)
		}
	}
	serving := func() bool {
		for _, a := range addrs {
			if w.backends(t, "app")[a].Requests < 20 {
				return false
			}
		}
		return true
	}
	eventually(t, 10*time.Second, "all three take work", serving)
	w.signal(syscall.SIGHUP)
	eventually(t, 5*time.Second, "reloaded", func() bool { return strings.Contains(w.out.String(), "configuration reloaded") })
	if n := len(w.backends(t, "app")); n != 3 {
		t.Errorf("%d backends after a reload", n)
	}
	if out := command(0, "status", "app"); !strings.Contains(out, "added by the API") || !strings.Contains(out, "what became of them") {
		t.Errorf("%s", out)
	}
	if out := command(0, "remove", "app/"+addrs[1], "--wait", "--deadline", "10s"); !strings.Contains(out, "leaves") || !strings.Contains(out, "is gone") {
		t.Errorf("%q", out)
	}
	var left struct {
		Removed bool `json:"removed"`
	}
	if err := json.Unmarshal([]byte(command(0, "remove", "app/"+addrs[2], "--wait", "--json")), &left); err != nil || !left.Removed {
		t.Errorf("%+v, %v", left, err)
	}
	if out := command(1, "remove", "app/"+addrs[0]); !strings.Contains(out, "is in the configuration") || !strings.Contains(out, "weir drain") {
		t.Errorf("%q", out)
	}
	if out := command(1, "add", "app", "http://"+addrs[0]); !strings.Contains(out, "is in the configuration already") {
		t.Errorf("%q", out)
	}
	if all := w.backends(t, "app"); len(all) != 1 {
		t.Errorf("%v are left", all)
	}
	close(stop)
	running.Wait()
	if bad := answers.bad(); bad != "" || answers.total() < 100 {
		t.Errorf("%d answers; %s", answers.total(), bad)
	}
}

// TestAddAndRemoveDocument: the commands of docs/operations.md do what it says.
func TestAddAndRemoveDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Adding and removing backends\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 3 {
		t.Fatalf("%d blocks of commands", len(blocks))
	}
	first, added := freeAddr(t), freeAddr(t)
	startBackend(t, first)
	startBackend(t, added)
	w := startProxy(t, "http://"+first)
	place := strings.NewReplacer("10.0.1.23:8080", added, "10.0.1.24:8080", freeAddr(t), "10.0.1.25:8080", freeAddr(t), "127.0.0.1:9900", w.admin)
	blocks[2][1] = "weir add app http://10.0.1.23:8080\n" + blocks[2][1] // which the one before has removed
	for i, block := range blocks {
		cmd := exec.Command("/bin/bash", "-euo", "pipefail", "-c", `weir() { "`+binary+`" "$@" --admin `+w.admin+`; }`+"\n"+place.Replace(block[1]))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, block[1], out)
		}
		for _, word := range [][]string{{"with weight 2 ", "added by the API", "is gone"}, {`"source":"api"`, `"removed":true`}, {`"added":2`, `"removed":1`}}[i] {
			if !strings.Contains(string(out), word) {
				t.Errorf("%q is not in\n%s", word, out)
			}
		}
		if all := w.backends(t, "app"); len(all) != []int{1, 1, 3}[i] {
			t.Errorf("%v", all)
		}
	}
}

// TestCanaryDocument: the recipe of docs/operations.md works as it stands.
func TestCanaryDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## A canary\n")
	section, _, _ = strings.Cut(section, "\n## ")
	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(section)
	if block == nil {
		t.Fatal("there is no block of commands")
	}
	addrs := []string{freeAddr(t), freeAddr(t), freeAddr(t)}
	for _, a := range addrs {
		startBackend(t, a)
	}
	w := startProxy(t, "http://"+addrs[0], "http://"+addrs[1])
	place := strings.NewReplacer("10.0.1.21:8080", addrs[0], "10.0.1.22:8080", addrs[1], "10.0.1.23:8080", addrs[2])
	cmd := exec.Command("/bin/bash", "-euo", "pipefail", "-c", `weir() { "`+binary+`" "$@" --admin `+w.admin+`; }`+"\n"+place.Replace(block[1]))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, block[1], out)
	}
	if all := w.backends(t, "app"); len(all) != 2 {
		t.Errorf("%v are left", all)
	}
}
