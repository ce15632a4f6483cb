// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// backend is the parent's hand on a scripted backend.
type backend struct {
	name, addr, ledger string
	settings           string // of its next start
	cmd                *exec.Cmd
	in                 io.WriteCloser
	out                *bufio.Reader
}

// newBackend starts one on a free port of loopback.
func newBackend(dir, name, settings string) (*backend, error) {
	b := &backend{name: name, addr: freeAddr(), ledger: filepath.Join(dir, name+".ledger"), settings: settings}
	return b, b.start()
}

// start runs a process on the backend's address: also after it was killed.
func (b *backend) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.cmd = exec.Command(self, b.addr, b.name, b.ledger, b.settings)
	b.cmd.Env = append(os.Environ(), role+"=backend")
	b.cmd.Stderr = os.Stderr
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := b.cmd.Start(); err != nil {
		return err
	}
	b.out = bufio.NewReader(out)
	line, err := b.out.ReadString('\n')
	if err != nil || line != "ready\n" {
		return fmt.Errorf("backend %s does not start: %q, %w", b.name, line, err)
	}
	return nil
}

// tell gives the process a command and waits until it is obeyed.
func (b *backend) tell(command string) error {
	if _, err := fmt.Fprintln(b.in, command); err != nil {
		return err
	}
	line, err := b.out.ReadString('\n')
	if err != nil {
		return fmt.Errorf("backend %s: %s: %w", b.name, command, err)
	}
	if line != "ok\n" {
		return fmt.Errorf("backend %s: %s: %s", b.name, command, strings.TrimSpace(line))
	}
	return nil
}

func (b *backend) signal(s syscall.Signal) error { return b.cmd.Process.Signal(s) }

// wait returns when the process is gone.
func (b *backend) wait() { _ = b.cmd.Wait() }

// kill ends it at once, however it is.
func (b *backend) kill() {
	_ = b.signal(syscall.SIGKILL)
	b.wait()
}

// freeAddr returns an address on loopback that nobody listens on, and that stays
// free while a killed backend is away: its port is below those that the kernel
// gives to connections that go out, its host one that hardly anybody else uses.
func freeAddr() string {
	for {
		addr := fmt.Sprintf("127.%d.%d.%d:%d", 64+rand.IntN(64), rand.IntN(256), 1+rand.IntN(254), 10000+rand.IntN(20000))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
}

func waitAddr(addr string) error {
	for range 400 {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return c.Close()
		}
		time.Sleep(25 * time.Millisecond)
	}
	return fmt.Errorf("nothing listens on %s after 10 s", addr)
}

// String is its address, as configurations want it.
func (b *backend) String() string { return b.addr }

// Name is its id in configurations.
func (b *backend) Name() string { return b.name }
