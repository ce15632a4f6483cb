// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// postgresPath lets the programs of PostgreSQL be found where Debian keeps them.
func postgresPath(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("initdb"); err == nil {
		return
	}
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(all) == 0 {
		t.Fatal("PostgreSQL is not installed: run `make deps`")
	}
	t.Setenv("PATH", os.Getenv("PATH")+":"+all[len(all)-1])
}

// TestPostgresByTCPLong: a client that listens hears after ten silent seconds under a
// limit of 60, and is cut under one of five; Ctrl-C ends a query, also where the
// listener chooses by name.
func TestPostgresByTCPLong(t *testing.T) {
	postgresPath(t)
	ca, data := weirtest.NewAuthority(t), ""
	one, two := startPostgres(t, ca, "one.test", &data), startPostgres(t, ca, "two.test", &data)
	patient, hasty, named := freeAddr(t), freeAddr(t), freeAddr(t)
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners:
  l: {bind: "${LISTEN}", protocol: tcp, pool: one}
  patient: {bind: %q, protocol: tcp, pool: one, timeouts: {idle: 60s}}
  hasty: {bind: %q, protocol: tcp, pool: one, timeouts: {idle: 5s}}
  named:
    bind: %q
    protocol: sni
    routes: [{match: {sni: one.test}, starttls: postgres, pool: one}, {match: {sni: two.test}, starttls: postgres, pool: two}]
pools:
  one: {backends: ["tcp://%s"], health: {active: {send: '\x00\x00\x00\x08\x04\xd2\x16\x2f', body: "/^[SN]/"}}}
  two: {backends: ["tcp://%s"], health: {active: {send: '\x00\x00\x00\x08\x04\xd2\x16\x2f', body: "/^[SN]/"}}}
`, patient, hasty, named, one, two))
	eventually(t, 20*time.Second, "checks pass", func() bool { return w.backends(t, "one")[one].Health == "healthy" })
	to := func(addr, host string) string {
		_, port, _ := net.SplitHostPort(addr)
		return fmt.Sprintf("host=%s hostaddr=127.0.0.1 port=%s user=postgres dbname=postgres sslmode=require connect_timeout=10", host, port)
	}
	listen := func(addr string) string {
		c := exec.Command("psql", to(addr, "one.test"), "-At")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var out output
		c.Stdout, c.Stderr = &out, &out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(in, "LISTEN news;\n")
		time.Sleep(10 * time.Second)
		if text, err := exec.Command("psql", to(patient, "one.test"), "-Atc", "NOTIFY news, 'hello'").CombinedOutput(); err != nil {
			t.Fatalf("notify: %v: %s", err, text)
		}
		_, _ = io.WriteString(in, "SELECT 1;\n")
		_ = in.Close()
		_ = c.Wait() // what it says is judged
		return out.String()
	}
	if got := listen(patient); !strings.Contains(got, `"hello"`) {
		t.Errorf("under a limit of 60 s: %s", got)
	}
	if got := listen(hasty); !strings.Contains(got, "closed the connection unexpectedly") && !strings.Contains(got, "connection to server was lost") {
		t.Errorf("under a limit of 5 s: %s", got)
	}
	for _, q := range []struct{ addr, host string }{{patient, "one.test"}, {named, "one.test"}, {named, "two.test"}} {
		c := exec.Command("psql", to(q.addr, q.host), "-At", "-c", "SELECT pg_sleep(60)")
		var out output
		c.Stdout, c.Stderr = &out, &out
		began := time.Now()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		_ = c.Process.Signal(syscall.SIGINT)
		_ = c.Wait()
		if took := time.Since(began); took > 30*time.Second || !strings.Contains(out.String(), "canceling statement due to user request") {
			t.Errorf("Ctrl-C through %s to %s: after %s: %s", q.addr, q.host, took, &out)
		}
	}
}

// TestPostgresEndedLong: psql asks for TLS in its own protocol, weir ends it, and the
// server is spoken to in clear, as it says itself; Ctrl-C ends a query there, too.
func TestPostgresEndedLong(t *testing.T) {
	postgresPath(t)
	ca, data, dir := weirtest.NewAuthority(t), "", t.TempDir()
	one, two := startPostgres(t, ca, "one.test", &data), startPostgres(t, ca, "two.test", &data)
	cert, key := ca.Write(dir, "weir", ca.Issue("one.test"))
	file := ca.WritePool(dir)
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners:
  db:
    bind: "${LISTEN}"
    protocol: sni
    routes:
      - {match: {sni: one.test}, starttls: postgres, listener: ended}
      - {match: {sni: two.test}, starttls: postgres, pool: two}
  ended: {protocol: tcp, tls: {certificates: [{cert: %q, key: %q}]}, pool: one}
pools:
  one: {backends: ["tcp://%s"]}
  two: {backends: ["tcp://%s"]}
`, cert, key, one, two))
	_, port, _ := net.SplitHostPort(w.addr)
	to := func(host, mode string) string {
		return fmt.Sprintf("host=%s hostaddr=127.0.0.1 port=%s user=postgres dbname=postgres sslmode=%s sslrootcert=%s connect_timeout=10", host, port, mode, file)
	}
	for _, c := range []struct{ host, mode, want string }{
		{"one.test", "require", "one.test|f"}, {"one.test", "verify-full", "one.test|f"}, {"two.test", "verify-full", "two.test|t"},
	} {
		out, err := exec.Command("psql", to(c.host, c.mode), "-Atc", "SELECT current_setting('cluster_name'), ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != c.want {
			t.Errorf("%s with sslmode=%s: %v: %s, want %s", c.host, c.mode, err, out, c.want)
		}
	}
	for _, host := range []string{"one.test", "two.test"} {
		c := exec.Command("psql", to(host, "require"), "-At", "-c", "SELECT pg_sleep(60)")
		var out output
		c.Stdout, c.Stderr = &out, &out
		began := time.Now()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		_ = c.Process.Signal(syscall.SIGINT)
		_ = c.Wait()
		if took := time.Since(began); took > 30*time.Second || !strings.Contains(out.String(), "canceling statement due to user request") {
			t.Errorf("Ctrl-C at %s: after %s: %s", host, took, &out)
		}
	}
	if out, err := exec.Command("psql", to("one.test", "require"), "-Atc", "SELECT repeat('x', 30000000)").Output(); err != nil || len(out) != 30000001 {
		t.Errorf("30 MB: %d bytes, %v", len(out), err)
	}
}

