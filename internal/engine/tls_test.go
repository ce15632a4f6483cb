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
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestTLSBothWays goes through a listener with two certificates to backends over
// https: the certificate follows the name, backends are verified under the
// pool's server name and authority and refused under another, and a client that
// never shakes hands is counted under the timeout that cut it.
func TestTLSBothWays(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	certA, keyA := ca.Write(dir, "a", ca.Issue("a.test"))
	certB, keyB := ca.Write(dir, "b", ca.Issue("*.b.test"))
	back := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-Proto")+" "+r.TLS.ServerName)
	}))
	back.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue("backend.test")}}
	back.StartTLS()
	t.Cleanup(back.Close)
	address := back.Listener.Addr().String()

	r := start(t, fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners:
  web:
    bind: "127.0.0.1:0"
    tls: {certificates: [{cert: %q, key: %q}, {cert: %q, key: %q}]}
    timeouts: {header: 1s}
    routes:
      - {match: {path_prefix: /good}, pool: good}
      - {match: {path_prefix: /name}, pool: name}
      - {match: {path_prefix: /authority}, pool: authority}
pools:
  good: {backends: ["https://%[5]s"], tls: {ca: %[6]q, server_name: backend.test}}
  name: {backends: ["https://%[5]s"], tls: {ca: %[6]q, server_name: other.test}}
  authority: {backends: ["https://%[5]s"], tls: {server_name: backend.test}}
`, certA, keyA, certB, keyB, address, ca.WritePool(dir)))
	bound := strings.TrimPrefix(r.front, "http://")

	silent, err := net.Dial("tcp", bound)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()

	for _, c := range []struct {
		name, path, body string
		status           int
	}{
		{"a.test", "/good", "https backend.test", 200},
		{"x.b.test", "/good", "https backend.test", 200},
		{"a.test", "/name", "tls_failed", 502},
		{"a.test", "/authority", "tls_failed", 502},
	} {
		tr := &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", bound)
			},
			TLSClientConfig: &tls.Config{RootCAs: ca.Pool()},
		}
		t.Cleanup(tr.CloseIdleConnections)
		got := mustGet(t, &http.Client{Transport: tr, Timeout: limit}, "https://"+c.name+c.path)
		if got.status != c.status || !strings.Contains(got.body, c.body) {
			t.Errorf("%s%s: %+v, want %d with %q", c.name, c.path, got, c.status, c.body)
		}
	}

	if rest, err := io.ReadAll(silent); err != nil || len(rest) > 0 {
		t.Errorf("the silent client got %q, %v", rest, err)
	}
	want := `weir_requests_total{backend="",code="4xx",listener="web",pool="",reason="header_timeout",route=""} 1`
	eventually(t, "the silent client is counted", func() bool {
		return strings.Contains(mustGet(t, client(t), "http://"+r.Bound().Admin+"/metrics").body, want)
	})
}
