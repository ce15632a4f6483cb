// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/proxyproto"
)

const (
	headerV1 = "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n"
	// headerV2 says the same, with a TLV of one byte.
	headerV2 = "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x10\xc0\x00\x02\x01\xc6\x33\x64\x07\xdc\x04\x01\xbb\xea\x00\x01x"
	local    = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
)

func loopback() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

// telling is a handler that answers with what it is told of the client and with
// every byte that comes, until the client's end.
func telling(c *netconn.Conn, i Info) {
	defer c.Close()
	via := "-"
	if i.Proxied != nil {
		via = fmt.Sprintf("v%d %d", i.Proxied.Version, len(i.Proxied.TLVs))
	}
	client := i.Remote.String()
	if i.Proxied == nil {
		client = "peer"
	}
	_, _ = fmt.Fprintf(c, "%s %s|", client, via)
	_, _ = io.Copy(c, c)
}

// converse sends pieces, ends, and returns all that comes back; "" when the
// connection was closed without a word.
func converse(t *testing.T, c net.Conn, pieces ...string) string {
	t.Helper()
	defer c.Close() //nolint:errcheck // read to its end
	for _, p := range pieces {
		if _, err := io.WriteString(c, p); err != nil {
			break // it was closed: reading tells
		}
	}
	_ = c.(interface{ CloseWrite() error }).CloseWrite()
	got, _ := io.ReadAll(c) // a reset is no answer
	return string(got)
}

// bytewise cuts a text into its bytes.
func bytewise(s string) []string { return strings.Split(s, "") }

func TestProxyHeader(t *testing.T) {
	const named1, named2 = "192.0.2.1:56324 v1 0|", "192.0.2.1:56324 v2 4|"
	for _, mode := range []string{"optional", "required"} {
		l := start(t, Options{Proxy: &ProxyOptions{Required: mode == "required", From: loopback()}}, telling)
		absent := func(rest string, o HeaderOutcome) (string, HeaderOutcome) {
			if mode == "required" {
				return "", HeaderMissing
			}
			return "peer -|" + rest, o
		}
		absentGet, absentOut := absent("GET / HTTP/1.1\r\n", HeaderAbsent)
		absentPost, _ := absent("POST /", HeaderAbsent)
		absentLines, _ := absent("\r\n\r\nGET", HeaderAbsent)
		for _, c := range []struct {
			name   string
			pieces []string
			want   string
			out    HeaderOutcome
		}{
			{"version 1 and content at once", []string{headerV1 + "hello"}, named1 + "hello", HeaderRead},
			{"version 1, content later", []string{headerV1, "hello"}, named1 + "hello", HeaderRead},
			{"version 1 byte by byte", bytewise(headerV1 + "hello"), named1 + "hello", HeaderRead},
			{"version 2", []string{headerV2 + "\x16\x03\x01"}, named2 + "\x16\x03\x01", HeaderRead},
			{"version 2 byte by byte", bytewise(headerV2 + "hello"), named2 + "hello", HeaderRead},
			{"a second one is content", []string{headerV2 + headerV1 + "x"}, named2 + headerV1 + "x", HeaderRead},
			{"UNKNOWN", []string{"PROXY UNKNOWN 192.0.2.1 x y z\r\nhello"}, "peer -|hello", HeaderNobody},
			{"LOCAL", []string{local + "hello"}, "peer -|hello", HeaderNobody},
			{"datagrams", []string{strings.Replace(headerV2, "\x21\x11", "\x21\x12", 1) + "hello"}, "peer -|hello", HeaderNobody},
			{"none", []string{"GET / HTTP/1.1\r\n"}, absentGet, absentOut},
			{"none, with the first letter", []string{"P", "OST /"}, absentPost, absentOut},
			{"none, with half a signature", bytewise("\r\n\r\nGET"), absentLines, absentOut},
			{"octet", []string{strings.Replace(headerV1, "192", "392", 1) + "hello"}, "", HeaderMalformed},
			{"version 3", []string{strings.Replace(headerV2, "\x21\x11", "\x31\x11", 1) + "hello"}, "", HeaderVersion},
			{"too long", []string{"PROXY UNKNOWN " + strings.Repeat("x", 200)}, "", HeaderTooLong},
			{"over 4 KiB", []string{strings.Replace(headerV2, "\x00\x10\xc0", "\x10\x10\xc0", 1)}, "", HeaderTooLong},
			{"checksum", []string{strings.Replace(headerV2, "\x00\x10\xc0", "\x00\x13\xc0", 1)[:28] + "\x03\x00\x04abcd"}, "", HeaderChecksum},
			{"half of one", []string{headerV1[:20]}, "", HeaderClosed},
			{"a letter of one", []string{"P"}, "", HeaderClosed},
			{"nothing", nil, "", HeaderClosed},
		} {
			before := l.Headers()
			if got := converse(t, dial(t, l), c.pieces...); got != c.want {
				t.Errorf("%s, %s: %q, want %q", mode, c.name, got, c.want)
			}
			eventually(t, mode+", "+c.name+": counted", func() bool { return l.Connections() == 0 })
			if after := l.Headers(); after[c.out] != before[c.out]+1 {
				t.Errorf("%s, %s: %v, and %v before: no %s", mode, c.name, after, before, c.out)
			}
		}
	}
}

