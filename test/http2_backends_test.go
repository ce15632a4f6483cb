// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // RFC 6455 asks for it
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// tlsBackend serves over TLS in the protocols that are named, and answers with the one
// that it was asked in; a request for a WebSocket is taken over HTTP/1.1 and echoed.
func tlsBackend(t *testing.T, ca *weirtest.Authority, h1, h2 bool) (addr string) {
	t.Helper()
	cert, key := ca.Write(t.TempDir(), "backend", ca.Issue("localhost", "127.0.0.1"))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := new(http.Protocols)
	p.SetHTTP1(h1)
	p.SetHTTP2(h2)
	s := &http.Server{Protocols: p, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(echoUpgrade)}
	t.Cleanup(func() { _ = s.Close() })
	go func() { _ = s.ServeTLS(ln, cert, key) }()
	return ln.Addr().String()
}

func echoUpgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" {
		_, _ = io.WriteString(w, r.Proto)
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455 asks for it
	_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	_, _ = io.Copy(c, rw)
}

// switched asks for a WebSocket over HTTP/1.1, has 100 KiB echoed, and returns the
// status line.
func switched(t *testing.T, addr, host string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", host)
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		_, _ = io.Copy(io.Discard, res.Body)
		return res.Status
	}
	if got := res.Header.Get("Sec-WebSocket-Accept"); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Errorf("accept %q", got)
	}
	// One masked frame of 100 KiB, as a client sends; weir looks at frames.
	frame := rawFrame(0x82, []byte(strings.Repeat("x", 100<<10)), true)
	go func() { _, _ = c.Write(frame) }()
	back := make([]byte, len(frame))
	if _, err := io.ReadFull(r, back); err != nil || string(back) != string(frame) {
		t.Errorf("echo of %d bytes: %v", len(frame), err)
	}
	return res.Status
}

// TestHTTP2Agreed: what is spoken with backends over TLS is agreed on, by ALPN; HTTP/1.1
// where HTTP/2 was only offered, and nothing where it is what the scheme says.
func TestHTTP2Agreed(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	pool := ca.WritePool(t.TempDir())
	both, old, only := tlsBackend(t, ca, true, true), tlsBackend(t, ca, true, false), tlsBackend(t, ca, false, true)
	names := []string{"both", "old", "only", "grpcs", "grpcs-old", "plain"}
	var pools, routes strings.Builder
	for i, url := range []string{"https://" + both, "https://" + old, "https://" + only, "grpcs://" + both, "grpcs://" + old, "https://" + both} {
		h2 := ", upstream: {h2: on}"
		if i > 2 {
			h2 = ""
		}
		fmt.Fprintf(&pools, "  %s: {backends: [%q], tls: {ca: %q, server_name: localhost}, health: {active: {initial: up}}%s}\n", names[i], url, pool, h2)
		fmt.Fprintf(&routes, "      - {match: {host: %s.test}, pool: %s}\n", names[i], names[i])
	}
	w := startRun(t, "admin: {bind: \"${ADMIN}\"}\nshutdown: {delay: 100ms, deadline: 5s}\nlisteners:\n  web:\n    bind: \"${LISTEN}\"\n    routes:\n"+routes.String()+"pools:\n"+pools.String())
	for i, want := range []string{"200 HTTP/2.0", "200 HTTP/1.1", "200 HTTP/2.0", "200 HTTP/2.0", "502 tls_failed", "200 HTTP/1.1"} {
		for range 3 { // what was agreed on holds
			r, err := http.NewRequestWithContext(t.Context(), "GET", w.url("/"), nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = names[i] + ".test"
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			status, word, _ := strings.Cut(want, " ")
			if fmt.Sprint(res.StatusCode) != status || !strings.Contains(string(body), word) {
				t.Errorf("%s: %s %q, want %s", names[i], res.Status, body, want)
			}
		}
	}
	// A WebSocket where HTTP/2 is spoken with a backend that takes none over it.
	for host, want := range map[string]string{"both.test": "101 Switching Protocols", "old.test": "101 Switching Protocols", "grpcs.test": "502 Bad Gateway"} {
		for range 2 {
			if got := switched(t, w.addr, host); got != want {
				t.Errorf("%s: %s, want %s", host, got, want)
			}
		}
	}
	if reasons := w.reasons(t); reasons["upgrade_refused"] != 2 {
		t.Errorf("reasons %v", reasons)
	}
}

// TestWebSocketOverHTTP2: a WebSocket goes to a backend over HTTP/2 by a stream, here
// to another weir, which asks an HTTP/1.1 backend for it.
func TestWebSocketOverHTTP2(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(echoUpgrade))
	t.Cleanup(backend.Close)
	const yaml = `
admin: {bind: "${ADMIN}"}
shutdown: {delay: 100ms, deadline: 5s}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: [%q], health: {active: {initial: up}}}}
`
	behind := startRun(t, fmt.Sprintf(yaml, backend.URL))
	front := startRun(t, fmt.Sprintf(yaml, "h2c://"+behind.addr))
	for range 5 {
		if got := switched(t, front.addr, "ws.test"); got != "101 Switching Protocols" {
			t.Fatal(got)
		}
	}
	// Neither side holds on to what has ended.
	eventually(t, 20*time.Second, "no tunnel is left", func() bool {
		return front.sum(t, "weir_in_flight", "") == 0 && behind.sum(t, "weir_in_flight", "") == 0
	})
	if n := front.sum(t, "weir_upstream_connections_total", `reused="false"`); n != 1 {
		t.Errorf("%v connections for five WebSockets", n)
	}
}
