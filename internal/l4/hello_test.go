// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"bytes"
	"encoding/hex"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clienthello"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/pool"
)

// browser is what Chromium sends, 2 kB with post-quantum keys.
func browser(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("../clienthello/testdata/chromium.hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// byName makes a rig read hellos, within the time; 0: none.
func byName(within time.Duration, postgres bool) func(*rig, *pool.Config) {
	return func(r *rig, _ *pool.Config) {
		r.serve = func(c *netconn.Conn, ci *Client) {
			var by balance.Instant
			if ci.Began = clock.Now(); within > 0 {
				by = ci.Began.Add(within)
			}
			g, bad := r.px.ReadHello(c, by, postgres)
			if bad != nil {
				r.px.Refuse(c, ci, nil, bad.Reason, bad.Detail)
				return
			}
			if g.Cancel {
				r.px.Cancel(c, ci, nil, g.Prefix)
				return
			}
			ci.Name, ci.Asked = g.Name, g.Asked
			r.px.Serve(c, ci, r.rt, g.Prefix)
			g.Release()
		}
	}
}

// asPostgres answers SSLRequest, and then does as serve does.
func asPostgres(t *testing.T, answer byte, serve func(*net.TCPConn)) string {
	return server(t, func(c *net.TCPConn) {
		want, got := clienthello.SSLRequest(), make([]byte, clienthello.AskSize)
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want[:]) {
			t.Errorf("the backend is asked %q, %v", got, err)
			return
		}
		_, _ = c.Write([]byte{answer})
		if serve != nil {
			serve(c)
		}
	})
}

// TestSameBytes: in whatever pieces a hello comes, the backend gets every byte as
// it was sent, and the record has the name.
func TestSameBytes(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, byName(10*time.Second, false))
	hello := browser(t)
	for _, size := range []int{1, 7, 512, len(hello)} {
		c := r.dial()
		_ = c.SetNoDelay(true)
		for p := range slices.Chunk(hello, size) {
			if _, err := c.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		say(t, c, "early")
		hear(t, c, string(hello)+"early")
		say(t, c, "late")
		hear(t, c, "late")
		_ = c.CloseWrite()
		ends(t, c, false)
		n := int64(len(hello) + 9)
		if rec := r.want(message.OK, n, n); string(rec.Host) != "api.example.com" {
			t.Errorf("the record is for %q", rec.Host)
		}
	}
}

// TestNoHello: who sends none is refused with a reason, told so in its own
// protocol where there is one, and never reaches a backend.
func TestNoHello(t *testing.T) {
	for what, c := range map[string]struct {
		send   string
		reason message.Reason
		told   []byte
	}{
		"too slow":     {"\x16\x03\x01\x00\x40", message.HeaderTimeout, nil},
		"nothing":      {"", message.HeaderTimeout, nil},
		"HTTP":         {"GET / HTTP/1.1\r\n\r\n", message.BadRequest, nil},
		"malformed":    {"\x16\x03\x01\x00\x04\x01\x00\x00\x00", message.BadRequest, alert(alertDecode)},
		"too long":     {"\x16\x03\x01\x00\x04\x01\x01\x00\x00", message.HeaderTooLarge, alert(alertDecode)},
		"an alert":     {"\x15\x03\x01\x00\x02\x01\x00", message.BadRequest, nil},
		"no PROXY":     {"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", message.BadRequest, nil},
		"SSLRequest":   {"\x00\x00\x00\x08\x04\xd2\x16\x2f", message.BadRequest, nil}, // no route asks for it
		"NUL for ever": {strings.Repeat("\x00", 4096), message.BadRequest, nil},
	} {
		r := newRig(t, []string{server(t, func(*net.TCPConn) { t.Error(what + ": the backend has a connection") })}, byName(300*time.Millisecond, false))
		conn := r.dial()
		say(t, conn, c.send)
		got, _ := io.ReadAll(conn)
		if !bytes.Equal(got, c.told) {
			t.Errorf("%s: told %q, want %q", what, got, c.told)
		}
		if rec := r.record(); rec.Reason != c.reason || rec.Sent {
			t.Errorf("%s: %v %s", what, rec.Reason, rec.Detail)
		}
	}
}

// TestHelloLeaves: a client that goes away, and an end of the process, end the
// reading.
func TestHelloLeaves(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, byName(0, false))
	c := r.dial()
	say(t, c, "\x16\x03")
	_ = c.Close()
	if rec := r.record(); rec.Reason != message.ClientAbort {
		t.Errorf("%v %s", rec.Reason, rec.Detail)
	}
	c = r.dial()
	say(t, c, "\x16\x03")
	r.px.Quit()
	r.px.Wait()
	if rec := r.record(); rec.Reason != message.DrainCut {
		t.Errorf("%v %s", rec.Reason, rec.Detail)
	}
}

