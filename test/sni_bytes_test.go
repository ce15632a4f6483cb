// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// madeHello is a ClientHello whose message has that many bytes, with values of
// GREASE (RFC 8701) wherever there may be some.
func madeHello(size int) []byte {
	vec := func(b []byte) []byte { return append([]byte{byte(len(b) >> 8), byte(len(b))}, b...) }
	ext := func(kind int, b []byte) []byte { return append([]byte{byte(kind >> 8), byte(kind)}, vec(b)...) }
	name := append([]byte{0}, vec([]byte("a.test"))...)
	exts := slices.Concat(
		ext(0x0a0a, nil), ext(0, vec(name)), ext(10, vec([]byte{0x2a, 0x2a, 0x11, 0xec, 0, 0x1d})),
		ext(16, vec([]byte("\x02\x1a\x1a\x02h2"))), ext(43, []byte("\x04\x3a\x3a\x03\x04")), ext(0x4a4a, []byte{0}),
	)
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 4, 0x5a, 0x5a, 0x13, 1, 1, 0)
	if pad := size - 4 - len(body) - 2 - len(exts) - 4; pad > 0 {
		exts = append(exts, ext(21, make([]byte, pad))...)
	}
	body = append(body, vec(exts)...)
	return inRecords(append([]byte{1, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...), 16<<10)
}

// inRecords puts a message into records of a size.
func inRecords(message []byte, size int) (out []byte) {
	for p := range slices.Chunk(message, size) {
		out = append(append(out, 22, 3, 1, byte(len(p)>>8), byte(len(p))), p...)
	}
	return out
}

// TestHelloUntouched: what a backend gets is what the client has sent, byte by byte:
// hellos of Chromium, curl, openssl and gnutls, one of 16 KiB and one full of GREASE,
// in one piece, in single bytes and in many records, and what came with them.
func TestHelloUntouched(t *testing.T) {
	hellos := map[string][]byte{"GREASE": madeHello(0), "16 KiB": madeHello(16<<10 + 4)}
	files, err := filepath.Glob("../internal/clienthello/testdata/*.hex")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		if err != nil {
			t.Fatal(err)
		}
		hellos[filepath.Base(f)] = b
	}
	back, _ := sayer(t)
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {front: {bind: "${LISTEN}", protocol: sni, pool: p}}
pools: {p: {backends: ["tcp://%s"], health: {active: off}}}
`, back))
	rest := make([]byte, 3000)
	_, _ = rand.Read(rest)
	for name, hello := range hellos {
		var message []byte
		for b := hello; len(b) > 5; {
			n := int(b[3])<<8 + int(b[4])
			message, b = append(message, b[5:5+n]...), b[5+n:]
		}
		for what, sent := range map[string]struct {
			hello []byte
			piece int
		}{
			"whole": {hello, len(hello)}, "in single bytes": {hello, 1}, "in segments of 1400": {hello, 1400},
			"in records of 20": {inRecords(message, 20), 1 << 20}, "in records of 20, in single bytes": {inRecords(message, 20), 1},
		} {
			c := dialClient(t, w.addr).(*net.TCPConn)
			_ = c.SetNoDelay(true)
			go func() {
				for p := range slices.Chunk(sent.hello, sent.piece) {
					if _, err := c.Write(p); err != nil {
						return
					}
				}
				_, _ = c.Write(rest)
				_ = c.CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if want := append(slices.Clone(sent.hello), rest...); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s %s: %d bytes of %d, %v", name, what, len(got), len(want), err)
			}
			_ = c.Close()
		}
	}
	// One byte more than 16 KiB of content is refused, and said so.
	c := dialClient(t, w.addr)
	_, _ = c.Write(madeHello(16<<10 + 5))
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if got, _ := io.ReadAll(c); !bytes.HasPrefix(got, []byte{21, 3, 1, 0, 2, 2}) {
		t.Errorf("a hello that is too long is answered %q", got)
	}
	eventually(t, 10*time.Second, "it is counted", func() bool { return w.sessions(t, "front", "header_too_large") == 1 })
}

// TestCancelWhereTLSEnds: Ctrl-C of a client of PostgreSQL, which comes in clear and
// names no server, reaches the one that its session leads to, where weir has ended the
// session's TLS, too.
func TestCancelWhereTLSEnds(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	own := ca.Issue("db.test")
	cert, key := ca.Write(dir, "db", own)
	back, got := sayer(t)
	t.Run("to a backend in clear", func(t *testing.T) {
		cancels(t, ca, cert, key, fmt.Sprintf("backends: [%q]", "tcp://"+back), got)
	})
	// One that has TLS, and wants a PROXY header before that.
	inTLS, got := sayerOver(t, func(c net.Conn) (net.Conn, error) {
		for b := make([]byte, 1); b[0] != '\n'; {
			if _, err := c.Read(b); err != nil {
				return nil, err
			}
		}
		return tls.Server(c, &tls.Config{Certificates: []tls.Certificate{own}}), nil
	})
	t.Run("to a backend with TLS and a PROXY header", func(t *testing.T) {
		cancels(t, ca, cert, key, fmt.Sprintf("backends: [%q], send_proxy_protocol: v1, tls: {ca: %q, server_name: db.test}", "tls://"+inTLS, ca.WritePool(dir)), got)
	})
}

// cancels opens a session, and cancels what it is at.
func cancels(t *testing.T, ca *weirtest.Authority, cert, key, pool string, got *output) {
	const cancel = "\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02"
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners:
  front: {bind: "${LISTEN}", protocol: sni, routes: [{match: {sni: db.test}, starttls: postgres, listener: db}]}
  db: {protocol: tcp, tls: {certificates: [{cert: %q, key: %q}]}, pool: p}
pools: {p: {%s, health: {active: off}}}
`, cert, key, pool))
	raw := dialClient(t, w.addr)
	_, _ = io.WriteString(raw, "\x00\x00\x00\x08\x04\xd2\x16\x2f")
	hears(t, raw, "S")
	c := tls.Client(raw, &tls.Config{RootCAs: ca.Pool(), ServerName: "db.test"})
	_, _ = io.WriteString(c, "query\n")
	hears(t, c, "query\n")
	_, _ = io.WriteString(dialClient(t, w.addr), cancel)
	eventually(t, 10*time.Second, "the backend gets it", func() bool { return strings.Contains(got.String(), cancel) })
}
