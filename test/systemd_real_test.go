// SPDX-License-Identifier: Apache-2.0

package test

import (
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func answering(bind, body string) string {
	return `listeners: {web: {bind: "` + bind + `", routes: [{respond: {body: "` + body + `"}}]}}
shutdown: {delay: none, deadline: 5s}
`
}

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

// With the socket unit systemd has the port: the first client starts weir, and
// nobody is refused while it is started anew or handed over.
func TestSystemdSocket(t *testing.T) {
	t.Parallel()
	m := bootSystemd(t, answering("systemd:web", "hello"))
	m.must("systemctl", "start", "weir.socket")
	if got := m.show("ActiveState"); got != "inactive" {
		t.Fatalf("weir is %s before anybody asked", got)
	}
	c := m.client()
	resp, err := c.Get("http://127.0.0.1/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if bad := m.whileAsked(func() { m.must("systemctl", "restart", "weir") }); bad != "" {
		t.Errorf("during a restart: %s", bad)
	}
	before := m.show("MainPID")
	if bad := m.whileAsked(func() { m.must("weir", "upgrade") }); bad != "" {
		t.Errorf("during an upgrade: %s", bad)
	}
	eventually(t, 10*time.Second, "another process is the service", func() bool { return m.show("MainPID") != before })
	if bad := m.whileAsked(func() { m.must("systemctl", "restart", "weir") }); bad != "" {
		t.Errorf("during a restart after an upgrade: %s", bad)
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

// whileAsked makes requests on new connections while f runs, and returns what
// went wrong with them.
func (m *machine) whileAsked(f func()) string {
	var got tally
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		c := m.client()
		c.Transport.(*http.Transport).DisableKeepAlives = true
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				begin := time.Now()
				resp, err := c.Get("http://127.0.0.1/")
				if err != nil {
					got.add("error: "+err.Error(), "", time.Since(begin))
					continue
				}
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if err != nil {
					got.add("error in body: "+err.Error(), "", time.Since(begin))
					continue
				}
				got.add(strconv.Itoa(resp.StatusCode), "", time.Since(begin))
			}
		})
	}
	f()
	close(stop)
	wg.Wait()
	if got.total() == 0 {
		return "nobody asked"
	}
	return got.bad()
}
