// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/proxyproto"
	"github.com/weirlb/weir/internal/weirtest"
)

// bothWays is one port on which TLS for one name passes on and ends here for others:
// as HTTP, with a client certificate, and as a session in clear.
type bothWays struct {
	*running
	ca   *weirtest.Authority
	text string
}

func startBothWays(t *testing.T, more string) *bothWays {
	t.Helper()
	b := &bothWays{ca: weirtest.NewAuthority(t)}
	dir := t.TempDir()
	vault := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, "vault ", r.TLS.ServerName) }))
	vault.TLS = &tls.Config{Certificates: []tls.Certificate{b.ca.Issue("vault.test")}}
	vault.EnableHTTP2 = true
	vault.StartTLS()
	t.Cleanup(vault.Close)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "app ", r.Host, " ", r.Header.Get("X-Forwarded-Proto"), " ", r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("X-Forwarded-Client-Cert"))
	}))
	t.Cleanup(app.Close)
	cert, key := b.ca.Write(dir, "web", b.ca.Issue("web.test", "more.test", "strict.test"))
	b.text = fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners:
  front:
    bind: "127.0.0.1:0"
    protocol: sni
    proxy_protocol: {mode: optional, from: [127.0.0.1/32]}
    timeouts: {header: 5s}
    routes:
      - {match: {sni: vault.test}, pool: vault}
      - {match: {sni: plain.test}, listener: plain}
      - {match: {sni: strict.test}, listener: strict}
      - {listener: web}
  web:
    tls: {certificates: [{cert: %[1]q, key: %[2]q}]}
    %[3]s
    routes:
      - {match: {host: more.test}, respond: {code: 200, body: more}}
      - {pool: app}
  strict:
    tls: {certificates: [{cert: %[1]q, key: %[2]q}], client_auth: {mode: required, ca: %[4]q}}
    routes:
      - {match: {path: /told}, pool: told}
      - {pool: app}
  plain:
    protocol: tcp
    tls: {certificates: [{cert: %[1]q, key: %[2]q}], client_auth: {mode: optional, ca: %[4]q}, alpn: [imap, pop3]}
    pool: plain
pools:
  vault: {backends: ["tcp://%[5]s"]}
  app: {backends: [%[6]q]}
  plain: {backends: ["tcp://%[7]s"], send_proxy_protocol: v2}
  told: {backends: ["http://%[7]s"], send_proxy_protocol: v2}
