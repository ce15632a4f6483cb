// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"io"
	"os/exec"
	"regexp"
	"testing"
	"time"
)

var escapes = regexp.MustCompile(`\x1b[\[\]>][0-9;?$]*[ -/]*[a-zA-Z]`)

// weir top shows a pool in a terminal (that of script(1)), goes on by itself, and
// gives the terminal back when it is asked to quit.
func TestTopInATerminal(t *testing.T) {
	t.Parallel()
	a := freeAddr(t)
	startBackend(t, a)
	w := startProxy(t, "http://"+a)
	cmd := exec.Command("script", "-qefc", "stty rows 30 cols 120; exec "+binary+" top --admin "+w.admin, "/dev/null")
	cmd.Env = append(cmd.Environ(), "TERM=xterm-256color")
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	screen := &output{}
	cmd.Stdout, cmd.Stderr = screen, screen
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	eventually(t, 15*time.Second, "the pool is shown", func() bool {
		return bytes.Contains(escapes.ReplaceAll([]byte(screen.String()), nil), []byte("POOL/BACKEND"))
	})
	first := len(screen.String())
	eventually(t, 15*time.Second, "it goes on", func() bool { return len(screen.String()) > first })
	if _, err := io.WriteString(keys, "q"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("quitting: %v", err)
		}
	case <-time.After(15 * time.Second):
		_ = cmd.Process.Kill()
		t.Errorf("it does not quit:\n%s", <-ended)
	}
	if !bytes.Contains([]byte(screen.String()), []byte("\x1b[?25h")) {
		t.Errorf("the cursor was not given back:\n%q", screen)
	}
}
