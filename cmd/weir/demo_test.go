// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestDemo runs `weir demo` and does the three things that it prints, as a
// shell would.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as noticing a broken backend")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir := t.TempDir()
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/weir", ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	demo := exec.CommandContext(ctx, dir+"/weir", "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	demo.WaitDelay = time.Second
	stdout, err := demo.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	demo.Stderr = &stderr
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	var things []string
	numbered := regexp.MustCompile(`^[0-9]\. `)
	lines := bufio.NewScanner(stdout)
	for len(things) < 3 && lines.Scan() {
		if numbered.MatchString(lines.Text()) && lines.Scan() {
			things = append(things, strings.TrimSpace(lines.Text()))
		}
	}
	if len(things) != 3 {
		t.Fatalf("three things to try, not %q\n%s", things, stderr.String())
	}
	shell := func(command string) string {
		out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
		return string(out)
	}
	if got := strings.Count(shell(things[0]), "hello from "); got != 10 {
		t.Errorf("ten requests gave %d answers", got)
	}
	out := make(chan string, 1)
	go func() { out <- shell(things[1]) }()
	broken := false
	for !broken { // the first thing goes on working while the second does its damage
		select {
		case text := <-out:
			broken = true
			if !strings.Contains(text, "broken") || !strings.Contains(text, "connection reset") || !strings.Contains(text, "works again") {
				t.Errorf("breaking a backend shows:\n%s", text)
			}
		default:
			if got := strings.Count(shell(things[0]), "hello from "); got != 10 {
				t.Errorf("while a backend was broken ten requests gave %d answers", got)
			}
		}
	}
	if text := shell(things[2]); !strings.Contains(text, "is empty") || !strings.Contains(text, "draining") || !strings.Contains(text, "is enabled") {
		t.Errorf("draining shows:\n%s", text)
	}
	if err := demo.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := demo.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v\n%s", err, stderr.String())
	}
}
