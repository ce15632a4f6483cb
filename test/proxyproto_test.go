// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// startNginx runs nginx with what goes into its main context.
func startNginx(t *testing.T, addr, text string) {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	text = strings.ReplaceAll(text, "${DIR}", dir)
	head := ""
	if strings.Contains(text, "stream {") {
		head = "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n"
	}
	text = head + fmt.Sprintf("daemon off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/err info; user root; events {}\n", dir) + text
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	waitListening(t, spawn(t, tool(t, "nginx"), "-c", conf, "-p", dir, "-e", dir+"/err"), addr)
}

// startHAProxy runs HAProxy with its frontends and backends.
func startHAProxy(t *testing.T, addr, text string) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "haproxy.cfg")
	text = "global\n  maxconn 200\ndefaults\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n" + text
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	waitListening(t, spawn(t, tool(t, "haproxy"), "-db", "-f", conf), addr)
}

const nginxTemps = "client_body_temp_path ${DIR}/a; proxy_temp_path ${DIR}/b; fastcgi_temp_path ${DIR}/c; uwsgi_temp_path ${DIR}/d; scgi_temp_path ${DIR}/e; access_log off;"

// TestProxyProtocolToPeers: nginx and HAProxy read what weir writes, in both
// versions, of its requests and of its checks, which demand a header there.
func TestProxyProtocolToPeers(t *testing.T) {
	ng, ha := freeAddr(t), freeAddr(t)
	startNginx(t, ng, fmt.Sprintf(`http { %s
  server { listen %s proxy_protocol; location / { return 200 "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_port $connection"; } } }
`, nginxTemps, ng))
	startHAProxy(t, ha, fmt.Sprintf(`frontend f
  mode http
  bind %s accept-proxy
  http-request return status 200 content-type text/plain lf-string "%%[src] %%[src_port] %%[dst_port] %%[fc_pp_authority]x"
`, ha))
	for _, version := range []string{"v1", "v2"} {
		w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners:
  web: {bind: "${LISTEN}", routes: [{match: {path_prefix: /nginx}, pool: nginx}, {match: {path_prefix: /haproxy}, pool: haproxy}]}
pools:
  nginx:   {backends: ["http://%[1]s"], send_proxy_protocol: %[3]s, health: {active: {path: /, interval: 100ms, fast_interval: 100ms}}}
  haproxy: {backends: ["http://%[2]s"], send_proxy_protocol: %[3]s, health: {active: {path: /, interval: 100ms, fast_interval: 100ms}}}
`, ng, ha, version))
		_, port, _ := net.SplitHostPort(w.addr)
		for _, name := range []string{"nginx", "haproxy"} {
			eventually(t, 10*time.Second, version+": checks of "+name+" pass", func() bool {
				b := w.backends(t, name)
				for _, s := range b {
					return s.Health == "healthy"
				}
				return false
			})
			var before string
			for client := range 2 {
				c := dialClient(t, w.addr)
				_, mine, _ := net.SplitHostPort(c.LocalAddr().String())
				first := askOn(t, c, "GET", "/"+name)
				if want := "127.0.0.1 " + mine + " " + port + " "; !strings.HasPrefix(first, want) {
					t.Errorf("%s, %s: %q, want %q", name, version, first, want)
				}
				if again := askOn(t, c, "GET", "/"+name); again != first {
					t.Errorf("%s, %s: the client's next request: %q after %q, so on another connection", name, version, again, first)
				}
				if first == before {
					t.Errorf("%s, %s: client %d is on the connection of another", name, version, client)
				}
				before = first
			}
		}
		if v := w.sum(t, "weir_upstream_connections_total", `reused="false"`); v != 4 {
			t.Errorf("%s: %v fresh connections of two clients to two backends", version, v)
		}
	}
}

func dialClient(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// askOn sends a request on a connection and returns the content of its answer.
func askOn(t *testing.T, c net.Conn, method, path string) string {
	t.Helper()
	_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: web.test\r\nX-Forwarded-For: 203.0.113.99\r\n\r\n", method, path)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Errorf("%s: %s %q, %v", path, res.Status, b, err)
	}
	return string(b)
}

// proxied is a weir whose listeners read headers from 127.0.0.1, before an echo.
func proxied(t *testing.T, mode, from, tail string) (w *weir, log string) {
	t.Helper()
	back := freeAddr(t)
	echo := echoFields(t, back)
	t.Cleanup(func() { _ = echo.Close() })
	log = filepath.Join(t.TempDir(), "access.log")
	return startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: {path: %q}}
listeners:
  web: {bind: "${LISTEN}", proxy_protocol: {mode: %s, from: [%q]}, trusted_proxies: [127.0.0.0/8], health_path: /ready%s, pool: app}
pools: {app: {backends: ["http://%s"], health: {active: off}}}
`, log, mode, from, tail, back)), log
}

