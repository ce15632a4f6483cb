// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// expired writes a certificate that was good until yesterday; whoever believes it
// believes no other.
func expired(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().AddDate(0, -1, 0), NotAfter: time.Now().AddDate(0, 0, -1),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}}, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "expired.crt"), filepath.Join(dir, "expired.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: text}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// startMute accepts, and says nothing ever.
func startMute(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
		}
	}()
	return ln.Addr().String()
}

// startCounter reads to the end of what comes, and says then how much it was.
func startCounter(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				n, _ := io.Copy(io.Discard, c)
				_, _ = fmt.Fprintf(c, "%d bytes\n", n)
				_ = c.Close()
			}()
		}
	}()
	return ln.Addr().String()
}

// secureWorld is a weir whose listeners lead to nginx, which speaks TLS, and to others.
type secureWorld struct {
	*weir
	ca        *weirtest.Authority
	authority string // its file
	log       string
	at        map[string]string // the address of each listener
	bad       map[string]string // and of the backend that each is to get around; of some
	talker    string            // who is behind nginx
	good      string            // nginx before it
}

func startSecureWorld(t *testing.T) *secureWorld {
	dir := t.TempDir()
	w := &secureWorld{ca: weirtest.NewAuthority(t), log: filepath.Join(dir, "access.log"), at: map[string]string{}, talker: startTalker(t).addr, good: freeAddr(t)}
	w.authority = w.ca.WritePool(dir)
	cert, key := w.ca.Write(dir, "db", w.ca.Issue("db.test"))
	old, oldKey := expired(t, dir, "db.test")
	other := weirtest.NewAuthority(t)
	alien, alienKey := other.Write(dir, "alien", other.Issue("db.test"))
	strange, strangeKey := w.ca.Write(dir, "strange", w.ca.Issue("other.test"))
	half, told, late, unknown, wrong := freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
	pass := "  server { listen %s ssl; ssl_certificate %s; ssl_certificate_key %s; proxy_pass %s; proxy_half_close on; }\n"
	startNginx(t, w.good, "stream {\n  ssl_protocols TLSv1.2 TLSv1.3;\n"+
		fmt.Sprintf(pass, w.good, cert, key, w.talker)+fmt.Sprintf(pass, half, cert, key, startCounter(t))+
		fmt.Sprintf(pass, late, old, oldKey, w.talker)+fmt.Sprintf(pass, unknown, alien, alienKey, w.talker)+fmt.Sprintf(pass, wrong, strange, strangeKey, w.talker)+
		fmt.Sprintf("  server { listen %s ssl proxy_protocol; ssl_certificate %s; ssl_certificate_key %s; return \"$proxy_protocol_addr $ssl_protocol $ssl_server_name.\\n\"; }\n}\n", told, cert, key))
	w.bad = map[string]string{"wrong": wrong, "unknown": unknown, "late": late, "plain": w.talker, "mute": startMute(t)}

	listeners, pools := "", ""
	add := func(name, listener, backends, pool string) {
		w.at[name] = freeAddr(t)
		listeners += fmt.Sprintf("  %s: {bind: %q, protocol: tcp, pool: %[1]s%[3]s}\n", name, w.at[name], listener)
		pools += fmt.Sprintf("  %s: {backends: [%s], tls: {ca: %q, server_name: db.test}, timeouts: {connect: 1s}%s}\n", name, backends, w.authority, pool)
	}
	const unprobed = ", balance: round_robin, health: {active: off, passive: off}"
	add("good", "", `"tls://`+w.good+`"`, "")
	add("half", "", `"tls://`+half+`"`, "")
	add("both", "", `"tcp://`+w.talker+`", "tls://`+w.good+`"`, ", balance: round_robin")
	add("ended", fmt.Sprintf(", tls: {certificates: [{cert: %q, key: %q}]}", cert, key), `"tls://`+w.good+`"`, "")
	add("v1", "", `"tls://`+told+`"`, ", send_proxy_protocol: v1")
	add("v2", "", `"tls://`+told+`"`, ", send_proxy_protocol: v2")
	add("asked", "", `"tls://`+w.good+`"`, `, health: {active: {send: 'how are you\n', body: how are you, interval: 200ms, fast_interval: 200ms}}`)
	add("probed", "", `"tls://`+w.bad["plain"]+`", "tls://`+wrong+`", "tls://`+w.good+`"`, ", health: {active: {interval: 200ms, fast_interval: 200ms}}")
	for name, addr := range w.bad {
		add(name, "", `"tls://`+addr+`", "tls://`+w.good+`"`, unprobed)
		add(name+"-alone", "", `"tls://`+addr+`"`, unprobed)
	}
	// An expired certificate that is believed otherwise.
	pools = strings.Replace(pools, "late-alone: {backends: [\"tls://"+late+"\"], tls: {ca: \""+w.authority, "late-alone: {backends: [\"tls://"+late+"\"], tls: {ca: \""+old, 1)
	w.weir = startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: {path: %q}}
