// SPDX-License-Identifier: Apache-2.0

package test

import (
	bigendian "encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// v2Header is a PROXY header of version 2: command and version, family and
// transport, addresses, and TLVs behind them.
func v2Header(command, family byte, rest string) string {
	return "\r\n\r\n\x00\r\nQUIT\n" + string([]byte{command, family, byte(len(rest) >> 8), byte(len(rest))}) + rest
}

// summed adds a CRC32C, right or wrong.
func summed(h string, right bool) string {
	b := []byte(h + "\x03\x00\x04\x00\x00\x00\x00")
	bigendian.BigEndian.PutUint16(b[14:], uint16(len(b)-16))
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	if !right {
		sum++
	}
	bigendian.BigEndian.PutUint32(b[len(b)-4:], sum)
	return string(b)
}

// sayer is a backend that gives back a connection's first bytes, and keeps all that
// it ever got.
func sayer(t *testing.T) (addr string, got *output) {
	t.Helper()
	return sayerOver(t, func(c net.Conn) (net.Conn, error) { return c, nil })
}

// sayerOver is one that makes of each connection what it is to be heard over.
func sayerOver(t *testing.T, over func(net.Conn) (net.Conn, error)) (addr string, got *output) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	got = &output{}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if c, err := over(c); err == nil {
					_, _ = io.Copy(io.MultiWriter(got, c), c)
				}
			}()
		}
	}()
	return ln.Addr().String(), got
}

// TestProxyProtocolOfSessions: every hard case of the specification on a listener of
// TCP, sent byte by byte, has the outcome that it is to have: what the backend is
// told, in version 1, or an end of which neither backend nor log hear anything.
func TestProxyProtocolOfSessions(t *testing.T) {
	back, got := sayer(t)
	log := filepath.Join(t.TempDir(), "access.log")
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: {path: %q}}
listeners: {l: {bind: "${LISTEN}", protocol: tcp, proxy_protocol: {mode: required, from: [127.0.0.1]}, pool: p}}
pools: {p: {backends: ["tcp://%s"], send_proxy_protocol: v1, health: {active: off}}}
`, log, back))
	four := "\xc0\x00\x02\x07\xc6\x33\x64\x07\x00\x05\x11\x51" // 192.0.2.7:5 to 198.51.100.7:4433
	six := "\x20\x01\x0d\xb8" + strings.Repeat("\x00", 11) + "\x07" + "\x20\x01\x0d\xb8" + strings.Repeat("\x00", 11) + "\x09" + "\x00\x05\x11\x51"
	const named, own = "PROXY TCP4 192.0.2.7 198.51.100.7 5 4433\r\n", "PROXY TCP4 127.0.0.1 127.0.0.1 "
	for _, c := range []struct{ name, header, want string }{
		{"v1", named, named},
		{"v1, TCP6", "PROXY TCP6 2001:db8::7 2001:db8::9 5 4433\r\n", "PROXY TCP6 2001:db8::7 2001:db8::9 5 4433\r\n"},
		{"v1, UNKNOWN", "PROXY UNKNOWN\r\n", own},
		{"v1, long UNKNOWN", "PROXY UNKNOWN " + strings.Repeat("f", 91) + "\r\n", own},
		{"v2", v2Header(0x21, 0x11, four), named},
		{"v2, IPv6", v2Header(0x21, 0x21, six), "PROXY TCP6 2001:db8::7 2001:db8::9 5 4433\r\n"},
		{"v2, LOCAL", v2Header(0x20, 0x00, ""), own},
		{"v2, LOCAL with addresses", v2Header(0x20, 0x11, four), own},
		{"v2, UNSPEC", v2Header(0x21, 0x00, ""), own},
		{"v2, UNIX", v2Header(0x21, 0x31, strings.Repeat("/", 216)), own},
		{"v2, DGRAM", v2Header(0x21, 0x12, four), own},
		{"v2 with a checksum", summed(v2Header(0x21, 0x11, four), true), named},
		{"v2 with TLVs", v2Header(0x21, 0x11, four+"\x04\x00\x02xx\x05\x00\x04id-1"), named},

		{"two of v1", named + named, "not_allowed"},
		{"v1 and v2", named + v2Header(0x21, 0x11, four), "not_allowed"},
		{"a wrong checksum", summed(v2Header(0x21, 0x11, four), false), "checksum"},
		{"a port out of range", "PROXY TCP4 192.0.2.7 198.51.100.7 5 65536\r\n", "malformed"},
		{"an octet out of range", "PROXY TCP4 192.0.2.256 198.51.100.7 5 4433\r\n", "malformed"},
		{"a leading zero", "PROXY TCP4 192.0.2.07 198.51.100.7 5 4433\r\n", "malformed"},
		{"TLVs that do not fit", v2Header(0x21, 0x11, four+"\x04\x00\x09x"), "malformed"},
		{"another command", v2Header(0x22, 0x11, four), "malformed"},
		{"v3", v2Header(0x31, 0x11, four), "version"},
		{"too long for v1", "PROXY UNKNOWN " + strings.Repeat("f", 92) + "\r\n", "too_long"},
		{"none", "hello", "missing"},
	} {
		before := got.String()
		conn := dialClient(t, w.addr).(*net.TCPConn)
		_ = conn.SetNoDelay(true)
		for i := range len(c.header) {
			if _, err := conn.Write([]byte{c.header[i]}); err != nil {
				break
			}
		}
		_, _ = io.WriteString(conn, "said\n")
		_ = conn.CloseWrite()
		b, _ := io.ReadAll(conn) // a reset is an end
		_ = conn.Close()
		if strings.HasPrefix(c.want, "PROXY") {
			if !strings.HasPrefix(string(b), c.want) || !strings.HasSuffix(string(b), "\r\nsaid\n") {
				t.Errorf("%s: the backend was told %q, want %q", c.name, b, c.want)
			}
			continue
		}
		if c.want == "not_allowed" {
			// The first was believed; of the second only a part of its first words can
			// have passed.
			if n := strings.Count(got.String()[len(before):], "PROXY"); n > 2 || strings.Contains(string(b), "said") {
				t.Errorf("%s: the backend got %q", c.name, got.String()[len(before):])
			}
		} else if after := got.String(); after != before || len(b) > 0 {
			t.Errorf("%s: the backend got %q, the client %q", c.name, after[len(before):], b)
		}
		eventually(t, 10*time.Second, c.name+" is counted", func() bool { return w.sum(t, "weir_proxy_headers_total", fmt.Sprintf("outcome=%q", c.want)) > 0 })
	}
	// From a peer that is not listed.
	before := got.String()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}, Timeout: 5 * time.Second}
	conn, err := d.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, strings.Replace(named, "192.0.2.7", "192.0.2.66", 1)+"said\n")
	_, _ = io.ReadAll(conn)
	_ = conn.Close()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if after := got.String()[len(before):]; strings.Contains(after, "192.0.2.66") || strings.Contains(string(text), "192.0.2.66") || strings.Contains(w.out.String(), "192.0.2.66") {
		t.Errorf("a forged header reached the backend (%q) or a log", after)
	}
	if !strings.Contains(string(text), `"client":"192.0.2.7","proxied_by":"127.0.0.1"`) {
		t.Errorf("the access log does not say for whom and by whom: %s", text)
	}
}

// TestProxyProtocolOfSessionsByPeers: HAProxy and nginx before weir and behind it,
// both passing connections on whole: the address, and what else HAProxy says in a
// header with a checksum, arrive.
func TestProxyProtocolOfSessionsByPeers(t *testing.T) {
	ha, ng := freeAddr(t), freeAddr(t)
	startHAProxy(t, ha, fmt.Sprintf(`frontend f
  mode http
  bind %s accept-proxy
  http-request return status 200 content-type text/plain lf-string "%%[src] %%[fc_pp_unique_id]."
