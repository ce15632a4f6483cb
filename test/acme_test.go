// SPDX-License-Identifier: Apache-2.0

package test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// pebble is Let's Encrypt's authority for tests, with a name server that leads
// every name to this machine.
type pebble struct {
	*process
	directory                        string // where weir asks; the way there can be cut
	own, management, ca, config, dns string
	http, tls                        string // where it looks for challenges
	way                              net.Listener
}

// open lets the authority be reached; away takes that back. It forgets nothing
// meanwhile, as it would if it were started anew.
func (p *pebble) open(t *testing.T) {
	t.Helper()
	ln, err := net.Listen("tcp", p.directory)
	if err != nil {
		t.Fatal(err)
	}
	p.way = ln
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = in.Close() }()
				out, err := net.Dial("tcp", p.own)
				if err != nil {
					return
				}
				defer func() { _ = out.Close() }()
				go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}

func (p *pebble) away() { _ = p.way.Close() }

// acmeTool finds a program that make installs, or skips the test.
func acmeTool(t *testing.T, name string) string {
	t.Helper()
	for _, path := range []string{os.Getenv(strings.ToUpper(strings.ReplaceAll(name, "-", "_"))), "../bin/" + name} {
		if _, err := os.Stat(path); path != "" && err == nil {
			if path, err = filepath.Abs(path); err == nil {
				return path
			}
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not here: make e2e installs it from its Go module", name)
	}
	return path
}

// newPebble prepares an authority whose certificates last for so long; start runs
// it.
func newPebble(t *testing.T, life time.Duration) *pebble {
	t.Helper()
	acmeTool(t, "pebble")
	names, dir := acmeTool(t, "pebble-challtestsrv"), t.TempDir()
	p := &pebble{directory: freeAddr(t), own: freeAddr(t), management: freeAddr(t), http: freeAddr(t), tls: freeAddr(t), dns: freeAddr(t), config: filepath.Join(dir, "pebble.json")}
	ca := weirtest.NewAuthority(t)
	cert, key := ca.Write(dir, "pebble", ca.Issue("localhost", "127.0.0.1"))
	p.ca = ca.WritePool(dir)
	port := func(addr string) int {
		_, s, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(s)
		return n
	}
	text, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": p.own, "managementListenAddress": p.management, "certificate": cert, "privateKey": key,
		"httpPort": port(p.http), "tlsPort": port(p.tls), "keyAlgorithm": "ecdsa", "retryAfter": map[string]int{"authz": 1, "order": 1},
		"profiles": map[string]any{"default": map[string]any{"description": "short", "validityPeriod": int(life.Seconds())}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	spawn(t, names, "-defaultIPv6", "", "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-management", freeAddr(t), "-dnsserver", p.dns)
	return p
}

func (p *pebble) start(t *testing.T) {
	t.Helper()
	p.process = spawnEnv(t, []string{"PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0"}, acmeTool(t, "pebble"), "-config", p.config, "-dnsserver", p.dns)
	waitListening(t, p.process, p.own)
	waitListening(t, p.process, p.management)
	p.open(t)
}

// roots are what certificates of this run of the authority are verified against.
func (p *pebble) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := c.Get("https://" + p.management + "/roots/0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(text) {
		t.Fatalf("no roots: %q, %v", text, err)
	}
	return pool
}

// shown returns the certificate that is shown for a name at an address.
func shown(addr, name string) (*x509.Certificate, error) {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", addr, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	return c.ConnectionState().PeerCertificates[0], nil
}

// verified reports whether what is shown for a name is the authority's, and good.
func verified(addr, name string, roots *x509.CertPool) error {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", addr, &tls.Config{ServerName: name, RootCAs: roots})
	if err == nil {
		_ = c.Close()
	}
	return err
}

// acmeWeir is a weir that has one certificate as a file, and gets others.
type acmeWeir struct {
	*process
	plain, secure, admin string
}

func startACME(t *testing.T, p *pebble, plain, secure, storage, challenges, auth string, names ...string) *acmeWeir {
	t.Helper()
	dir := t.TempDir()
	ca := weirtest.NewAuthority(t)
	cert, key := ca.Write(dir, "file", ca.Issue("file.example.com"))
	w := &acmeWeir{plain: plain, secure: secure, admin: freeAddr(t)}
	file := filepath.Join(dir, "weir.yaml")
	text := fmt.Sprintf(`admin: {bind: %q}
acme: {directory: "https://%s/dir", ca: %q, storage: %q, challenges: [%s], email: ops@example.com}
listeners:
  plain: {bind: %q, routes: [{redirect: {scheme: https}}]}
  secure:
    bind: %q
    tls: {certificates: [{cert: %q, key: %q}], acme: [%s], client_auth: %s}
    routes: [{respond: {code: 200, body: "weir"}}]
`, w.admin, p.directory, p.ca, storage, challenges, w.plain, w.secure, cert, key, strings.Join(names, ", "), auth)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.process = spawn(t, binary, "run", "-c", file)
	for _, addr := range []string{w.plain, w.secure, w.admin} {
		waitListening(t, w.process, addr)
	}
	return w
}

// orders counts the attempts to get a certificate that ended in a way.
func (w *acmeWeir) orders(t *testing.T, outcome string) int {
	t.Helper()
	return int((&weir{process: w.process, admin: w.admin}).sum(t, "weir_acme_orders_total", outcome))
}

func (w *acmeWeir) stop() {
	w.signal(os.Interrupt)
	<-w.done
}

// TestACME obtains certificates from a real authority by either challenge, shares
// them between two weirs, keeps them while the authority is away, and renews them
// when it is back.
func TestACME(t *testing.T) {
	p := newPebble(t, 90*24*time.Hour) // pebble has what lasts for less than some days renewed at once
	storage := filepath.Join(t.TempDir(), "acme")

	// Nobody issues anything: the rest is served, and it is said.
	w := startACME(t, p, p.http, p.tls, storage, "http-01", "off", "one.example.com")
	eventually(t, 10*time.Second, "the failure is counted", func() bool {
		return w.orders(t, "failed") == 1
	})
	if c, err := shown(w.secure, "file.example.com"); err != nil || c.DNSNames[0] != "file.example.com" {
		t.Errorf("the certificate of a file: %v", err)
	}
	out, err := exec.Command(binary, "status", "--admin", w.admin).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "certificate one.example.com is NOT ISSUED yet: ") {
		t.Errorf("status: %s, %v", out, err)
	}
	w.stop()

	// By each challenge, where clients must show certificates, too.
	p.start(t)
	auth := fmt.Sprintf("{mode: required, ca: %q}", p.ca)
	for challenge, name := range map[string]string{"http-01": "one.example.com", "tls-alpn-01": "two.example.com"} {
		w = startACME(t, p, p.http, p.tls, storage, challenge, auth, name)
		eventually(t, 20*time.Second, "a certificate by "+challenge, func() bool { return w.orders(t, "obtained") == 1 })
		w.stop()
	}
	// Another weir has them at once, of the same folder, and of whoever may be asked.
	roots := p.roots(t)
	w = startACME(t, p, p.http, p.tls, storage, "http-01, tls-alpn-01", "off", "one.example.com", "two.example.com")
	beside := startACME(t, p, freeAddr(t), freeAddr(t), storage, "http-01, tls-alpn-01", "off", "one.example.com", "two.example.com")
	for _, name := range []string{"one.example.com", "two.example.com"} {
		for _, x := range []*acmeWeir{w, beside} {
			if err := verified(x.secure, name, roots); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	curl, err := exec.Command("curl", "-sk", "--resolve", "one.example.com:"+portIn(w.secure)+":127.0.0.1", "https://one.example.com:"+portIn(w.secure)+"/").CombinedOutput()
	if err != nil || string(curl) != "weir" {
		t.Errorf("curl: %q, %v", curl, err)
	}
	if n := w.orders(t, "obtained") + beside.orders(t, "obtained"); n != 0 {
		t.Errorf("%d certificates were ordered that there were", n)
	}
	// What is no challenge of weir's own is a request like any other.
	res, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Get("http://" + w.plain + "/.well-known/acme-challenge/other")
	if err != nil || res.StatusCode != 308 {
		t.Errorf("another's challenge: %v, %v", res, err)
	} else {
		_ = res.Body.Close()
	}
}

// TestACMERenewal: an authority that is away costs nobody a handshake: what it
// issued is shown on, even past its end, and renewed when it is back.
func TestACMERenewal(t *testing.T) {
	p := newPebble(t, 4*time.Second)
	p.start(t)
	storage := filepath.Join(t.TempDir(), "acme")
	start := func() *acmeWeir {
		return startACME(t, p, p.http, p.tls, storage, "http-01", "off", "one.example.com")
	}
	w := start()
	eventually(t, 20*time.Second, "a certificate", func() bool { return w.orders(t, "obtained") == 1 })
	before, err := shown(w.secure, "one.example.com")
	if err != nil || before.DNSNames[0] != "one.example.com" {
		t.Fatal(before, err)
	}
	w.stop()
	p.away()
	time.Sleep(time.Until(before.NotAfter.Add(-time.Second))) // a third of its life is left before that
	w = start()
	if c, err := shown(w.secure, "one.example.com"); err != nil || !c.Equal(before) {
		t.Errorf("without the authority: %v", err)
	}
	eventually(t, 10*time.Second, "the renewal fails", func() bool { return w.orders(t, "failed") == 1 })
	if c, err := shown(w.secure, "one.example.com"); err != nil || !c.Equal(before) {
		t.Errorf("after the renewal failed: %v", err)
	}
	w.stop()
	p.open(t)
	w = start()
	eventually(t, 20*time.Second, "the renewal", func() bool {
		c, err := shown(w.secure, "one.example.com")
		return err == nil && !c.Equal(before) && c.NotAfter.After(before.NotAfter)
	})
}

func portIn(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}