// TestProxyProtocolFromPeers: weir reads what HAProxy, nginx and curl write. The
// peer is a trusted proxy, and what counts is that the source of the header is
// none: the field that the client sends is not believed.
func TestProxyProtocolFromPeers(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	cert, key := ca.Write(dir, "web", ca.Issue("web.test"))
	ca.WritePool(dir)
	plain, log := proxied(t, "required", "127.0.0.0/8", "")
	secure, _ := proxied(t, "required", "127.0.0.0/8", fmt.Sprintf(", tls: {certificates: [{cert: %q, key: %q}]}", cert, key))
	v1, v2, sum, stream := freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
	startHAProxy(t, v1, fmt.Sprintf(`
listen v1
  mode tcp
  bind %[1]s
  server s %[4]s send-proxy
listen v2
  mode tcp
  bind %[2]s
  server s %[4]s send-proxy-v2
listen v2sum
  mode tcp
  bind %[3]s
  server s %[4]s send-proxy-v2 proxy-v2-options crc32c,unique-id
  unique-id-format %%{+X}o\ %%ci:%%cp
`, v1, v2, sum, plain.addr))
	startNginx(t, stream, fmt.Sprintf("stream { server { listen %s; proxy_pass %s; proxy_protocol on; } }\n", stream, plain.addr))
	for name, addr := range map[string]string{"HAProxy v1": v1, "HAProxy v2": v2, "HAProxy v2 with a checksum": sum, "nginx": stream} {
		// The client has an address that only the header can tell.
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 77)}, Timeout: 5 * time.Second}
		c, err := d.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		got := askOn(t, c, "GET", "/"+strings.ReplaceAll(name, " ", "-"))
		_ = c.Close()
		// 127.0.0.77 is of the trusted ones: its field is believed, and it is in the chain.
		if !strings.Contains(got, "X-Forwarded-For: 203.0.113.99, 127.0.0.77\r\n") {
			t.Errorf("%s: the backend sees %q", name, got)
		}
	}
	for _, args := range [][]string{
		{"http://" + plain.addr}, {"--http2-prior-knowledge", "http://" + plain.addr}, {"-k", "https://" + secure.addr},
	} {
		args = append([]string{"-sS", "--max-time", "20", "--haproxy-protocol"}, args...)
		if out, err := exec.Command(tool(t, "curl"), args...).CombinedOutput(); err != nil || !strings.Contains(string(out), "X-Forwarded-For: 127.0.0.1\r\n") {
			t.Errorf("curl %v: %v %s", args, err, out)
		}
	}
	for version, header := range map[string]string{
		"v1": "PROXY TCP4 192.0.2.7 198.51.100.7 5 4433\r\n",
		"v2": "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\xc6\x33\x64\x07\x00\x05\x11\x51",
	} {
		c := dialClient(t, plain.addr)
		_, _ = io.WriteString(c, header)
		got := askOn(t, c, "GET", "/"+version)
		if !strings.Contains(got, "X-Forwarded-For: 192.0.2.7\r\n") || !strings.Contains(got, "X-Forwarded-Port: 4433\r\n") || strings.Contains(got, "203.0.113.99") {
			t.Errorf("%s: the backend sees %q", version, got)
		}
	}
	eventually(t, 5*time.Second, "both addresses in the log", func() bool {
		b, _ := os.ReadFile(log)
		return strings.Contains(string(b), `"client":"192.0.2.7","proxied_by":"127.0.0.1"`)
	})
	for outcome, least := range map[string]float64{"read": 9, "closed": 1} {
		if v := plain.sum(t, "weir_proxy_headers_total", fmt.Sprintf("outcome=%q", outcome)); v < least {
			t.Errorf("%v connections with outcome %s", v, outcome)
		}
	}
}

