// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// With a role the test binary is the process that a manager starts.
func TestMain(m *testing.M) {
	if os.Getenv("WEIR_TEST_ROLE") == "started" {
		started()
		return
	}
	goleak.VerifyTestMain(m)
}

// started prints what it was given. The manager knows its number in advance,
// which this test cannot: LISTEN_PID=self stands for it.
func started() {
	for _, name := range []string{"LISTEN_PID", "WATCHDOG_PID"} {
		if os.Getenv(name) == "self" {
			_ = os.Setenv(name, strconv.Itoa(os.Getpid()))
		}
	}
	m, err := Open()
	fmt.Println("error:", err)
	fmt.Println("watchdog:", m.Watchdog)
	for _, s := range m.Sockets {
		flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, s.File.Fd(), syscall.F_GETFD, 0)
		ln, err := net.FileListener(s.File)
		if err != nil {
			fmt.Println("socket:", s.Name, err)
			continue
		}
		fmt.Println("socket:", s.Name, ln.Addr(), "exec", flags&syscall.FD_CLOEXEC == 0)
	}
	// What a process that is started from here would see.
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "LISTEN_") || strings.HasPrefix(kv, "WATCHDOG_") || strings.HasPrefix(kv, "NOTIFY_") {
			fmt.Println("left:", strings.ReplaceAll(kv, strconv.Itoa(os.Getpid()), "self"))
		}
	}
}

func startWith(t *testing.T, files []*os.File, env ...string) map[string][]string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append([]string{"WEIR_TEST_ROLE=started", "GORACE=atexit_sleep_ms=0"}, env...)
	cmd.ExtraFiles = files // from 3 on, as a manager has them
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	said := map[string][]string{}
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		said[key] = append(said[key], value)
	}
	return said
}

func socket(t *testing.T) (*os.File, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close(); _ = ln.Close() })
	return f, ln.Addr().String()
}

func expect(t *testing.T, said map[string][]string, key string, want ...string) {
	t.Helper()
	if got := strings.Join(said[key], "; "); got != strings.Join(want, "; ") {
		t.Errorf("%s: %q, want %q", key, got, want)
	}
}

func TestOpen(t *testing.T) {
	a, addrA := socket(t)
	b, addrB := socket(t)
	both := []*os.File{a, b}
	t.Run("named", func(t *testing.T) {
		said := startWith(t, both, "LISTEN_PID=self", "LISTEN_FDS=2", "LISTEN_FDNAMES=web:weir.socket")
		expect(t, said, "socket", "web "+addrA+" exec false", "weir.socket "+addrB+" exec false")
		expect(t, said, "left")
		expect(t, said, "error", "<nil>")
	})
	t.Run("one name", func(t *testing.T) {
		said := startWith(t, both, "LISTEN_PID=self", "LISTEN_FDS=2", "LISTEN_FDNAMES=web:web")
		expect(t, said, "socket", "web "+addrA+" exec false", "web "+addrB+" exec false")
	})
	t.Run("no names", func(t *testing.T) { // as before systemd 227, or from another activator
		said := startWith(t, both, "LISTEN_PID=self", "LISTEN_FDS=2")
		expect(t, said, "socket", "LISTEN_FD_3 "+addrA+" exec false", "LISTEN_FD_4 "+addrB+" exec false")
	})
	t.Run("of another process", func(t *testing.T) {
		said := startWith(t, both, "LISTEN_PID=1", "LISTEN_FDS=2", "LISTEN_FDNAMES=web:web")
		expect(t, said, "socket")
		expect(t, said, "left") // nor may a child take them for its own
	})
	t.Run("nonsense", func(t *testing.T) {
		for _, n := range []string{"-1", "x", "", "0"} {
			expect(t, startWith(t, both, "LISTEN_PID=self", "LISTEN_FDS="+n), "socket")
		}
	})
	t.Run("watchdog", func(t *testing.T) {
		said := startWith(t, nil, "WATCHDOG_USEC=2500000", "WATCHDOG_PID=self", "NOTIFY_SOCKET=@weir")
		expect(t, said, "watchdog", "2.5s")
		expect(t, said, "left", "WATCHDOG_USEC=2500000", "NOTIFY_SOCKET=@weir") // for the process that takes over
		said = startWith(t, nil, said["left"]...)
		expect(t, said, "watchdog", "2.5s")
		said = startWith(t, nil, "WATCHDOG_USEC=2500000", "WATCHDOG_PID=1")
		expect(t, said, "watchdog", "0s")
		expect(t, said, "left")
		said = startWith(t, nil, "WATCHDOG_USEC=soon")
		expect(t, said, "watchdog", "0s")
		if !strings.Contains(said["error"][0], "the watchdog stays off") {
			t.Errorf("error: %q", said["error"])
		}
	})
	t.Run("nobody", func(t *testing.T) {
		said := startWith(t, nil)
		expect(t, said, "socket")
		expect(t, said, "watchdog", "0s")
		expect(t, said, "error", "<nil>")
	})
}

// manager listens as a service manager does.
func manager(t *testing.T, address string) (*net.UnixConn, *Manager) {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	t.Setenv("NOTIFY_SOCKET", address)
	m, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	return c, m
}

func heard(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestNotify(t *testing.T) {
	for _, address := range []string{filepath.Join(t.TempDir(), "notify"), "@weir-test-" + strconv.Itoa(os.Getpid())} {
		c, m := manager(t, address)
		if !m.Listens() {
			t.Error("nobody listens")
		}
		if err := m.Notify(Ready, Status("generation 1\n3 connections")); err != nil {
			t.Fatal(err)
		}
		if got, want := heard(t, c), "READY=1\nSTATUS=generation 1 3 connections"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		if err := m.Notify(Reloading, MonotonicTime()); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(heard(t, c), "\n")
		usec, err := strconv.ParseInt(strings.TrimPrefix(lines[1], "MONOTONIC_USEC="), 10, 64)
		if len(lines) != 2 || lines[0] != "RELOADING=1" || err != nil || usec <= 0 {
			t.Errorf("heard %q", lines)
		}
		if err := m.Notify(MainPID(12), ExtendTimeout(90*time.Second)); err != nil {
			t.Fatal(err)
		}
		if got, want := heard(t, c), "MAINPID=12\nEXTEND_TIMEOUT_USEC=90000000"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
}

func TestNotifyNobody(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	m, err := Open()
	if err != nil || m.Listens() || m.Notify(Ready) != nil {
		t.Errorf("where nobody listens: %v", err)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if m, _ = Open(); !m.Listens() || m.Notify(Ready) == nil {
		t.Error("a socket that is gone is no error")
	}
}

// A manager that does not read costs time, and not for ever.
func TestNotifyDeaf(t *testing.T) {
	_, m := manager(t, filepath.Join(t.TempDir(), "notify"))
	var err error
	for range 100_000 { // net.unix.max_dgram_qlen is usually 10, on some machines thousands
		if err = m.Notify(Watchdog); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a manager that does not read: %v", err)
	}
}