// TestPostgresAsks: a client that asks is answered, its backend is asked in its
// place, and one that says no is passed over.
func TestPostgresAsks(t *testing.T) {
	hello := string(browser(t))
	ask := clienthello.SSLRequest()
	gss := "\x00\x00\x00\x08\x04\xd2\x16\x30"
	r := newRig(t, []string{asPostgres(t, 'N', nil), asPostgres(t, 'S', echo)}, byName(10*time.Second, true))
	for _, first := range []string{"", gss} {
		c := r.dial()
		if first != "" {
			say(t, c, first)
			hear(t, c, "N")
		}
		say(t, c, string(ask[:4]))
		say(t, c, string(ask[4:]))
		hear(t, c, "S")
		say(t, c, hello)
		hear(t, c, hello)
		_ = c.CloseWrite()
		ends(t, c, false)
		n := int64(len(hello))
		rec := r.want(message.OK, n, n)
		if string(rec.Host) != "api.example.com" {
			t.Errorf("the record is for %q", rec.Host)
		}
	}

	// A client that begins with TLS is passed on as it is.
	direct := newRig(t, []string{server(t, echo)}, byName(10*time.Second, true))
	c := direct.dial()
	say(t, c, hello)
	hear(t, c, hello)
	_ = c.Close()

	for what, send := range map[string]string{
		"a CancelRequest of who has no session": "\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02",
		"bytes behind a CancelRequest":          "\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02!",
		"bytes before the answer":               string(ask[:]) + "\x16",
		"Kerberos twice":                        gss + gss,
	} {
		c := r.dial()
		say(t, c, send)
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("%s: told %q", what, got)
		}
		if rec := r.record(); rec.Reason != message.BadRequest || rec.Sent {
			t.Errorf("%s: %v %s", what, rec.Reason, rec.Detail)
		}
	}
	c = r.dial()
	say(t, c, "\x00\x00\x00\x10\x00\x03\x00\x00user\x00a\x00\x00")
	if got, _ := io.ReadAll(c); !strings.Contains(string(got), "sslmode=require") || got[0] != 'E' {
		t.Errorf("a client in clear is told %q", got)
	}
	r.record()
}

// TestPostgresRefuses: where every backend says no, or nothing, the client has no
// session, and the reason says why.
func TestPostgresRefuses(t *testing.T) {
	silent := server(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	for _, addrs := range [][]string{{asPostgres(t, 'N', nil)}, {silent}, {asPostgres(t, 'E', nil)}} {
		r := newRig(t, addrs, func(r *rig, cfg *pool.Config) {
			byName(10*time.Second, true)(r, cfg)
			r.rt.Connect = 500 * time.Millisecond
		})
		c := r.dial()
		ask := clienthello.SSLRequest()
		say(t, c, string(ask[:]))
		hear(t, c, "S")
		say(t, c, string(browser(t)))
		_, _ = io.ReadAll(c)
		if rec := r.record(); rec.Reason != message.TLSFailed || !strings.Contains(rec.Detail, "SSLRequest") {
			t.Errorf("%v %s", rec.Reason, rec.Detail)
		}
	}
}

// TestPostgresBehindProxy: the PROXY header goes before the question, and once.
func TestPostgresBehindProxy(t *testing.T) {
	got := make(chan string, 1)
	hello := string(browser(t))
	back := server(t, func(c *net.TCPConn) {
		buf := make([]byte, 6+clienthello.AskSize)
		_, _ = io.ReadFull(c, buf)
		_, _ = c.Write([]byte{'S'})
		rest := make([]byte, len(hello))
		_, _ = io.ReadFull(c, rest)
		got <- string(buf) + string(rest)
	})
	r := newRig(t, []string{back}, func(r *rig, cfg *pool.Config) {
		byName(10*time.Second, true)(r, cfg)
		r.rt.ProxyHeader = func(dst []byte, _ *Client) []byte { return append(dst, "HEADER"...) }
	})
	c := r.dial()
	ask := clienthello.SSLRequest()
	say(t, c, string(ask[:]))
	hear(t, c, "S")
	say(t, c, hello)
	if s := <-got; s != "HEADER"+string(ask[:])+hello {
		t.Errorf("the backend gets %.40q", s)
	}
	_ = c.Close()
	r.record()
}
