// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestTLSDocument makes what docs/tls.md says by its own commands, and serves with it.
func TestTLSDocument(t *testing.T) {
	dir := t.TempDir()
	made := regexp.MustCompile(`(?m)^openssl .*$`).FindAllString(string(read(t, "../docs/tls.md")), -1)
	if len(made) != 2 {
		t.Fatalf("%d commands of openssl", len(made))
	}
	for _, line := range made {
		c := exec.Command("sh", "-c", line)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners:
  web:
    bind: "${LISTEN}"
    tls: {certificates: [{cert: %q, key: %q}], ticket_keys_file: %q}
    routes: [{respond: {code: 200, body: "served"}}]
`, file("site.crt"), file("site.key"), file("tickets.key")))
	_, port, _ := net.SplitHostPort(w.addr)
	out, err := exec.Command("curl", "-sS", "--cacert", file("site.crt"), "--resolve", "localhost:"+port+":127.0.0.1", "https://localhost:"+port+"/").CombinedOutput()
	if err != nil || string(out) != "served" {
		t.Errorf("curl: %s, %v", out, err)
	}
}

// TestTLSMixedPort: real clients find TLS that passes on to nginx and TLS that ends in
// weir on one port, by HTTP/2 and HTTP/1.1, and a session in clear.
func TestTLSMixedPort(t *testing.T) {
	dir, ca := t.TempDir(), weirtest.NewAuthority(t)
	file, ng, plain := ca.WritePool(dir), freeAddr(t), freeAddr(t)
	cert, key := ca.Write(dir, "nginx", ca.Issue("nginx.test"))
	startNginx(t, ng, fmt.Sprintf(`http { %s
  server { listen %s ssl http2; ssl_certificate %s; ssl_certificate_key %s; location / { return 200 "nginx $ssl_server_name"; } }
  server { listen %s proxy_protocol; location / { return 200 "clear $proxy_protocol_addr"; } } }
`, nginxTemps, ng, cert, key, plain))
	cert, key = ca.Write(dir, "weir", ca.Issue("weir.test", "clear.test"))
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners:
  front:
    bind: "${LISTEN}"
    protocol: sni
    routes:
      - {match: {sni: nginx.test}, pool: nginx}
      - {match: {sni: weir.test}, listener: web}
      - {match: {sni: clear.test}, listener: clear}
  web:
    tls: {certificates: [{cert: %[1]q, key: %[2]q}]}
    routes: [{respond: {code: 200, body: "weir"}}]
  clear:
    protocol: tcp
    tls: {certificates: [{cert: %[1]q, key: %[2]q}]}
    pool: clear
pools:
  nginx: {backends: ["tcp://%[3]s"]}
  clear: {backends: ["tcp://%[4]s"], send_proxy_protocol: v2}
`, cert, key, ng, plain))
	_, port, _ := net.SplitHostPort(w.addr)
	for _, c := range []struct{ name, version, want string }{
		{"nginx.test", "--http2", "nginx nginx.test 2"}, {"nginx.test", "--http1.1", "nginx nginx.test 1.1"},
		{"weir.test", "--http2", "weir 2"}, {"WEIR.test", "--http1.1", "weir 1.1"}, {"clear.test", "--http2", "clear 127.0.0.1 1.1"},
	} {
		out, err := exec.Command("curl", "-sS", c.version, "-w", " %{http_version}", "--cacert", file, "--resolve", c.name+":"+port+":127.0.0.1", "https://"+c.name+":"+port+"/").CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("%s of %s: %q, %v", c.version, c.name, out, err)
		}
	}
	c := exec.Command("gnutls-cli", "--x509cafile", file, "--verify-hostname", "weir.test", "--sni-hostname", "weir.test", "-p", port, "127.0.0.1")
	c.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: weir.test\r\nConnection: close\r\n\r\n")
	if out, _ := c.CombinedOutput(); !bytes.HasSuffix(bytes.TrimSpace(out), []byte("weir")) && !bytes.Contains(out, []byte("\nweir")) {
		t.Errorf("gnutls: %s", tail(string(out), 400))
	}
	if n := w.sum(t, "weir_tls_handshakes_total", `listener="web"`); n < 3 {
		t.Errorf("%v handshakes are counted where TLS ends", n)
	}
}

// TestHostileTLS: clients that stall, ask for old versions or for another handshake in
// the middle, or send more than a hello can have, are ended at once or in time, each
// counted under its name, while a good client is served.
func TestHostileTLS(t *testing.T) {
	dir, ca := t.TempDir(), weirtest.NewAuthority(t)
	cert, key := ca.Write(dir, "web", ca.Issue("web.test"))
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners:
  web:
    bind: "${LISTEN}"
    tls: {certificates: [{cert: %q, key: %q}]}
    timeouts: {header: 2s}
    routes: [{respond: {code: 200, body: "served"}}]
`, cert, key))
	outcome := func(word string) int { return int(w.sum(t, "weir_tls_handshakes_total", `outcome="`+word+`"`)) }
	openssl := func(stdin string, args ...string) string {
		c := exec.Command(tool(t, "openssl"), append([]string{"s_client", "-connect", w.addr, "-servername", "web.test"}, args...)...)
		c.Stdin = strings.NewReader(stdin)
		c.Env = append(os.Environ(), "OPENSSL_CONF=/dev/null")
		out, _ := c.CombinedOutput() // what it says is judged
		return string(out)
	}
	const flood = 300
	var stuck []net.Conn
	for i := range flood {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if i%2 == 0 {
			_, _ = io.WriteString(c, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
		}
		stuck = append(stuck, c)
	}
	good, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", w.addr, &tls.Config{RootCAs: ca.Pool(), ServerName: "web.test"})
	if err != nil {
		t.Fatalf("among %d that stall: %v", flood, err)
	}
	_ = good.Close()
	for _, c := range stuck {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil && os.IsTimeout(err) {
			t.Fatal("a client that stalls is kept")
		}
	}
	eventually(t, 10*time.Second, "those that stall are counted", func() bool {
		return outcome("timeout") == flood && w.sum(t, "weir_tls_handshakes_in_progress", "") == 0
	})
	if out := openssl("", "-tls1_1", "-cipher", "ALL@SECLEVEL=0"); !strings.Contains(out, "protocol version") {
		t.Errorf("TLS 1.1: %s", tail(out, 400))
	}
	if out := openssl("", "-tls1_2", "-fallback_scsv"); !strings.Contains(out, "inappropriate fallback") {
		t.Errorf("a fallback to TLS 1.2: %s", tail(out, 400))
	}
	if outcome("version") != 1 {
		t.Errorf("%d refused versions are counted", outcome("version"))
	}
	if out := openssl("R\nGET / HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n", "-tls1_2"); strings.Contains(out, "served") || !strings.Contains(out, "RENEGOTIATING") {
		t.Errorf("another handshake in the middle: %s", tail(out, 400))
	}
	// A hello that says it is of 16 MiB is refused before it is sent.
	huge, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = huge.Close() }()
	_ = huge.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = huge.Write(append([]byte("\x16\x03\x01\x40\x00\x01\xff\xff\xff"), make([]byte, 16<<10-4)...))
	if answer, _ := io.ReadAll(huge); len(answer) > 0 && answer[0] != 21 { // an alert, or a reset
		t.Errorf("a hello of 16 MiB is answered %q", answer)
	}
	res, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", w.addr, &tls.Config{RootCAs: ca.Pool(), ServerName: "web.test"})
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	_ = res.Close()
}
