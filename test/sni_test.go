// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// named is a weir that routes by name to nginx, HAProxy and openssl's server, each
// with a certificate for its own name.
type named struct {
	*weir
	ca   *weirtest.Authority
	file string // the authority's certificate
	port string
	log  string
}

func startNamed(t *testing.T) *named {
	t.Helper()
	dir := t.TempDir()
	n := &named{ca: weirtest.NewAuthority(t), log: filepath.Join(dir, "access.log")}
	n.file = n.ca.WritePool(dir)
	ng, ha, os1 := freeAddr(t), freeAddr(t), freeAddr(t)
	cert, key := n.ca.Write(dir, "nginx", n.ca.Issue("nginx.test", "x.wild.test", "xn--bcher-kva.test"))
	startNginx(t, ng, fmt.Sprintf(`http { %s
  server { listen %s ssl http2; ssl_certificate %s; ssl_certificate_key %s; location / { return 200 "nginx $ssl_server_name $http_host"; } } }
`, nginxTemps, ng, cert, key))
	cert, key = n.ca.Write(dir, "haproxy", n.ca.Issue("haproxy.test"))
	pem := filepath.Join(dir, "haproxy.pem")
	text := append(read(t, cert), read(t, key)...)
	if err := os.WriteFile(pem, text, 0o600); err != nil {
		t.Fatal(err)
	}
	startHAProxy(t, ha, fmt.Sprintf(`frontend f
  mode http
  bind %s ssl crt %s alpn h2,http/1.1
  http-request return status 200 content-type text/plain string haproxy
`, ha, pem))
	cert, key = n.ca.Write(dir, "openssl", n.ca.Issue("openssl.test"))
	p := spawn(t, tool(t, "openssl"), "s_server", "-accept", os1, "-cert", cert, "-key", key, "-www", "-quiet")
	waitListening(t, p, os1)
	n.weir = startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: {path: %q}}
listeners:
  front:
    bind: "${LISTEN}"
    protocol: sni
    timeouts: {header: 1s}
    routes:
      - {match: {sni: [nginx.test, "*.wild.test", xn--bcher-kva.test]}, pool: nginx}
      - {match: {sni: HAProxy.test}, pool: haproxy}
      - {match: {sni: openssl.test, alpn: http/1.1}, pool: openssl}
      - {match: {sni: openssl.test, alpn: acme-tls/1}, pool: haproxy}
      - {name: rest, match: {alpn: [h2, http/1.1]}, pool: nginx}
pools:
  nginx: {backends: ["tcp://%s"]}
  haproxy: {backends: ["tcp://%s"]}
  openssl: {backends: ["tcp://%s"]}