// TestSSHLong: 1 GiB by scp.
func TestSSHLong(t *testing.T) {
	ssh, key := startSSH(t)
	w := startRun(t, fmt.Sprintf("admin: {bind: \"${ADMIN}\"}\nlisteners: {l: {bind: \"${LISTEN}\", protocol: tcp, pool: p, timeouts: {idle: 10s}}}\npools: {p: {backends: [\"tcp://%s\"]}}\n", ssh))
	scp(t, w.addr, key, 1<<30, "")
}

// TestSlowTransferLong: a transfer at 1 MB/s is never idle, in either direction: the
// limit of 10 s passes several times.
func TestSlowTransferLong(t *testing.T) { slowTransfer(t, 1<<30, 16<<20) }

// TestSlowTransferAtOneLong is as long as 30 MB at 1 MB/s.
func TestSlowTransferAtOneLong(t *testing.T) { slowTransfer(t, 30e6, 1e6) }

// slowTransfer moves bytes from a backend to a client that takes so many a second,
// under an idle limit of 10 s.
func slowTransfer(t *testing.T, size int64, perSecond int) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.CopyN(c, zeroes{}, size)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
		}
	}()
	w := startRun(t, fmt.Sprintf("admin: {bind: \"${ADMIN}\"}\nlisteners: {l: {bind: \"${LISTEN}\", protocol: tcp, pool: p, timeouts: {idle: 10s}}}\npools: {p: {backends: [\"tcp://%s\"], health: {active: off}}}\n", ln.Addr()))
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began, got := time.Now(), int64(0)
	r := bufio.NewReaderSize(c, 64<<10)
	for {
		n, err := io.CopyN(io.Discard, r, int64(perSecond/10))
		if got += n; errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("after %d bytes and %s: %v", got, time.Since(began), err)
		}
		time.Sleep(time.Until(began.Add(time.Duration(float64(got) / float64(perSecond) * float64(time.Second)))))
	}
	if got != size {
		t.Errorf("%d bytes of %d", got, size)
	}
}

// zeroes has no end.
type zeroes struct{}

// Read implements io.Reader.
func (zeroes) Read(p []byte) (int, error) { return len(p), nil }