`, ha))
	startNginx(t, ng, fmt.Sprintf(`http { %s
  server { listen %s proxy_protocol; location / { return 200 "$proxy_protocol_addr ."; } } }
`, nginxTemps, ng))
	at := map[string]string{"ha1": freeAddr(t), "ha2": freeAddr(t), "ng1": freeAddr(t), "ng2": freeAddr(t)}
	text := "admin: {bind: \"${ADMIN}\"}\nlisteners:\n  l: {bind: \"${LISTEN}\", protocol: tcp, pool: ha1}\n"
	pools := "pools:\n"
	for name, addr := range at {
		to := map[string]string{"ha": ha, "ng": ng}[name[:2]]
		text += fmt.Sprintf("  %s: {bind: %q, protocol: tcp, proxy_protocol: {mode: required, from: [127.0.0.1]}, pool: %[1]s}\n", name, addr)
		pools += fmt.Sprintf("  %s: {backends: [\"tcp://%s\"], send_proxy_protocol: v%s}\n", name, to, name[2:])
	}
	startRun(t, text+pools)
	for name, addr := range at {
		v1, v2, stream := freeAddr(t), freeAddr(t), freeAddr(t)
		startHAProxy(t, v1, fmt.Sprintf(`
listen v1
  mode tcp
  bind %[1]s
  server s %[3]s send-proxy
listen v2
  mode tcp
  bind %[2]s
  server s %[3]s send-proxy-v2 proxy-v2-options crc32c,unique-id
  unique-id-format id-%%cp-x
`, v1, v2, addr))
		startNginx(t, stream, fmt.Sprintf("stream { server { listen %s; proxy_pass %s; proxy_protocol on; } }\n", stream, addr))
		for front, by := range map[string]string{"HAProxy v1": v1, "HAProxy v2": v2, "nginx": stream} {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 77)}, Timeout: 5 * time.Second}
			c, err := d.Dial("tcp", by)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			got := askOn(t, c, "GET", "/")
			want := "127.0.0.77 ."
			if front == "HAProxy v2" && name == "ha2" {
				want = fmt.Sprintf("127.0.0.77 id-%d-x.", c.LocalAddr().(*net.TCPAddr).Port)
			}
			_ = c.Close()
			if got != want {
				t.Errorf("%s, then weir to %s: %q, want %q", front, name, got, want)
			}
		}
	}
}