`, n.log, ng, ha, os1))
	_, n.port, _ = net.SplitHostPort(n.addr)
	return n
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTLSByName: five clients reach three servers by name, without weir having a
// certificate.
func TestTLSByName(t *testing.T) {
	n := startNamed(t)
	run := func(stdin, name string, args ...string) string {
		c := exec.Command(tool(t, name), args...)
		c.Stdin = strings.NewReader(stdin)
		out, _ := c.CombinedOutput() // what it says is judged
		return string(out)
	}
	curl := func(name string, more ...string) string {
		return run("", "curl", append([]string{"-sS", "--cacert", n.file, "--resolve", name + ":" + n.port + ":127.0.0.1", "https://" + name + ":" + n.port + "/"}, more...)...)
	}
	get := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n" }
	for _, c := range []struct{ what, got, want string }{
		{"curl to nginx", curl("nginx.test"), "nginx nginx.test nginx.test"},
		{"curl by HTTP/2 to a wildcard", curl("x.wild.test", "--http2", "-w", " %{http_version}"), "nginx x.wild.test"},
		{"curl in upper case", curl("HAPROXY.test"), "haproxy"},
		{"curl by TLS 1.2", curl("haproxy.test", "--tls-max", "1.2"), "haproxy"},
		{"curl to openssl", curl("openssl.test", "--http1.1"), "s_server"},
		{"curl without a name", run("", "curl", "-sSk", "https://"+n.addr+"/"), "nginx"},
		{"openssl", run(get("nginx.test"), "openssl", "s_client", "-connect", n.addr, "-servername", "NGINX.TEST", "-CAfile", n.file, "-verify_return_error", "-verify_hostname", "nginx.test", "-ign_eof"), "nginx "},
		{"openssl without ALPN to a route that wants it", run(get("openssl.test"), "openssl", "s_client", "-connect", n.addr, "-servername", "openssl.test", "-ign_eof"), "unrecognized name"},
		{"openssl with another ALPN", run(get("x"), "openssl", "s_client", "-connect", n.addr, "-servername", "openssl.test", "-alpn", "acme-tls/1", "-ign_eof"), "CN = haproxy.test"},
		{"openssl with a name that nobody has", run("", "openssl", "s_client", "-connect", n.addr, "-servername", "nobody.test"), "unrecognized name"},
		{"openssl without a name", run("", "openssl", "s_client", "-connect", n.addr, "-noservername"), "unrecognized name"},
		{"gnutls", run(get("haproxy.test"), "gnutls-cli", "--x509cafile", n.file, "--verify-hostname", "haproxy.test", "--sni-hostname", "haproxy.test", "--alpn", "http/1.1", "-p", n.port, "127.0.0.1"), "haproxy"},
		{"gnutls by TLS 1.2", run(get("nginx.test"), "gnutls-cli", "--x509cafile", n.file, "--verify-hostname", "nginx.test", "--sni-hostname", "nginx.test", "--priority", "NORMAL:-VERS-TLS1.3", "-p", n.port, "127.0.0.1"), "nginx nginx.test"},
	} {
		if !strings.Contains(strings.Replace(c.got, "CN=", "CN = ", 1), c.want) && !strings.Contains(c.got, c.want) {
			t.Errorf("%s: no %q in\n%s", c.what, c.want, tail(c.got, 800))
		}
	}
	for _, name := range []string{"nginx.test", "haproxy.test"} {
		res, err := (&http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: n.ca.Pool(), ServerName: name}, ForceAttemptHTTP2: true}}).Get("https://" + n.addr + "/")
		if err != nil {
			t.Errorf("Go to %s: %v", name, err)
			continue
		}
		if _ = res.Body.Close(); res.ProtoMajor != 2 || res.TLS.CurveID != tls.X25519MLKEM768 && res.TLS.CurveID != tls.X25519 {
			t.Errorf("Go to %s: %s, %v", name, res.Proto, res.TLS.CurveID)
		}
	}
	eventually(t, 5*time.Second, "the log has names and reasons", func() bool {
		text := string(read(t, n.log))
		return strings.Contains(text, `"sni":"haproxy.test"`) && strings.Contains(text, `"reason":"no_route"`) && strings.Contains(text, `"sni":"nobody.test"`)
	})
	if s := n.sum(t, "weir_sessions_total", `reason="no_route"`); s != 3 {
		t.Errorf("%v sessions without a route are counted, want 3", s)
	}
}

// broken is a connection whose first bytes are sent in another way.
type broken struct {
	net.Conn
	first func(net.Conn, []byte) error
}

func (b *broken) Write(p []byte) (int, error) {
	first := b.first
	if first == nil {
		return b.Conn.Write(p)
	}
	b.first = nil
	return len(p), first(b.Conn, p)
}

// TestHelloInPieces: real servers finish a handshake whose hello came in single
// bytes, and in many records.
func TestHelloInPieces(t *testing.T) {
	n := startNamed(t)
	bytewise := func(c net.Conn, p []byte) error {
		for i := range p {
			if _, err := c.Write(p[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	records := func(size int) func(net.Conn, []byte) error {
		return func(c net.Conn, p []byte) error {
			var out []byte
			for part := range slices.Chunk(p[5:], size) {
				out = append(append(out, p[:3]...), byte(len(part)>>8), byte(len(part)))
				out = append(out, part...)
			}
			_, err := c.Write(out)
			return err
		}
	}
	long := []string{"http/1.1"} // offers that fill the hello to nearly 16 KiB
	for i := range 57 {
		long = append(long, fmt.Sprintf("%0250d", i))
	}
	for what, first := range map[string]func(net.Conn, []byte) error{
		"single bytes": bytewise, "records of 40": records(40), "records of 700": records(700), "nearly 16 KiB": nil, "nearly 16 KiB in records of 700": records(700),
	} {
		offers := long[:1]
		if strings.Contains(what, "KiB") {
			offers = long
		}
		for _, name := range []string{"nginx.test", "haproxy.test", "openssl.test"} {
			raw, err := net.Dial("tcp", n.addr)
			if err != nil {
				t.Fatal(err)
			}
			_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
			c := tls.Client(&broken{raw, first}, &tls.Config{RootCAs: n.ca.Pool(), ServerName: name, NextProtos: offers})
			_, _ = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", name)
			got, err := io.ReadAll(c)
			if want := strings.TrimSuffix(name, ".test"); !bytes.Contains(bytes.ToLower(got), []byte(strings.Replace(want, "openssl", "s_server", 1))) {
				t.Errorf("%s to %s: %v, %s", what, name, err, tail(string(got), 300))
			}
			_ = c.Close()
		}
	}
	// Who sends no hello is let go: at once where it is none, else in time.
	var all sync.WaitGroup
	for what, text := range map[string]string{"HTTP": "GET / HTTP/1.1\r\n\r\n", "silence": "", "half a hello": "\x16\x03\x01\x02\x00\x01"} {
		c := dialClient(t, n.addr)
		all.Go(func() {
			_, _ = io.WriteString(c, text)
			began := time.Now()
			_, _ = io.ReadAll(c) // a reset is an end
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s is kept for %s", what, took)
			}
		})
	}
	all.Wait()
}

// TestPostgresByName: psql reaches one of two real servers by name, though it
// speaks before TLS does.
func TestPostgresByName(t *testing.T) {
	if _, err := exec.LookPath("initdb"); err != nil {
		t.Skip("PostgreSQL is not installed")
	}
	dir := t.TempDir()
	ca := weirtest.NewAuthority(t)
	file := ca.WritePool(dir)
	data := ""
	one, two := startPostgres(t, ca, "one.test", &data), startPostgres(t, ca, "two.test", &data)
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners:
  db:
    bind: "${LISTEN}"
    protocol: sni
    routes:
      - {match: {sni: one.test}, starttls: postgres, pool: one}
      - {match: {sni: two.test}, starttls: postgres, pool: two}
pools:
  one: {backends: ["tcp://%s"]}
  two: {backends: ["tcp://%s"]}
`, one, two))
	_, port, _ := net.SplitHostPort(w.addr)
	psql := func(host, mode string) string {
		c := exec.Command("psql", fmt.Sprintf("host=%s hostaddr=127.0.0.1 port=%s user=postgres dbname=postgres sslmode=%s sslrootcert=%s connect_timeout=10", host, port, mode, file), "-Atc", "show cluster_name")
		out, _ := c.CombinedOutput() // what it says is judged
		return strings.TrimSpace(string(out))
	}
	for _, c := range []struct{ host, mode, want string }{
		{"one.test", "verify-full", "one.test"},
		{"TWO.test", "verify-full", "two.test"},
		{"one.test", "require", "one.test"},
		{"three.test", "require", "unrecognized name"},
		{"one.test", "disable", "sslmode=require"},
	} {
		if got := psql(c.host, c.mode); !strings.Contains(got, c.want) {
			t.Errorf("%s with sslmode=%s: %s", c.host, c.mode, got)
		}
	}
}