listeners:
  first: {bind: "${LISTEN}", protocol: tcp, pool: good}
%spools:
%s`, w.log, listeners, pools))
	return w
}

// logged returns the lines of the access log of a listener once there are so many.
func (w *secureWorld) logged(t *testing.T, listener string, n int) (lines []string) {
	t.Helper()
	eventually(t, 20*time.Second, "the log of "+listener, func() bool {
		text, _ := os.ReadFile(w.log)
		lines = nil
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, fmt.Sprintf("\"listener\":%q", listener)) {
				lines = append(lines, line)
			}
		}
		return len(lines) >= n
	})
	return lines
}

// TestTLSToBackends: nginx speaks TLS to a weir that passes sessions on, in clear and
// out of TLS that ended there. Its checks do so, too.
func TestTLSToBackends(t *testing.T) {
	w := startSecureWorld(t)
	for _, name := range []string{"good", "both", "both", "asked", "probed", "ended"} {
		conn := net.Conn(nil)
		if name == "ended" {
			conn = tls.Client(dialClient(t, w.at[name]), &tls.Config{RootCAs: w.ca.Pool(), ServerName: "db.test"})
		} else {
			conn = dialClient(t, w.at[name])
		}
		c, err := chatOver(conn)
		for i := 0; err == nil && i < 3; i++ {
			err = c.say(strings.Repeat("x", 20<<i))
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.with != w.talker {
			t.Errorf("%s: %s has answered", name, c.with)
		}
		_ = c.c.Close()
	}
	for _, line := range w.logged(t, "good", 1) {
		if !strings.Contains(line, `"reason":"ok"`) || !strings.Contains(line, `"backend":"`+w.good+`"`) {
			t.Errorf("logged: %s", line)
		}
	}
	eventually(t, 20*time.Second, "the checks have found out", func() bool {
		b := w.backends(t, "probed")
		return b[w.bad["plain"]].Health == "broken" && b[w.bad["wrong"]].Health == "broken" && b[w.good].Health == "healthy" && w.backends(t, "asked")[w.good].Health == "healthy"
	})
}

// TestTLSToBackendsHalves: the end of the client's half reaches the server behind nginx,
// and its answer comes after that; much is whole.
func TestTLSToBackendsHalves(t *testing.T) {
	w := startSecureWorld(t)
	c := dialClient(t, w.at["half"]).(*net.TCPConn)
	part := make([]byte, 1<<20)
	for range 8 {
		if _, err := c.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.CloseWrite()
	got, err := io.ReadAll(c)
	if want := fmt.Sprintf("%d bytes\n", 8<<20); err != nil || string(got) != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if line := w.logged(t, "half", 1)[0]; !strings.Contains(line, `"reason":"ok"`) || !strings.Contains(line, fmt.Sprintf(`"bytes_in":%d`, 8<<20)) {
		t.Errorf("logged: %s", line)
	}
}

// TestTLSToBackendsIntroduced: nginx reads the PROXY header before the handshake, in
// both versions, and its checks pass, which begin in the same way.
func TestTLSToBackendsIntroduced(t *testing.T) {
	w := startSecureWorld(t)
	for _, name := range []string{"v1", "v2"} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 77)}, Timeout: 5 * time.Second}
		c, err := d.Dial("tcp", w.at[name])
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		line, err := bufio.NewReader(c).ReadString('\n')
		if want := "127.0.0.77 TLSv1.3 db.test.\n"; err != nil || line != want {
			t.Errorf("%s: %q, %v; want %q", name, line, err, want)
		}
		_ = c.Close()
		eventually(t, 20*time.Second, name+" is healthy", func() bool {
			for _, b := range w.backends(t, name) {
				return b.Health == "healthy"
			}
			return false
		})
	}
}

// TestTLSToBackendsFails: a certificate for another name, of nobody known, or of
// yesterday, a server without TLS and one that says nothing cost a session another
// attempt; where there is no other server it is reset, and the log says why.
func TestTLSToBackendsFails(t *testing.T) {
	w := startSecureWorld(t)
	says := map[string]string{"wrong": "db.test", "unknown": "unknown authority", "late": "expired", "plain": "first record does not look like a TLS handshake", "mute": "timeout"}
	for name, addr := range w.bad {
		for range 2 { // by turns
			began := time.Now()
			c, err := openChat(w.at[name])
			if err != nil || c.with != w.talker {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if d := time.Since(began); d > 10*time.Second {
				t.Errorf("%s: it took %v", name, d)
			}
			_ = c.c.Close()
		}
		tried := 0
		for _, line := range w.logged(t, name, 2) {
			if strings.Contains(line, `"tls_failed"`) && strings.Contains(line, addr) {
				tried++
			}
		}
		if tried == 0 {
			t.Errorf("%s: nobody has met the bad one: %s", name, w.logged(t, name, 2))
		}
		c := dialClient(t, w.at[name+"-alone"])
		if got, err := io.ReadAll(c); err == nil || len(got) > 0 {
			t.Errorf("%s alone: the client got %q and %v, not a reset", name, got, err)
		}
		_ = c.Close()
		if line := w.logged(t, name+"-alone", 1)[0]; !strings.Contains(line, `"reason":"tls_failed"`) || !strings.Contains(line, says[name]) {
			t.Errorf("%s alone, logged: %s", name, line)
		}
	}
}

// TestTLSToOpenSSL: OpenSSL's server asks for a certificate, and gets it.
func TestTLSToOpenSSL(t *testing.T) {
	dir := t.TempDir()
	ca := weirtest.NewAuthority(t)
	authority := ca.WritePool(dir)
	cert, key := ca.Write(dir, "db", ca.Issue("db.test"))
	own, ownKey := ca.Write(dir, "weir", ca.Issue("weir.test"))
	back, bare := freeAddr(t), freeAddr(t)
	p := spawn(t, tool(t, "openssl"), "s_server", "-accept", back, "-cert", cert, "-key", key, "-Verify", "1", "-CAfile", authority, "-verify_return_error", "-rev", "-quiet")
	waitListening(t, p, back)
	log := filepath.Join(dir, "access.log")
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: {path: %q}}
listeners:
  with: {bind: "${LISTEN}", protocol: tcp, pool: with}
  without: {bind: %q, protocol: tcp, pool: without}
pools:
  with: {backends: ["tls://%[3]s"], health: {active: off}, tls: {ca: %[4]q, server_name: db.test, cert: %[5]q, key: %[6]q}}
  without: {backends: ["tls://%[3]s"], health: {active: off}, tls: {ca: %[4]q, server_name: db.test}}
`, log, bare, back, authority, own, ownKey))
	c := dialClient(t, w.addr)
	_, _ = io.WriteString(c, "weir\n")
	if line, err := bufio.NewReader(c).ReadString('\n'); line != "riew\n" {
		t.Errorf("%q, %v", line, err)
	}
	_ = c.Close()
	c = dialClient(t, bare)
	if got, err := io.ReadAll(c); err == nil || len(got) > 0 {
		t.Errorf("without a certificate: %q, %v", got, err)
	}
	_ = c.Close()
	eventually(t, 20*time.Second, "the log says what the server has said", func() bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "certificate required")
	})
}

// TestTLSToBackendsExplained: the commands know the scheme.
func TestTLSToBackendsExplained(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	text := "listeners: {db: {bind: \":6379\", protocol: tcp, pool: db}}\npools: {db: {backends: [\"tls://redis-1.example.com:6380\", \"tls://redis-2.example.com:6380\"]}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(binary, "explain", "-c", file, "tcp://db.example.com:6379").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "connect_refused, connect_timeout, tls_failed") {
		t.Errorf("explain: %v\n%s", err, out)
	}
	if out, err := exec.Command(binary, "check", "-c", file).CombinedOutput(); err != nil || strings.Contains(string(out), "warning") {
		t.Errorf("check: %v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, "protocol: tcp, ", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(binary, "check", "-c", file).CombinedOutput(); err == nil || !strings.Contains(string(out), "write https://redis-1.example.com:6380") {
		t.Errorf("check of an http listener: %v\n%s", err, out)
	}
}
