// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// headed is a backend whose connections begin with a PROXY header of version 1: it
// answers with the header of the connection and the connection's number.
func headed(t *testing.T) string {
	return rawBackend(t, func(c net.Conn, n int) {
		r := bufio.NewReader(c)
		line, err := r.ReadString('\n')
		for err == nil {
			var req *http.Request
			if req, err = http.ReadRequest(r); err == nil {
				_, _ = io.Copy(io.Discard, req.Body)
				body := fmt.Sprintf("%s #%d", strings.TrimSpace(line), n)
				_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		}
	})
}

// introducedClient is a client connection that begins with a PROXY header.
type introducedClient struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func introduceTo(t *testing.T, addr, header string) *introducedClient {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(limit))
	_, _ = io.WriteString(c, header)
	return &introducedClient{t, c, bufio.NewReader(c)}
}

// ask sends a request and returns the content of the answer; "" when there is none.
func (c *introducedClient) ask() string {
	c.t.Helper()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return ""
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	b, _ := io.ReadAll(res.Body)
	return string(b)
}

// TestProxyProtocolReload: headers are passed on, connections to backends stay
// with their client, and both sides change with the next connection.
func TestProxyProtocolReload(t *testing.T) {
	back := headed(t)
	text := func(mode, send string) string {
		return fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners:
  web: {bind: "127.0.0.1:0", proxy_protocol: {mode: %s, from: [127.0.0.1]}, pool: app}
pools:
  app: {backends: ["http://%s"], send_proxy_protocol: %s, health: {passive: off, active: off}}
`, mode, back, send)
	}
	const one, two = "PROXY TCP4 192.0.2.1 198.51.100.7 5 443", "PROXY TCP6 2001:db8::1 2001:db8::2 6 443"
	r := start(t, text("required", "v1"))
	addr := strings.TrimPrefix(r.front, "http://")
	a, b := introduceTo(t, addr, one+"\r\n"), introduceTo(t, addr, two+"\r\n")
	for range 2 {
		if got := a.ask(); got != one+" #1" {
			t.Errorf("one: %q", got)
		}
		if got := b.ask(); got != two+" #2" {
			t.Errorf("two: %q", got)
		}
	}
	x, err := r.Explain(admin.Question{URL: "http://x/"})
	if err != nil || !strings.Contains(fmt.Sprint(x.Pool.Reasoning), "PROXY header of version 1") {
		t.Errorf("explain: %v %+v", err, x.Pool)
	}
	if got := introduceTo(t, addr, "").ask(); got != "" {
		t.Errorf("without a header: %q", got)
	}
	if _, err := r.Reload(parse(t, text("off", "v1")), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := a.ask(); got != one+" #1" {
		t.Errorf("one, after the reload: %q", got)
	}
	if got := introduceTo(t, addr, "").ask(); !strings.HasPrefix(got, "PROXY TCP4 127.0.0.1 127.0.0.1 ") {
		t.Errorf("without a header, after the reload: %q", got)
	}
	if got := introduceTo(t, addr, one+"\r\n").ask(); got != "" {
		t.Errorf("with a header, after the reload: %q", got)
	}
	metrics := mustGet(t, client(t), "http://"+r.Bound().Admin+"/metrics").body
	for _, want := range []string{
		`weir_proxy_headers_total{listener="web",outcome="read"} 2`, `weir_proxy_headers_total{listener="web",outcome="missing"} 1`,
		`weir_proxy_headers_total{listener="web",outcome="not_allowed"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if _, err := r.Reload(parse(t, text("off", "off")), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := a.ask(); got == one+" #1" {
		t.Error("a connection that began with a header is used where none is sent any more")
	}
}