// startPostgres runs a server with TLS and a certificate for its name, on a copy of
// the data of another one, if there was one: making them takes seconds.
func startPostgres(t *testing.T, ca *weirtest.Authority, name string, like *string) string {
	t.Helper()
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	dir, err := os.MkdirTemp("", "weir-pg-") // under /tmp: a socket's path is short, and its owner another
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var as []string
	if os.Geteuid() == 0 { // it refuses to run so
		as = []string{tool(t, "setpriv"), "--reuid=postgres", "--regid=postgres", "--clear-groups"}
	}
	cert, key := ca.Write(dir, "server", ca.Issue(name))
	hba := filepath.Join(dir, "hba")
	if err := os.WriteFile(hba, []byte("host all all 127.0.0.1/32 trust\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(as) > 0 {
		if out, err := exec.Command("chown", "-R", "postgres:postgres", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	data := filepath.Join(dir, "data")
	create := append(slices.Clone(as), "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "--no-instructions")
	if *like != "" {
		create = []string{"cp", "-a", *like, data}
	}
	if out, err := exec.Command(create[0], create[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if *like == "" {
		*like = filepath.Join(dir, "as-made")
		if out, err := exec.Command("cp", "-a", data, *like).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	args := append(slices.Clone(as), "postgres", "-D", data, "-p", port, "-k", dir, "-c", "listen_addresses=127.0.0.1", "-c", "ssl=on", "-c", "fsync=off",
		"-c", "ssl_cert_file="+cert, "-c", "ssl_key_file="+key, "-c", "hba_file="+hba, "-c", "cluster_name="+name)
	p := spawn(t, args[0], args[1:]...)
	waitListening(t, p, addr)
	t.Cleanup(func() {
		p.signal(syscall.SIGQUIT)
		<-p.done
	})
	return addr
}