// TestProxyHeaderNotListed: what others send is content, whatever it looks like,
// and nothing is waited for.
func TestProxyHeaderNotListed(t *testing.T) {
	l := start(t, Options{Proxy: &ProxyOptions{Required: true, From: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}, telling)
	for _, text := range []string{headerV1 + "x", headerV2, "hello"} {
		if got := converse(t, dial(t, l), text); got != "peer -|"+text {
			t.Errorf("%q: %q", text, got)
		}
	}
	c := dial(t, l)
	if b := make([]byte, 7); c != nil {
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "peer -|" {
			t.Errorf("a client that says nothing: %q, %v", b, err)
		}
	}
	_ = c.Close()
	if l.Headers() != [headers]int64{} {
		t.Errorf("%v", l.Headers())
	}
	l.Forged(netip.AddrPort{})
	if l.Headers()[HeaderNotAllowed] != 1 {
		t.Error("not counted")
	}
}

// TestProxyHeaderTimeout: one time bounds the header and the handshake together.
func TestProxyHeaderTimeout(t *testing.T) {
	s := startSecure(t, Options{HandshakeTimeout: 150 * time.Millisecond, Proxy: &ProxyOptions{From: loopback()}, TLS: &TLSOptions{ReloadEvery: -1}}, []string{"a.test"})
	for _, text := range []string{"", "PROXY TCP4 ", headerV1} {
		c := dial(t, s.Listener)
		began := time.Now()
		_, _ = io.WriteString(c, text)
		if b, _ := io.ReadAll(c); len(b) != 0 || time.Since(began) < 100*time.Millisecond {
			t.Errorf("%q: %q after %v", text, b, time.Since(began))
		}
		_ = c.Close()
	}
	eventually(t, "counted", func() bool { return s.Headers()[HeaderTimeout] == 2 && s.Refused(HandshakeTimeout) == 1 })
}

// TestProxyHeaderTLS: the handshake comes behind the header, and a header in its
// place is counted where nobody may send one.
func TestProxyHeaderTLS(t *testing.T) {
	s := startSecure(t, Options{Proxy: &ProxyOptions{Required: true, From: loopback()}, TLS: &TLSOptions{ReloadEvery: -1}}, []string{"a.test"})
	c := dial(t, s.Listener)
	if _, err := io.WriteString(c, headerV2); err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(c, &tls.Config{RootCAs: s.ca.Pool(), ServerName: "a.test"})
	if err := tc.Handshake(); err != nil {
		t.Fatal(err)
	}
	_ = tc.Close()
	change(t, s.Listener, Options{Bind: s.set.Load().opt.Bind, TLS: s.set.Load().opt.TLS})
	if s.ReadsHeaders() {
		t.Error("headers are still read")
	}
	for _, text := range []string{headerV1, headerV2} {
		if got := converse(t, dial(t, s.Listener), text); strings.Contains(got, "HTTP") {
			t.Errorf("%q", got)
		}
	}
	eventually(t, "counted", func() bool { return s.Headers()[HeaderNotAllowed] == 2 })
}

// TestProxyHeaderPerClient: clients are counted by their own address, and what is
// refused gives back what it took.
func TestProxyHeaderPerClient(t *testing.T) {
	var logs syncBuffer
	l := start(t, Options{MaxPerClient: 1, Proxy: &ProxyOptions{From: loopback()}, Logger: slog.New(slog.NewTextHandler(&logs, nil))}, telling)
	hold := func(header string) net.Conn {
		c := dial(t, l)
		_, _ = io.WriteString(c, header)
		if b := make([]byte, 4); header != "" {
			if _, err := io.ReadFull(c, b); err != nil {
				t.Fatalf("%q: %v", header, err)
			}
		}
		return c
	}
	one := hold(headerV1)
	other := hold(strings.Replace(headerV1, "192.0.2.1", "192.0.2.2", 1))
	if got := converse(t, dial(t, l), headerV1); !strings.HasPrefix(got, "HTTP/1.1 503") {
		t.Errorf("a second connection of one client: %q", got)
	}
	if s := logs.String(); !strings.Contains(s, "reason=client_limit total=1 peer=127.0.0.1:") || !strings.Contains(s, "client=192.0.2.1:") {
		t.Errorf("the log does not say whom, and by whom: %s", s)
	}
	_ = one.Close()
	eventually(t, "one has left", func() bool { return l.Connections() == 1 })
	if got := converse(t, dial(t, l), headerV1); !strings.HasPrefix(got, "192.0.2.1") {
		t.Errorf("after the first has ended: %q", got)
	}
	_ = other.Close()
	eventually(t, "nobody is counted", func() bool {
		l.clients.mu.Lock()
		defer l.clients.mu.Unlock()
		return len(l.clients.n) == 0 && l.Connections() == 0
	})
}

// TestProxyHeaderUnix: over a unix socket whoever connects is listed.
func TestProxyHeaderUnix(t *testing.T) {
	var infos sync.Map
	path := filepath.Join(t.TempDir(), "web.sock")
	l := start(t, Options{Bind: []string{"unix:" + path}, Proxy: &ProxyOptions{From: loopback()}}, func(c *netconn.Conn, i Info) {
		infos.Store(i.Remote, i.Proxied)
		telling(c, i)
	})
	for _, h := range []string{headerV1, headerV2} {
		c, err := net.Dial("unix", l.Addrs()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		if got := converse(t, c, bytewise(h+"hello")...); !strings.HasPrefix(got, "192.0.2.1:56324 v") || !strings.HasSuffix(got, "|hello") {
			t.Errorf("%q", got)
		}
	}
	p, _ := infos.Load(netip.MustParseAddrPort("192.0.2.1:56324"))
	if q := p.(*Proxied); q.Peer.IsValid() || string(q.TLVs) != "\xea\x00\x01x" {
		t.Errorf("%+v", q)
	}
}

// TestProxyOptionsListed: IPv4 peers of sockets that speak both families, and zones.
func TestProxyOptionsListed(t *testing.T) {
	p := &ProxyOptions{From: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("fe80::/10")}}
	for addr, want := range map[string]bool{
		"192.0.2.9:1": true, "192.0.3.9:1": false, "[fe80::1%eth0]:1": true, "[2001:db8::1]:1": false,
	} {
		if got := p.listed(netip.MustParseAddrPort(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	if (*ProxyOptions)(nil).listed(netip.AddrPort{}) {
		t.Error("listed where nobody is")
	}
}

// TestHeaderOutcomes: each fault of a header has an outcome, under the same word.
func TestHeaderOutcomes(t *testing.T) {
	for f, o := range outcomes {
		if f.Word() != o.String() || o.served() {
			t.Errorf("%s is %s", f.Word(), o)
		}
	}
	for f := proxyproto.None; f <= proxyproto.Checksum; f++ {
		if _, ok := outcomes[f]; !ok {
			t.Errorf("%s has no outcome", f.Word())
		}
	}
}
