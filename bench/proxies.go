// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"embed"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed config
var configs embed.FS

// ports holds the addresses of one run; each proxy has its own pair.
type ports struct{ plain, tls, grpc, l4, admin int }

// proxy is one program under test, started once and kept for all rounds.
type proxy struct {
	name    string
	version string
	dir     string // of the lab
	ports   ports
	cmd     *exec.Cmd
	errors  *bytes.Buffer
}

// lab is the working directory, the backend and the proxies of one run.
type lab struct {
	dir      string
	backends [3]int
	backend  *exec.Cmd
	logs     bool

	grpc        [3]int
	grpcBackend *exec.Cmd

	echo   [3]int // servers of UDP
	echoes []io.Closer
}

func newLab(logs bool) (*lab, error) {
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return nil, err
	}
	// nginx's workers drop privileges and must still reach their files.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	l := &lab{dir: dir, logs: logs}
	for i := range l.backends {
		l.backends[i] = freePort()
	}
	if err := writeCertificate(dir); err != nil {
		return nil, err
	}
	www := filepath.Join(dir, "www")
	if err := os.MkdirAll(www, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(www, "1m"), bytes.Repeat([]byte("weir"), 1<<18), 0o644); err != nil {
		return nil, err
	}
	conf, err := l.render("nginx-backend.conf", ports{})
	if err != nil {
		return nil, err
	}
	for i := range l.echo {
		port, c, err := echoDatagrams()
		if err != nil {
			return nil, err
		}
		l.echo[i], l.echoes = port, append(l.echoes, c)
	}
	l.backend = exec.Command(lookPath("nginx"), "-c", conf, "-p", dir)
	l.backend.Stderr = os.Stderr
	if err := l.backend.Start(); err != nil {
		return nil, fmt.Errorf("start the nginx backend: %w", err)
	}
	if err := l.startGRPC(); err != nil {
		return nil, err
	}
	return l, waitPort(l.backends[0])
}

func (l *lab) close() {
	stop(l.backend)
	stop(l.grpcBackend)
	for _, c := range l.echoes {
		_ = c.Close()
	}
	os.RemoveAll(l.dir)
}

// render fills a committed configuration with this run's ports and paths.
func (l *lab) render(name string, p ports) (string, error) {
	text, err := configs.ReadFile("config/" + name)
	if err != nil {
		return "", err
	}
	vars := map[string]string{
		"DIR": l.dir, "PLAIN": strconv.Itoa(p.plain), "TLS": strconv.Itoa(p.tls), "ADMIN": strconv.Itoa(p.admin),
		"B1": strconv.Itoa(l.backends[0]), "B2": strconv.Itoa(l.backends[1]), "B3": strconv.Itoa(l.backends[2]),
		"L4": strconv.Itoa(p.l4), "GRPC": strconv.Itoa(p.grpc), "G1": strconv.Itoa(l.grpc[0]), "G2": strconv.Itoa(l.grpc[1]), "G3": strconv.Itoa(l.grpc[2]),
		"U1": strconv.Itoa(l.echo[0]), "U2": strconv.Itoa(l.echo[1]), "U3": strconv.Itoa(l.echo[2]),
		"BODY128":    strings.Repeat("0123456789abcdef", 8),
		"ACCESS_LOG": "access_log off;", "LOG_GLOBAL": "", "LOG_DEFAULTS": "no log", "ACCESS": "off", "LOG": "log_skip",
	}
	if l.logs {
		vars["ACCESS_LOG"] = "access_log " + l.dir + "/nginx.log;"
		vars["LOG_GLOBAL"] = "log stdout format raw local0"
		vars["LOG_DEFAULTS"] = "log global\n  option httplog"
		vars["ACCESS"] = `{path: "` + l.dir + `/weir.log"}`
		vars["LOG"] = "log {\n\t\toutput file " + l.dir + "/caddy.log\n\t}"
	}
	out := os.Expand(string(text), func(k string) string {
		if v, ok := vars[k]; ok {
			return v
		}
		return "$" + k // nginx's own variables
	})
	path := filepath.Join(l.dir, name)
	return path, os.WriteFile(path, []byte(out), 0o644)
}

// nobody is an ordinary user, whom the kernel grants less: pipes, above all.
const nobody = 65534

