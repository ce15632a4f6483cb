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
	"time"
)

//go:embed config
var configs embed.FS

// subject is a balancer under test.
type subject struct {
	name        string // weir, nginx or haproxy
	addr, admin string
	dir, file   string
	cmd         *exec.Cmd
	said        bytes.Buffer // what it wrote; read after its end
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
	switch name {
	case "weir":
		s.cmd = exec.Command(weirBinary(), "run", "-c", s.file)
	case "nginx":
		s.cmd = exec.Command(lookPath("nginx"), "-c", s.file, "-p", dir)
	case "haproxy":
		s.cmd = exec.Command(lookPath("haproxy"), "-f", s.file, "-db")
	}
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := waitAddr(s.addr); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w\n%s", name, err, &s.said)
	}
	return s, nil
}

// stop kills the whole group: nginx's workers outlive a master that is killed.
func (s *subject) stop() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.cmd.Wait()
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
	if v := os.Getenv("WEIR"); v != "" {
		return v
	}
	return "bin/weir"
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
