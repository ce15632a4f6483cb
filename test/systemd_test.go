// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The units are what systemd takes them for, and give a process little.
func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skipf("nothing to check units with: %v", err)
	}
	dir := t.TempDir()
	for _, name := range []string{"weir.service", "weir.socket", "weir-tls.socket"} {
		text, err := os.ReadFile("../packaging/systemd/" + name)
		if err != nil {
			t.Fatal(err)
		}
		// verify looks whether the programs are there.
		write(t, filepath.Join(dir, name), strings.ReplaceAll(string(text), "/usr/local/bin/weir", binary))
	}
	service, socket, secure := filepath.Join(dir, "weir.service"), filepath.Join(dir, "weir.socket"), filepath.Join(dir, "weir-tls.socket")
	if out, err := exec.Command(analyze, "verify", "--man=no", service, socket, secure).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// 0 is nothing and 10 all of root; a unit without any restriction has 9.6.
	out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=20", "--no-pager", service).CombinedOutput()
	if strings.Contains(string(out), "unrecognized option") {
		t.Skipf("this systemd-analyze judges no files: %s", out)
	}
	if err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}

	text, err := os.ReadFile("../packaging/systemd/weir.service")
	if err != nil {
		t.Fatal(err)
	}
	seconds := func(key string) int {
		m := regexp.MustCompile(`(?m)^` + key + `=(\d+)s$`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("no %s", key)
		}
		n, _ := strconv.Atoi(string(m[1]))
		return n
	}
	if n := seconds("TimeoutStopSec"); n <= 25 {
		t.Errorf("TimeoutStopSec is %d s, and shutdown.deadline 25s", n)
	}
	if n := seconds("WatchdogSec"); n < 10 {
		t.Errorf("WatchdogSec is %d s: a machine that is busy would be enough to miss it", n)
	}
}

// supervisor stands for systemd: it hears what a service says.
type supervisor struct {
	t    *testing.T
	c    *net.UnixConn
	path string
}

func newSupervisor(t *testing.T) *supervisor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &supervisor{t: t, c: c, path: path}
}

// hear returns the next message that has a line; those without are passed over.
func (s *supervisor) hear(line string) string {
	s.t.Helper()
	if err := s.c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for {
		buf := make([]byte, 4096)
		n, err := s.c.Read(buf)
		if err != nil {
			s.t.Fatalf("%s was not said: %v; said was %q", line, err, all)
		}
		text := string(buf[:n])
		if strings.Contains("\n"+text, "\n"+line) {
			return text
		}
		all = append(all, text)
	}
}

// activate starts weir as systemd does: with sockets from descriptor 3 on, whose
// names are given, and its own number in LISTEN_PID, which the shell that becomes
// weir knows.
func activate(t *testing.T, yaml string, names []string, sockets []*os.File, env ...string) *process {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "weir.yaml")
	write(t, file, yaml)
	script := fmt.Sprintf("export LISTEN_PID=$$ WATCHDOG_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=%s; exec %s run -c %s",
		len(sockets), strings.Join(names, ":"), binary, file)
	p := &process{t: t, name: "weir", cmd: exec.Command("sh", "-c", script), out: &output{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.ExtraFiles = sockets
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = 2 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("--- output\n%s", tail(p.out.String(), 4000))
		}
	})
	return p
}

// listening returns a socket as systemd has it, and its address.
func listening(t *testing.T) (*os.File, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close() // f is the same socket
	t.Cleanup(func() { _ = f.Close() })
	return f, addr
}

func bodyOf(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if _, err := fmt.Fprint(&b, resp.StatusCode); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What is said over the life of a process: start, signs of life, reload,
// handover to another process, its end.
func TestSystemdProtocol(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	a, addrA := listening(t)
	b, addrB := listening(t)
	spare, addrSpare := listening(t)
	admin := freeAddr(t)
	yaml := fmt.Sprintf(`admin: {bind: %q}
listeners: {web: {bind: "systemd:web", routes: [{respond: {body: hello}}]}}
shutdown: {delay: none, deadline: 2s}
`, admin)
	p := activate(t, yaml, []string{"web", "web", "spare"}, []*os.File{a, b, spare}, "NOTIFY_SOCKET="+s.path, "WATCHDOG_USEC=1000000")
	for _, f := range []*os.File{a, b, spare} {
		_ = f.Close() // as the test's copies would keep the ports open
	}
	s.hear("READY=1")
	for _, addr := range []string{addrA, addrB} {
		if got := bodyOf(t, "http://"+addr+"/"); got != "200" {
			t.Errorf("%s: %s", addr, got)
		}
	}
	if c, err := net.Dial("tcp", addrSpare); err == nil {
		_ = c.Close()
		t.Error("a socket that no listener names is open")
	}
	if !strings.Contains(p.out.String(), "systemd:spare") {
		t.Errorf("the log does not name the socket that was closed:\n%s", p.out)
	}
	s.hear("WATCHDOG=1")

	p.signal(syscall.SIGHUP)
	if got := s.hear("RELOADING=1"); !strings.Contains(got, "\nMONOTONIC_USEC=") {
		t.Errorf("said %q", got)
	}
	if got := s.hear("READY=1"); !strings.Contains(got, "STATUS=generation 2") {
		t.Errorf("said %q", got)
	}

	// The new process has the sockets, the watchdog and the manager from the old one.
	p.signal(syscall.SIGUSR2)
	m := regexp.MustCompile(`MAINPID=(\d+)`).FindStringSubmatch(s.hear("MAINPID="))
	pid, _ := strconv.Atoi(m[1])
	if pid == p.cmd.Process.Pid || pid <= 1 {
		t.Fatalf("the main process is %d, the old one %d", pid, p.cmd.Process.Pid)
	}
	if code := p.wait(20 * time.Second); code != 0 {
		t.Errorf("the old process ends with %d", code)
	}
	s.hear("WATCHDOG=1")
	for _, addr := range []string{addrA, addrB} {
		if got := bodyOf(t, "http://"+addr+"/"); got != "200" {
			t.Errorf("%s after an upgrade: %s", addr, got)
		}
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := s.hear("STOPPING=1"); !strings.Contains("\n"+got, "\nEXTEND_TIMEOUT_USEC=") && !strings.Contains(got, "EXTEND_TIMEOUT_USEC=") {
		t.Errorf("said %q", got)
	}
}

// A socket that a listener names and that did not come is a failure of the
// start, and what is to be written is said.
func TestSystemdSocketMissing(t *testing.T) {
	t.Parallel()
	yaml := "listeners: {web: {bind: \"systemd:web\", routes: [{respond: {body: hello}}]}}\nadmin: off\n"
	other, _ := listening(t)
	p := activate(t, yaml, []string{"weir.socket"}, []*os.File{other})
	if code := p.wait(20 * time.Second); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if out := p.out.String(); !strings.Contains(out, "listener web") || !strings.Contains(out, "FileDescriptorName=web") {
		t.Errorf("said:\n%s", out)
	}
}
