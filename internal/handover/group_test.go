// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestOffspring holds that a successor that fails leaves nothing behind that has
// the sockets: neither when it is killed, nor when it ended before.
func TestOffspring(t *testing.T) {
	for _, c := range []struct{ name, script, outcome, says string }{
		{"killed", "sleep 300 & echo $! >$0; wait", OutcomeTimeout, "within"},
		{"failed", "sleep 300 & echo $! >$0; exit 3", OutcomeExited, "(exit status 3) before it was ready to take over"},
		{"ended", "sleep 300 & echo $! >$0; exit 0", OutcomeTimeout, "within"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, sock := socket(t)
			note := filepath.Join(t.TempDir(), "pid")
			limit := patience
			if c.outcome == OutcomeTimeout {
				limit = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			s, err := Start(ctx, Program{Path: "/bin/sh", Args: []string{"sh", "-c", c.script, note}, Env: os.Environ()},
				Offer{Version: "old", Sockets: []Socket{sock}})
			if err == nil {
				err = s.Built(ctx)
			}
			var f *Failure
			if !errors.As(err, &f) || f.Outcome != c.outcome || !strings.Contains(f.Error(), c.says) {
				t.Errorf("got %v, want %s with %q", err, c.outcome, c.says)
			}
			text, err := os.ReadFile(note)
			if err != nil {
				t.Skip("too slow a machine: it was killed before it started anything")
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			gone := time.Now().Add(patience)
			for alive(pid) && time.Now().Before(gone) {
				time.Sleep(time.Millisecond) // a killed process takes a moment
			}
			if alive(pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				t.Fatal("what the successor started lives on")
			}
			_, _ = l.Close(), sock.File.Close()
			if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
				_ = c.Close()
				t.Error("somebody still listens")
			}
		})
	}
}

// TestWrapper holds that the number of a successor is that of the process that
// serves, when a script was started that waits for it, and that it can be killed.
func TestWrapper(t *testing.T) {
	_, sock := socket(t)
	p := program(t, "serve")
	p.Path, p.Args = "/bin/sh", []string{"sh", "-c", `"$0"; exit $?`, p.Path}
	s, err := through(t, p, nil, sock)
	if err != nil {
		t.Fatal(err)
	}
	pid := s.PID()
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || !strings.HasPrefix(string(name), p.Args[3]) {
		t.Errorf("process %d is %q, %v", pid, name, err)
	}
	s.Kill()
	gone := time.Now().Add(patience)
	for alive(pid) && time.Now().Before(gone) {
		time.Sleep(time.Millisecond)
	}
	if alive(pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		t.Error("it lives")
	}
}

// TestGroup holds that a successor that serves is in its predecessor's group.
func TestGroup(t *testing.T) {
	_, sock := socket(t)
	s, err := through(t, program(t, "serve"), nil, sock)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	if group, err := syscall.Getpgid(s.PID()); err != nil || group != syscall.Getpgrp() {
		t.Errorf("the successor is in group %d, not %d (%v)", group, syscall.Getpgrp(), err)
	}
}
