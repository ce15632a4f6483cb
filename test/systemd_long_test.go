// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The packaged unit under a systemd of its own: start, reload, upgrade, a process
// that hangs, one that dies after an upgrade, stop.
func TestUnderSystemd(t *testing.T) {
	t.Parallel()
	m := bootSystemd(t, answering("127.0.0.1:80", "one"))
	c := m.client()
	get := func() string {
		t.Helper()
		resp, err := c.Get("http://127.0.0.1/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	config := func(text string) {
		t.Helper()
		write(t, m.path("/etc/weir/weir.yaml"), text)
	}
	m.must("systemctl", "start", "weir") // returns with READY=1
	if got := get(); got != "one" {
		t.Fatalf("answer %q", got)
	}
	if got := m.show("StatusText"); !strings.HasPrefix(got, "generation 1, ") {
		t.Errorf("status %q", got)
	}
	m.asOrdinaryUser(m.show("MainPID"))

	config(answering("127.0.0.1:80", "two"))
	m.must("systemctl", "reload", "weir")
	eventually(t, 10*time.Second, "the new configuration serves", func() bool { return get() == "two" })
	config("listeners: {web: {bnd: x}}\n")
	if out, err := m.run("systemctl", "reload", "weir"); err == nil {
		t.Errorf("a file with a mistake was reloaded: %s", out)
	}
	if got := m.show("ActiveState") + get(); got != "activetwo" {
		t.Errorf("after a reload that was refused: %s", got)
	}
	config(answering("127.0.0.1:80", "two"))

	first := m.show("MainPID")
	upgraded := func(how ...string) {
		t.Helper()
		before, restarts := m.show("MainPID"), m.show("NRestarts")
		bad := m.whileAsked(func() {
			m.must(how...)
			eventually(t, 20*time.Second, "another process is the service", func() bool {
				now := m.show("MainPID")
				return now != before && now != "0"
			})
			eventually(t, 20*time.Second, "the old process is gone", func() bool {
				_, err := m.run("kill", "-0", before)
				return err != nil
			})
		})
		if bad != "" {
			t.Errorf("upgrade by %v: %s", how, bad)
		}
		if got := m.show("ActiveState") + " " + m.show("SubState") + " " + m.show("NRestarts"); got != "active running "+restarts {
			t.Errorf("after an upgrade by %v: %s", how, got)
		}
	}
	upgraded("weir", "upgrade")
	upgraded("systemctl", "kill", "--kill-whom=main", "-s", "USR2", "weir")
	if m.show("MainPID") == first {
		t.Error("the first process serves")
	}

	// A process that hangs is found by the watchdog, whoever started it.
	hung := m.show("MainPID")
	m.signal(hung, "STOP")
	eventually(t, 30*time.Second, "systemd starts weir anew", func() bool {
		now := m.show("MainPID")
		return now != hung && now != "0" && m.show("ActiveState") == "active"
	})
	if got := get(); got != "two" {
		t.Errorf("answer %q", got)
	}
	// One that dies is started anew, too, although after an upgrade it is no child of systemd's.
	upgraded("weir", "upgrade")
	dead := m.show("MainPID")
	m.signal(dead, "KILL")
	eventually(t, 30*time.Second, "systemd starts weir anew", func() bool {
		now := m.show("MainPID")
		return now != dead && now != "0" && m.show("ActiveState") == "active"
	})
	// A process that took over drains when it is stopped, as any other does.
	upgraded("weir", "upgrade")
	m.must("systemctl", "stop", "weir")
	log, err := os.ReadFile(m.path("/run/weir.log"))
	if err != nil {
		t.Fatal(err)
	}
	if i := strings.LastIndex(string(log), "took over"); i < 0 || !strings.Contains(string(log)[i:], "msg=draining delay=0s") {
		t.Errorf("the last process did not drain:\n%s", tail(string(log), 2000))
	}
	if got := m.show("ActiveState") + " " + m.show("Result") + " " + m.show("ExecMainStatus"); got != "inactive success 0" {
		t.Errorf("after the stop: %s", got)
	}
}

// signal sends a signal to one process of the machine.
func (m *machine) signal(pid, name string) {
	m.t.Helper()
	if n, err := strconv.Atoi(pid); err != nil || n <= 1 {
		m.t.Fatalf("%q is no process of weir's", pid)
	}
	m.must("kill", "-"+name, pid)
}

// asOrdinaryUser checks that the process has nothing of root but the right to
// bind low ports.
func (m *machine) asOrdinaryUser(pid string) {
	m.t.Helper()
	status := m.must("cat", "/proc/"+pid+"/status")
	field := func(name string) string {
		for line := range strings.Lines(status) {
			if v, ok := strings.CutPrefix(line, name+":"); ok {
				return strings.TrimSpace(v)
			}
		}
		return ""
	}
	if uid, _, _ := strings.Cut(field("Uid"), "\t"); uid == "0" || uid == "" {
		m.t.Errorf("weir runs as %q", uid)
	}
	const bindService = 1 << 10
	for _, set := range []string{"CapEff", "CapBnd", "CapAmb"} {
		if v, err := strconv.ParseUint(field(set), 16, 64); err != nil || v != bindService {
			m.t.Errorf("%s is %q", set, field(set))
		}
	}
	if field("NoNewPrivs") != "1" || field("Seccomp") != "2" {
		m.t.Errorf("no new privileges: %q, seccomp: %q", field("NoNewPrivs"), field("Seccomp"))
	}
}