// start launches one proxy and waits until it accepts.
func (l *lab) start(name string) (*proxy, error) {
	p := &proxy{name: name, dir: l.dir, ports: ports{freePort(), freePort(), freePort(), freePort(), freePort()}, errors: &bytes.Buffer{}}
	var conf string
	var err error
	switch name {
	case "weir", "weir-user":
		if conf, err = l.render("weir.yaml", p.ports); err == nil {
			p.cmd = exec.Command(envOr("WEIR", "bin/weir"), "run", "-c", conf)
			if name == "weir-user" {
				p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			}
			p.version = output(envOr("WEIR", "bin/weir"), "version")
		}
	case "nginx":
		if conf, err = l.render("nginx.conf", p.ports); err == nil {
			p.cmd = exec.Command(lookPath("nginx"), "-c", conf, "-p", l.dir)
			p.version = output(lookPath("nginx"), "-v")
		}
	case "haproxy":
		if conf, err = l.render("haproxy.cfg", p.ports); err == nil {
			p.cmd = exec.Command(lookPath("haproxy"), "-f", conf, "-db")
			p.version = output(lookPath("haproxy"), "-v")
		}
	case "caddy":
		if conf, err = l.render("Caddyfile", p.ports); err == nil {
			p.cmd = exec.Command(envOr("CADDY", "bin/caddy"), "run", "--config", conf, "--adapter", "caddyfile")
			p.cmd.Env = append(os.Environ(), "HOME="+l.dir, "XDG_DATA_HOME="+l.dir, "XDG_CONFIG_HOME="+l.dir)
			p.version = output(envOr("CADDY", "bin/caddy"), "version")
		}
	default:
		err = fmt.Errorf("no proxy is called %q: use weir, weir-user, nginx, haproxy, caddy", name)
	}
	if err != nil {
		return nil, err
	}
	if l.logs { // a real file, as in production: a pipe would charge its reader
		f, err := os.Create(filepath.Join(l.dir, name+".stdout"))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		p.cmd.Stdout = f
	}
	p.cmd.Stderr = p.errors
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	all := []int{p.ports.plain, p.ports.tls, p.ports.grpc, p.ports.l4}
	if name == "caddy" { // passes no connections on whole
		all = all[:3]
	}
	for _, port := range all {
		if err := waitPort(port); err != nil {
			stop(p.cmd)
			return nil, fmt.Errorf("%s: %w\n%s", name, err, p.errors)
		}
	}
	return p, nil
}

// at is the address of one of its ports.
func (p *proxy) at(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func stop(cmd *exec.Cmd) {
	if cmd == nil || cmd.Process == nil {
		return
	}
	_ = cmd.Process.Signal(os.Interrupt)
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		_ = cmd.Process.Kill()
		<-done
	}
}

// family returns the process and its children (nginx's workers).
func (p *proxy) family() []int {
	pids := []int{p.cmd.Process.Pid}
	kids, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[0]))
	for _, k := range kids {
		text, _ := os.ReadFile(k)
		for _, f := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// cpu returns user+system time so far. The kernel counts it exactly; the
// interface rounds each process to 10 ms, far below what a round uses.
func (p *proxy) cpu() (user, sys time.Duration) {
	for _, pid := range p.family() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+2:]))
		u, _ := strconv.Atoi(f[11])
		s, _ := strconv.Atoi(f[12])
		user += time.Duration(u) * 10 * time.Millisecond
		sys += time.Duration(s) * 10 * time.Millisecond
	}
	return user, sys
}

// rss returns resident memory in KiB, shared pages counted once per process.
func (p *proxy) rss() (kib int) {
	for _, pid := range p.family() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				n, _ := strconv.Atoi(strings.Fields(rest)[0])
				kib += n
			}
		}
	}
	return kib
}

// files returns how many descriptors are open.
func (p *proxy) files() (n int) {
	for _, pid := range p.family() {
		all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)) // gone: none
		n += len(all)
	}
	return n
}

var givenPorts = map[int]bool{}

// freePort never gives the same port twice. It is not safe for concurrent use.
func freePort() int {
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		if !givenPorts[port] {
			givenPorts[port] = true
			return port
		}
	}
}

func waitPort(port int) error {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for range 200 {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return c.Close()
		}
		time.Sleep(25 * time.Millisecond)
	}
	return fmt.Errorf("nothing listens on %s after 5 s", addr)
}

func envOr(key, def string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return def
}

// lookPath also looks where Debian keeps daemons.
func lookPath(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	return "/usr/sbin/" + name
}

func output(name string, args ...string) string {
	out, _ := exec.Command(name, args...).CombinedOutput()
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}

// writeCertificate makes one P-256 certificate, the same for every proxy.
func writeCertificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	for name, text := range map[string][]byte{"cert.pem": certPEM, "key.pem": keyPEM, "both.pem": append(certPEM, keyPEM...)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