// TestProxyProtocolForged: a header from somebody who is not listed, and one that
// is wrong, end the connection; nothing of it is in the log or at the backend.
func TestProxyProtocolForged(t *testing.T) {
	const forged = "192.0.2.66"
	v1 := "PROXY TCP4 " + forged + " 198.51.100.7 5 4433\r\n"
	v2 := "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x42\xc6\x33\x64\x07\x00\x05\x11\x51"
	request := "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n"
	for _, c := range []struct{ mode, from string }{{"required", "10.0.0.0/8"}, {"optional", "10.0.0.0/8"}, {"off", "127.0.0.0/8"}} {
		w, log := proxied(t, c.mode, c.from, "")
		for _, h := range []string{v1, v2, "PROXY UNKNOWN " + forged + "\r\n"} {
			if got := sendRaw(t, w.addr, h+request); got != "" {
				t.Errorf("%s: %q is answered with %q", c.mode, h, got)
			}
		}
		if got := sendRaw(t, w.addr, request+"PROXY TCP4 "); !strings.HasPrefix(got, "HTTP/1.1 200") || strings.Contains(got, "PROXY") {
			t.Errorf("%s: without one: %q", c.mode, got)
		}
		if v := w.sum(t, "weir_proxy_headers_total", `outcome="not_allowed"`); v != 3 {
			t.Errorf("%s: %v are counted", c.mode, v)
		}
		b, err := os.ReadFile(log)
		if err != nil || strings.Contains(string(b), forged) || strings.Contains(w.out.String(), forged) {
			t.Errorf("%s: the forged address is in a log: %v %s %s", c.mode, err, b, w.out)
		}
		if !regexp.MustCompile(`cause=not_allowed.*peer=127\.0\.0\.1|"cause":"not_allowed".*"peer":"127\.0\.0\.1`).MatchString(w.out.String()) {
			t.Errorf("%s: the log does not say who sent it: %s", c.mode, w.out)
		}
	}
	w, _ := proxied(t, "required", "127.0.0.0/8", "")
	for _, h := range []string{"", "PROXY TCP4 192.0.2.666 198.51.100.7 5 4433\r\n", v1 + v1, strings.Replace(v2, "\x21", "\x31", 1)} {
		if got := sendRaw(t, w.addr, h+request); got != "" && !strings.HasPrefix(got, "HTTP/1.1 400") {
			t.Errorf("%q is answered with %q", h, got)
		}
	}
	for _, outcome := range []string{"missing", "malformed", "version"} {
		if v := w.sum(t, "weir_proxy_headers_total", fmt.Sprintf("outcome=%q", outcome)); v != 1 {
			t.Errorf("%v of %s", v, outcome)
		}
	}
}

// sendRaw sends bytes, ends, and returns what comes back.
func sendRaw(t *testing.T, addr, text string) string {
	t.Helper()
	c := dialClient(t, addr)
	_, _ = io.WriteString(c, text)
	_ = c.(*net.TCPConn).CloseWrite()
	b, _ := io.ReadAll(c) // a reset is no answer
	return string(b)
}
