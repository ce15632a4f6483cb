// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
)

//go:embed config
var configs embed.FS

// subject is a balancer under test.
type subject struct {
	name        string // weir, nginx or haproxy
	addr, admin string
	dir, file   string
	cmd         *exec.Cmd
	done        chan struct{} // closed when the process has ended
}

// settings fill a committed configuration.
type settings struct {
	Dir, Listen, Admin string
	Backends, Backups  []*backend
	Extra              map[string]string // further words, by place in the template
}

var configOf = map[string]string{"weir": "weir.yaml", "nginx": "nginx.conf", "haproxy": "haproxy.cfg"}

// render writes the configuration of a balancer and returns its name.
func (s *subject) render(fill settings) error {
	name := configOf[s.name]
	t, err := template.New(name).Option("missingkey=zero").Funcs(template.FuncMap{
		"or": func(text, otherwise string) string {
			if text == "" {
				return otherwise
			}
			return text
		},
	}).ParseFS(configs, "config/"+name)
	if err != nil {
		return err
	}
	fill.Dir, fill.Listen, fill.Admin = s.dir, s.addr, s.admin
	if fill.Extra == nil {
		fill.Extra = map[string]string{}
	}
	var out bytes.Buffer
	if err := t.Execute(&out, fill); err != nil {
		return err
	}
	s.file = filepath.Join(s.dir, name)
	return os.WriteFile(s.file, out.Bytes(), 0o644)
}

func startSubject(name, dir string, fill settings) (*subject, error) {
	s := &subject{name: name, addr: freeAddr(), admin: freeAddr(), dir: dir}
	if name == "haproxy" {
		s.admin = filepath.Join(dir, "haproxy.sock")
	}
	if err := s.render(fill); err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	if err := waitAddr(s.addr); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w\n%s", name, err, s.said())
	}
	return s, nil
}

// start runs the program in its folder. Its output goes to a file: a pipe would
// end with the first process, and a successor writes on.
func (s *subject) start() error {
	switch s.name {
	case "weir":
		s.cmd = exec.Command(weirBinary(), "run", "-c", s.file)
	case "nginx":
		s.cmd = exec.Command(lookPath("nginx"), "-c", s.file, "-p", s.dir)
	case "haproxy":
		s.cmd = exec.Command(lookPath("haproxy"), "-f", s.file, "-db")
	}
	out, err := os.OpenFile(filepath.Join(s.dir, "said"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Dir = out, out, s.dir
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	cmd, done := s.cmd, make(chan struct{})
	s.done = done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	return nil
}

// said returns what it wrote so far.
func (s *subject) said() []byte {
	text, _ := os.ReadFile(filepath.Join(s.dir, "said"))
	return text
}

// stop kills the whole group: nginx's workers outlive a master that is killed,
// and weir's successor its predecessor.
func (s *subject) stop() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	<-s.done
}

func (s *subject) version() string {
	switch s.name {
	case "weir":
		return firstLine(weirBinary(), "version")
	case "nginx":
		return firstLine(lookPath("nginx"), "-v")
	}
	return firstLine(lookPath("haproxy"), "-v")
}

func weirBinary() string {
	name := os.Getenv("WEIR")
	if name == "" {
		name = "bin/weir"
	}
	if abs, err := filepath.Abs(name); err == nil {
		return abs // it is run in another folder
	}
	return name
}

// lookPath also looks where Debian keeps daemons.
func lookPath(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	return "/usr/sbin/" + name
}

func firstLine(name string, args ...string) string {
	out, _ := exec.Command(name, args...).CombinedOutput()
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}
