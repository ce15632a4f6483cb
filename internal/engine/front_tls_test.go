// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// secureClient asks a listener under a name, with certificates of its own.
func secureClient(t *testing.T, r *running, ca *weirtest.Authority, own ...tls.Certificate) *http.Client {
	t.Helper()
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(r.front, "http://"))
		},
		TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), Certificates: own},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: limit}
}

// TestClientCertificates goes from the configuration to the backend, the log and
// the metrics, and over a change of what is forwarded.
func TestClientCertificates(t *testing.T) {
	ca, clients, dir := weirtest.NewAuthority(t), weirtest.NewAuthority(t), t.TempDir()
	cert, key := ca.Write(dir, "a", ca.Issue("a.test"))
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Strict-Transport-Security", "max-age=1")
		_, _ = fmt.Fprintf(w, "%q %q", r.Header["X-Forwarded-Client-Cert"], r.Header["Client-Cert"])
	}))
	t.Cleanup(back.Close)
	clients.WritePool(dir)
	text := func(auth string) string {
		return fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
log: {access: {path: %q}}
listeners:
  web:
    bind: "127.0.0.1:0"
    tls: {certificates: [{cert: %q, key: %q}], hsts: {max_age: 24h, subdomains: true}, client_auth: %s}
    routes:
      - {match: {path: /fixed}, respond: {code: 200}}
      - {match: {path: /own}, pool: app, response_headers: {set: {Strict-Transport-Security: max-age=7}}}
      - {match: {path: /app}, pool: app}
pools:
  app: {backends: [%q]}
`, filepath.Join(dir, "access.log"), cert, key, auth, back.URL)
	}
	required := fmt.Sprintf("{mode: required, ca: %q}", filepath.Join(dir, "ca.crt"))
	r := start(t, text(required))
	alice := secureClient(t, r, ca, clients.Issue("alice"))
	got := mustGet(t, alice, "https://a.test/app")
	if !strings.Contains(got.body, `Subject=\"CN=alice\";DNS=alice`) || !strings.HasSuffix(got.body, " []") {
		t.Errorf("the backend sees %s", got.body)
	}
	if _, err := secureClient(t, r, ca).Get("https://a.test/app"); err == nil {
		t.Error("served without a certificate")
	}
	for path, want := range map[string]string{"/app": "max-age=86400; includeSubDomains", "/fixed": "max-age=86400; includeSubDomains", "/none": "max-age=86400; includeSubDomains", "/own": "max-age=7"} {
		res, err := alice.Get("https://a.test" + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if sts := res.Header["Strict-Transport-Security"]; len(sts) != 1 || sts[0] != want {
			t.Errorf("%s: %q, want %q", path, sts, want)
		}
	}
	eventually(t, "the log says who it was", func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "access.log"))
		return strings.Contains(string(b), `"client_cert":"CN=alice"`)
	})
	metrics := mustGet(t, client(t), "http://"+r.Bound().Admin+"/metrics").body
	for _, want := range []string{
		`weir_tls_handshakes_total{listener="web",outcome="full"} 1`, `weir_tls_handshakes_total{listener="web",outcome="client_cert_missing"} 1`,
		`weir_tls_handshakes_in_progress{listener="web"} 0`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	// The connection that is open goes on, and tells the backend otherwise.
	if _, err := r.Reload(parse(t, text(strings.Replace(required, "ca:", "forward: [client_cert], ca:", 1))), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got = mustGet(t, alice, "https://a.test/app"); !strings.HasPrefix(got.body, `[] [":`) {
		t.Errorf("after the change the backend sees %s", got.body)
	}
	if _, err := r.Reload(parse(t, text("off")), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got = mustGet(t, secureClient(t, r, ca), "https://a.test/app"); got.body != "[] []" {
		t.Errorf("without client certificates the backend sees %s", got.body)
	}
}

// TestVerifyTLSFiles: what check finds in the files that TLS names.
func TestVerifyTLSFiles(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	cert, key := ca.Write(dir, "a", ca.Issue("a.test"))
	pool, garbage := ca.WritePool(dir), filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := weirtest.NewAuthority(t).Revoke(dir, time.Now().Add(time.Hour))
	for tail, want := range map[string]string{
		"": "",
		"client_auth: {mode: optional, ca: POOL}":               "",
		"client_auth: {mode: required, ca: GARBAGE}":            "client_auth.ca",
		"client_auth: {mode: required, ca: /none/ca}":           "no such file",
		"client_auth: {mode: required, ca: POOL, crl: GARBAGE}": "client_auth.crl",
		"client_auth: {mode: required, ca: POOL, crl: LIST}":    "nobody of client_auth.ca has signed it",
		"client_auth: {mode: off, ca: GARBAGE}":                 "",
		"ticket_keys_file: GARBAGE":                             "line 1 is not base64",
	} {
		tail = strings.NewReplacer("POOL", pool, "GARBAGE", garbage, "LIST", list).Replace(tail)
		plan := parse(t, fmt.Sprintf("listeners:\n  web: {bind: \"127.0.0.1:0\", pool: app, tls: {certificates: [{cert: %q, key: %q}], %s}}\npools: {app: {backends: [\"http://127.0.0.1:1\"]}}\n", cert, key, tail))
		faults := fmt.Sprint(Verify(plan))
		if (want == "") != (faults == "[]") || !strings.Contains(faults, want) {
			t.Errorf("%s: %s", tail, faults)
		}
	}
}
