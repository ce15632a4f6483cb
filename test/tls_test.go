// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestTLSClients asks by openssl and curl: a session that one weir began goes on at
// another that has the same file of ticket keys, and not at one that has another;
// a client certificate is demanded, and what it says reaches the backend.
func TestTLSClients(t *testing.T) {
	dir := t.TempDir()
	ca := weirtest.NewAuthority(t)
	cert, key := ca.Write(dir, "web", ca.Issue("web.test"))
	mine, mineKey := ca.Write(dir, "alice", ca.Issue("alice"))
	authority := ca.WritePool(dir)
	for _, name := range []string{"shared", "other"} {
		out, err := exec.Command("openssl", "rand", "-base64", "48").Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), out, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(tickets, auth string) *weir {
		back := freeAddr(t)
		echo := echoFields(t, back)
		t.Cleanup(func() { _ = echo.Close() })
		return startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners:
  web: {bind: "${LISTEN}", tls: {certificates: [{cert: %q, key: %q}], ticket_keys_file: %q, client_auth: %s}, pool: app}
pools: {app: {backends: ["http://%s"]}}
`, cert, key, filepath.Join(dir, tickets), auth, back))
	}
	one, two, other := run("shared", "off"), run("shared", "off"), run("other", "off")
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		session := filepath.Join(dir, "session"+version)
		ask := func(w *weir, args ...string) string {
			c := exec.Command("openssl", append([]string{"s_client", "-connect", w.addr, "-servername", "web.test", "-CAfile", authority, "-ign_eof", version}, args...)...)
			c.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n")
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "Verify return code: 0") {
				t.Fatalf("openssl s_client %s: %v\n%s", version, err, out)
			}
			return string(out)
		}
		if out := ask(one, "-sess_out", session); !strings.Contains(out, "New, TLSv1") {
			t.Errorf("%s: not a new session", version)
		}
		if out := ask(two, "-sess_in", session); !strings.Contains(out, "Reused, TLSv1") {
			t.Errorf("%s: the session does not go on at another weir", version)
		}
		if out := ask(other, "-sess_in", session); strings.Contains(out, "Reused, TLSv1") {
			t.Errorf("%s: the session goes on where the keys are others", version)
		}
	}
	if n := two.sum(t, "weir_tls_handshakes_total", `outcome="resumed"`); n != 2 {
		t.Errorf("%v resumed handshakes are counted", n)
	}

	strict := run("shared", fmt.Sprintf("{mode: required, ca: %q}", authority))
	_, port, _ := net.SplitHostPort(strict.addr)
	curl := func(args ...string) (string, error) {
		out, err := exec.Command("curl", append([]string{"-sS", "--http1.1", "--cacert", authority, "--resolve", "web.test:" + port + ":127.0.0.1", "-H", "Client-Cert: :forged:",
			"-H", "X-Forwarded-Client-Cert: Hash=forged", "https://web.test:" + port + "/"}, args...)...).CombinedOutput()
		return string(out), err
	}
	if out, err := curl("--cert", mine, "--key", mineKey); err != nil || !strings.Contains(out, `Subject="CN=alice";DNS=alice`) || strings.Contains(out, "forged") {
		t.Errorf("with a certificate: %v, the backend has seen\n%s", err, out)
	}
	if out, err := curl(); err == nil {
		t.Errorf("without a certificate: %s", out)
	}
	if n := strict.sum(t, "weir_tls_handshakes_total", `outcome="client_cert_missing"`); n != 1 {
		t.Errorf("%v missing certificates are counted", n)
	}
}

// echoFields answers every request with its head.
func echoFields(t *testing.T, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				head := make([]byte, 0, 8192)
				for !strings.Contains(string(head), "\r\n\r\n") {
					n, err := c.Read(head[len(head):cap(head)])
					if err != nil {
						return
					}
					head = head[:len(head)+n]
				}
				_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(head), head)
			}()
		}
	}()
	return ln
}