`, cert, key, more, b.ca.WritePool(dir), strings.TrimPrefix(vault.URL, "https://"), app.URL, announced(t))
	b.running = start(t, b.text)
	return b
}

// announced is a server in clear that answers each line of a connection with what
// its PROXY header said, and the line; a request's, in HTTP.
func announced(t *testing.T) string {
	return rawBackend(t, func(c net.Conn, _ int) {
		r := bufio.NewReaderSize(c, proxyproto.MaxV2)
		var h proxyproto.Header
		for n := proxyproto.MinLen; ; n = r.Buffered() + 1 {
			if _, err := r.Peek(n); err != nil {
				return
			}
			b, _ := r.Peek(r.Buffered())
			got, size, why := proxyproto.Parse(b)
			if why == proxyproto.OK {
				h = got
				h.TLVs = bytes.Clone(got.TLVs)
				_, _ = r.Discard(size)
				break
			}
			if why != proxyproto.Short {
				return
			}
		}
		name, _ := h.TLV(proxyproto.TypeAuthority)
		alpn, _ := h.TLV(proxyproto.TypeALPN)
		ssl, _ := h.TLV(proxyproto.TypeSSL)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			says := fmt.Sprintf("%s|%s|%s|%x|%s|%s", h.Source.Addr(), name, alpn, ssl[:min(5, len(ssl))], ssl[min(5, len(ssl)):], line)
			if strings.HasPrefix(line, "GET ") {
				for err == nil && line != "\r\n" {
					line, err = r.ReadString('\n')
				}
				says = fmt.Sprintf("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(says), says)
			}
			if _, _ = io.WriteString(c, says); line == "\r\n" {
				return
			}
		}
	})
}

func (b *bothWays) addr() string { return strings.TrimPrefix(b.front, "http://") }

func (b *bothWays) dial(t *testing.T, header string, cfg *tls.Config) (*tls.Conn, error) {
	t.Helper()
	raw, err := net.DialTimeout("tcp", b.addr(), limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(limit))
	_, _ = io.WriteString(raw, header)
	cfg.RootCAs, cfg.InsecureSkipVerify = b.ca.Pool(), true
	c := tls.Client(raw, cfg)
	return c, c.Handshake()
}

// TestPassedOnAndEnded: on one port one name passes on and others end here, over both
// versions of HTTP and as a session, with the client's address, certificate and ALPN
// told to whoever is behind; a reload swaps the two for new connections.
func TestPassedOnAndEnded(t *testing.T) {
	b := startBothWays(t, "")
	for _, h2 := range []bool{false, true} {
		for name, want := range map[string]string{
			"vault.test": "vault vault.test", "web.test": "app web.test https 127.0.0.1 ", "more.test": "more",
		} {
			if got := mustGet(t, asking(t, b.running, b.ca, name, h2), "https://"+name+"/"); got.body != want {
				t.Errorf("h2 %v: %s: %+v", h2, name, got)
			}
		}
	}
	alice := b.ca.Issue("alice")
	strict := func(own ...tls.Certificate) string {
		c, err := b.dial(t, "PROXY TCP4 192.0.2.7 192.0.2.1 4000 443\r\n", &tls.Config{ServerName: "strict.test", Certificates: own})
		if err != nil {
			return err.Error()
		}
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: strict.test\r\nConnection: close\r\n\r\n")
		got, err := io.ReadAll(c)
		return fmt.Sprint(string(got), err)
	}
	if got := strict(alice); !strings.Contains(got, "app strict.test https 192.0.2.7 Hash=") || !strings.Contains(got, `Subject="CN=alice"`) {
		t.Errorf("with a certificate: %s", got)
	}
	if got := strict(); !strings.Contains(got, "certificate required") {
		t.Errorf("without a certificate: %s", got)
	}

	said := func(cfg *tls.Config) string {
		c, err := b.dial(t, "PROXY TCP4 192.0.2.7 192.0.2.1 4000 443\r\n", cfg)
		if err != nil {
			return err.Error()
		}
		_, _ = io.WriteString(c, "hello\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		return line
	}
	cache := tls.NewLRUClientSessionCache(1)
	for _, c := range []struct {
		cfg  *tls.Config
		want []string
	}{
		{&tls.Config{ServerName: "PLAIN.test"}, []string{"192.0.2.7|plain.test||0100000001|", "TLSv1.3", "TLS_AES_", "hello\n"}},
		{&tls.Config{ServerName: "plain.test", NextProtos: []string{"xmpp-client", "pop3"}}, []string{"|pop3|"}},
		{&tls.Config{ServerName: "plain.test", MaxVersion: tls.VersionTLS12}, []string{"TLSv1.2", "ECDHE-ECDSA-"}},
		{&tls.Config{ServerName: "plain.test", Certificates: []tls.Certificate{alice}, ClientSessionCache: cache}, []string{"|0700000000|", "alice"}},
		{&tls.Config{ServerName: "plain.test", Certificates: []tls.Certificate{alice}, ClientSessionCache: cache}, []string{"|0500000000|", "alice"}},
	} {
		got := said(c.cfg)
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%+v: no %q in %q", c.cfg.ServerName, w, got)
			}
		}
	}
	for _, h2 := range []bool{false, true} { // the same is said of what requests come on
		alpn := map[bool]string{true: "h2"}[h2]
		got := mustGet(t, asking(t, b.running, b.ca, "strict.test", h2, alice), "https://strict.test/told").body
		if !strings.HasPrefix(got, "127.0.0.1|strict.test|"+alpn+"|0700000000|") || !strings.Contains(got, "TLSv1.3") || !strings.Contains(got, "alice") {
			t.Errorf("told by requests: %q", got)
		}
	}
	if got := said(&tls.Config{ServerName: "plain.test", NextProtos: []string{"xmpp-client"}}); !strings.Contains(got, "no application protocol") {
		t.Errorf("without a protocol in common: %q", got)
	}

	e, err := b.Explain(admin.Question{URL: "https://more.test/"})
	if err != nil || e.Through == nil || e.Through.Listener != "front" || e.Request.Listener != "web" || e.Route != "more.test" {
		t.Errorf("explained: %+v, %v", e, err)
	}
	if e, err = b.Explain(admin.Question{URL: "https://plain.test/"}); err != nil || e.Pool == nil || e.Pool.Name != "plain" || e.Request.Listener != "plain" {
		t.Errorf("explained: %+v, %v", e, err)
	}
	kept := asking(t, b.running, b.ca, "web.test", false)
	_ = mustGet(t, kept, "https://web.test/")
	next := strings.Replace(b.text, "{listener: web}", "{pool: vault}", 1)
	next = strings.Replace(next, "{match: {sni: vault.test}, pool: vault}", "{match: {sni: vault.test}, listener: web}", 1)
	if _, err := b.Reload(parse(t, next), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := mustGet(t, kept, "https://web.test/"); got.body != "app web.test https 127.0.0.1 " {
		t.Errorf("the open connection: %+v", got)
	}
	if c, err := b.dial(t, "", &tls.Config{ServerName: "web.test"}); err != nil || c.ConnectionState().PeerCertificates[0].DNSNames[0] != "vault.test" {
		t.Errorf("after the reload: %v", err)
	}
	if c, err := b.dial(t, "", &tls.Config{ServerName: "vault.test"}); err != nil || c.ConnectionState().PeerCertificates[0].DNSNames[0] != "web.test" {
		t.Errorf("after the reload: %v", err)
	}
}

// TestPassedOnBounds: the listener that goes on counts connections against its own
// ceilings, gives places back, and is given up by a reload that leads nobody to it.
func TestPassedOnBounds(t *testing.T) {
	b := startBothWays(t, "limits: {max_connections: 1}")
	one, err := b.dial(t, "", &tls.Config{ServerName: "web.test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.dial(t, "", &tls.Config{ServerName: "web.test"}); err == nil {
		t.Error("a second connection is served beyond max_connections")
	}
	open := func(name string) int {
		for _, l := range b.liveListeners() {
			if l.name == name {
				return l.ln.Connections()
			}
		}
		return -1
	}
	eventually(t, "both count it", func() bool { return open("front") == 1 && open("web") == 1 })
	_ = one.Close()
	eventually(t, "both forget it", func() bool { return open("front") == 0 && open("web") == 0 })
	if _, err := b.dial(t, "", &tls.Config{ServerName: "web.test"}); err != nil {
		t.Errorf("the place is not given back: %v", err)
	}
	kept := asking(t, b.running, b.ca, "strict.test", false, b.ca.Issue("alice"))
	_ = mustGet(t, kept, "https://strict.test/")
	next := strings.Replace(b.text, "      - {match: {sni: strict.test}, listener: strict}\n", "", 1)
	from, to := strings.Index(next, "  strict:\n"), strings.Index(next, "  plain:\n    protocol")
	if _, err := b.Reload(parse(t, next[:from]+next[to:]), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := mustGet(t, kept, "https://strict.test/"); got.status != 200 {
		t.Errorf("the open connection of a listener that left: %+v", got)
	}
	if c, err := b.dial(t, "", &tls.Config{ServerName: "strict.test"}); err == nil && len(c.ConnectionState().PeerCertificates) > 0 {
		eventually(t, "it is counted elsewhere", func() bool { return open("strict") == -1 })
	}
}
