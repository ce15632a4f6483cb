// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

func stickyBackends(ids ...string) (out []*balance.Backend) {
	for _, id := range ids {
		out = append(out, balance.NewBackend(id, "http://"+id))
	}
	return out
}

func valueOf(s *Sessions, b *balance.Backend, now int64) string {
	return string(appendValue(nil, s.token(b), now, now != 0))
}

var stickyKeyA, stickyKeyB = bytes.Repeat([]byte{1}, 48), bytes.Repeat([]byte{2}, 48)

// TestSessionsVectors: the values of a pool, as other implementations make them:
//
//	printf 'weir sticky cookie\0app\x0010.0.1.21:8080' | openssl dgst -sha256 [-mac HMAC -macopt hexkey:0101...] -binary |
//	head -c 16 | basenc --base64url | tr -d =
func TestSessionsVectors(t *testing.T) {
	b := stickyBackends("10.0.1.21:8080")
	s := NewSessions("app")
	s.SetMembers(b)
	for _, c := range []struct {
		keys [][]byte
		want string
	}{
		{nil, "faIJYTkOGUQ8zG3LuNIcaw"},
		{[][]byte{stickyKeyA}, "rfYyJvJ0CEW1muMBMOTUpA"},
	} {
		s.SetKeys(c.keys)
		if got := valueOf(s, b[0], 0); got != c.want {
			t.Errorf("with %d keys: %s, want %s", len(c.keys), got, c.want)
		}
	}
}

// TestSessionsRotation: weirs agree by their keys alone; a value of an older key
// means the same and is to be renewed; one of no key means nothing; members come
// and go.
func TestSessionsRotation(t *testing.T) {
	b := stickyBackends("a", "b", "c")
	one, two := NewSessions("app"), NewSessions("app")
	for _, s := range []*Sessions{one, two} {
		s.SetMembers(b)
		s.SetKeys([][]byte{stickyKeyA})
	}
	find := func(s *Sessions, value string) (balance.BackendID, bool) {
		t.Helper()
		v, _, ok := parseValue([]byte(value))
		if !ok {
			t.Fatalf("%q is not a value", value)
		}
		return s.find(v)
	}
	for _, x := range b {
		if id, old := find(two, valueOf(one, x, 0)); id != x.Hash() || old {
			t.Errorf("%s: %x, old %v", x.ID(), id, old)
		}
	}
	first := valueOf(one, b[0], 0)
	two.SetKeys([][]byte{stickyKeyB, stickyKeyA})
	if id, old := find(two, first); id != b[0].Hash() || !old {
		t.Errorf("by an older key: %x, old %v", id, old)
	}
	if id, _ := find(one, valueOf(two, b[0], 0)); id != 0 {
		t.Error("a value of a key that is not known means something")
	}
	two.SetKeys([][]byte{stickyKeyB})
	if id, _ := find(two, first); id != 0 {
		t.Error("a value of a key that was dropped means something")
	}
	two.SetKeys(nil)
	if id, _ := find(two, valueOf(one, b[0], 0)); id != 0 {
		t.Error("a signed value means something where none are signed")
	}
	one.SetMembers(b[1:])
	if id, _ := find(one, first); id != 0 {
		t.Error("a backend that has left is named")
	}
	if v := valueOf(one, b[0], 0); v != first {
		t.Errorf("a backend that is not in the table: %s, want %s", v, first)
	}
	other := NewSessions("other")
	other.SetMembers(b)
	other.SetKeys([][]byte{stickyKeyA})
	if id, _ := find(other, first); id != 0 {
		t.Error("a value of another pool means something")
	}
}

// TestStickyOpaque: what a client sees holds nothing of the address, and values
// of neighbours have nothing in common.
func TestStickyOpaque(t *testing.T) {
	b := stickyBackends("10.0.1.21:8080", "10.0.1.22:8080")
	s := NewSessions("app")
	s.SetMembers(b)
	s.SetKeys([][]byte{stickyKeyA})
	x, y := s.token(b[0]), s.token(b[1])
	if x.first == y.first || x.rest == y.rest {
		t.Error("neighbours share half of their value")
	}
	if id := uint64(b[0].Hash()); id == x.first || id == x.rest {
		t.Error("the value holds the hash of the id")
	}
}

// TestParseValue: exactly what is written is read.
func TestParseValue(t *testing.T) {
	tok := stickyToken{0x0123456789abcdef, 0xfedcba9876543210}
	for _, now := range []int64{0, 1, 1_800_000_000, 0xffffffff} {
		v := appendValue(nil, tok, now, now != 0)
		got, made, ok := parseValue(v)
		if !ok || got != tok || made != now {
			t.Errorf("%s: %x %d %v", v, got, made, ok)
		}
	}
	good := string(appendValue(nil, tok, 1_800_000_000, true))
	for name, bad := range map[string]string{
		"empty": "", "short": good[:21], "long": good + "0", "no time": good[:23], "padding": good[:22] + "==",
		"other alphabet": "+" + good[1:], "bits left": good[:21] + "B" + good[22:], "upper case": good[:23] + strings.ToUpper("abcdef01"),
		"quotes": `"` + good + `"`, "no dot": good[:22] + "x" + good[23:], "not hex": good[:23] + "0000000g", "space": " " + good[1:],
	} {
		if _, _, ok := parseValue([]byte(bad)); ok {
			t.Errorf("%s: %q is read", name, bad)
		}
	}
}

func requestWith(t testing.TB, lines ...string) *message.Request {
	t.Helper()
	text := "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Join(lines, "\r\n") + "\r\nAccept: x\r\n\r\n"
	var r message.Request
	if _, err := http1.ParseRequest([]byte(text), &http1.Limits{}, &r); err != nil {
		if strings.HasPrefix(t.Name(), "Fuzz") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	return &r
}

func fieldLines(r *message.Request) string {
	return strings.TrimSuffix(strings.TrimPrefix(string(r.Fields.AppendWire(nil)), "Host: a\r\n"), "Accept: x\r\n")
}

// TestTakeCookie: weir's cookie is found wherever it is, and taken out; nothing
// else changes, its place among the fields neither.
func TestTakeCookie(t *testing.T) {
	b := stickyBackends("a", "b")
	sessions := NewSessions("app")
	sessions.SetMembers(b)
	s := NewSticky(StickyOptions{Name: "weir-x", TTL: time.Hour}, sessions)
	const now = 1_800_000_000
	va, vb := valueOf(sessions, b[0], now), valueOf(sessions, b[1], now)
	for _, c := range []struct {
		in   []string
		out  string
		want balance.BackendID
		told bool
	}{
		{[]string{"Cookie: a=1; b=2"}, "Cookie: a=1; b=2\r\n", 0, false},
		{[]string{"Cookie: weir-x=" + va}, "", b[0].Hash(), true},
		{[]string{"cookie: a=1; weir-x=" + va + "; b=2"}, "cookie: a=1; b=2\r\n", b[0].Hash(), true},
		{[]string{"Cookie: weir-x=" + va + ";"}, "", b[0].Hash(), true},
		{[]string{"Cookie:\tweir-x = " + va + " ;a=\"x y\""}, "Cookie: a=\"x y\"\r\n", b[0].Hash(), true},
		// Several lines, as HTTP/2 and HTTP/3 have them before they are joined.
		{[]string{"Cookie: a=1", "Cookie: weir-x=" + vb, "Cookie: c=3"}, "Cookie: a=1\r\nCookie: c=3\r\n", b[1].Hash(), true},
		// Another host of the domain has set one, too: the first that means something.
		{[]string{"Cookie: weir-x=tossed; weir-x=" + vb + "; weir-x=" + va}, "", b[1].Hash(), true},
		{[]string{"Cookie: weir-x=" + strings.Repeat("x; weir-x=", 7) + va}, "", b[0].Hash(), true},
		{[]string{"Cookie: weir-x=" + strings.Repeat("x; weir-x=", 8) + va}, "", 0, true},
		{[]string{"Cookie: WEIR-X=" + va + "; weir-xy=" + va + "; xweir-x=" + va + "; weir-x; a=weir-x=" + va},
			"Cookie: WEIR-X=" + va + "; weir-xy=" + va + "; xweir-x=" + va + "; weir-x; a=weir-x=" + va + "\r\n", 0, false},
		{[]string{"Cookie: weir-x=; b=2"}, "Cookie: b=2\r\n", 0, true},
		{[]string{"Cookie: weir-x=\"" + va + "\""}, "", 0, true},
	} {
		r := requestWith(t, c.in...)
		a := s.take(&r.Fields, now)
		if a.backend != c.want || a.told != c.told || a.renew {
			t.Errorf("%q: %+v, want %x %v", c.in, a, c.want, c.told)
		}
		if got := fieldLines(r); got != c.out {
			t.Errorf("%q leaves %q, want %q", c.in, got, c.out)
		}
	}
}

// TestRenew: a cookie is written anew when half of its time is over, or when it
// says the wrong kind of time; two weirs whose clocks differ a little do not renew
// each other's.
func TestRenew(t *testing.T) {
	b := stickyBackends("a")
	sessions := NewSessions("app")
	sessions.SetMembers(b)
	const now = 1_800_000_000
	for _, c := range []struct {
		ttl  time.Duration
		made int64
		want bool
	}{
		{time.Hour, now, false}, {time.Hour, now - 1799, false}, {time.Hour, now - 1800, true}, {time.Hour, now - 9999999, true},
		{time.Hour, now + 60, false}, {time.Hour, now + 61, true}, {time.Hour, 0, true}, {time.Second, now, false}, {time.Second, now - 1, true},
		{0, 0, false}, {0, now, true},
	} {
		s := NewSticky(StickyOptions{Name: "w", TTL: c.ttl}, sessions)
		id, renew := s.read([]byte(valueOf(sessions, b[0], c.made)), now)
		if id != b[0].Hash() || renew != c.want {
			t.Errorf("ttl %v, made %d s before: %x, renew %v", c.ttl, now-c.made, id, renew)
		}
	}
}

// FuzzTakeCookie holds it against a naive reading of the same lines: whom the
// cookie names, and what is left.
func FuzzTakeCookie(f *testing.F) {
	b := stickyBackends("a", "b")
	sessions := NewSessions("app")
	sessions.SetMembers(b)
	s := NewSticky(StickyOptions{Name: "weir", TTL: time.Hour}, sessions)
	const now = 1_800_000_000
	va, vb := valueOf(sessions, b[0], now), valueOf(sessions, b[1], 0)
	byValue := map[string]balance.BackendID{va: b[0].Hash(), va[:22]: b[0].Hash(), vb: b[1].Hash()}
	f.Add("weir="+va+"; a=1", "b=2")
	f.Add("a=1;weir = "+vb+";;", "weir=x")
	f.Add(";=;weir;weir=;\t", "weir="+va+"weir="+vb)
	f.Fuzz(func(t *testing.T, one, two string) {
		r := requestWith(t, "Cookie: "+one, "Cookie: "+two)
		var want balance.BackendID
		var left string
		looks, told := 0, false
		for i := range r.Fields.Len() {
			if r.Fields.ID(i) != message.Cookie {
				continue
			}
			line := string(r.Fields.Value(i))
			var others []string
			own := false
			for _, pair := range strings.Split(line, ";") {
				pair = strings.Trim(pair, " \t")
				name, value, ok := strings.Cut(pair, "=")
				switch {
				case ok && strings.TrimRight(name, " \t") == "weir":
					own, told = true, true
					if looks++; looks <= stickyLooks && want == 0 {
						value = strings.Trim(value, " \t")
						if _, _, ok := parseValue([]byte(value)); ok {
							want = byValue[value[:22]]
							if want == 0 && value[:22] == vb {
								want = b[1].Hash()
							}
						}
					}
				case pair != "":
					others = append(others, pair)
				}
			}
			switch {
			case !own:
				left += fmt.Sprintf("Cookie: %s\r\n", line)
			case len(others) > 0:
				left += fmt.Sprintf("Cookie: %s\r\n", strings.Join(others, "; "))
			}
		}
		a := s.take(&r.Fields, now)
		if a.backend != want || a.told != told {
			t.Fatalf("%q %q: %+v, want %x %v", one, two, a, want, told)
		}
		var got string
		for i := range r.Fields.Len() {
			if r.Fields.ID(i) == message.Cookie && !r.Fields.Removed(i) {
				got += fmt.Sprintf("Cookie: %s\r\n", r.Fields.Value(i))
			}
		}
		if got != left {
			t.Fatalf("%q %q leave %q, want %q", one, two, got, left)
		}
	})
}

// FuzzParseValue: whatever is read is written in the same way, so that there is
// one text for each value.
func FuzzParseValue(f *testing.F) {
	f.Add([]byte("AAAAAAAAAAAAAAAAAAAAAA"))
	f.Add([]byte("_-_-_-_-_-_-_-_-_-_-_w.6b49d200"))
	f.Fuzz(func(t *testing.T, v []byte) {
		tok, made, ok := parseValue(v)
		if ok && string(appendValue(nil, tok, made, len(v) != tokenChars)) != string(v) {
			t.Fatalf("%q is read as %x %d, which is written in another way", v, tok, made)
		}
	})
}

// TestSetCookie writes the cookie down with all that can be said of it.
func TestSetCookie(t *testing.T) {
	b := stickyBackends("10.0.1.21:8080")
	sessions := NewSessions("app")
	sessions.SetMembers(b)
	const now = 1_800_000_000
	for _, c := range []struct {
		opt    StickyOptions
		secure bool
		want   string
	}{
		{StickyOptions{Name: "w"}, false, "w=V; Path=/"},
		{StickyOptions{Name: "w", TTL: time.Hour, HTTPOnly: true, SameSite: "Lax"}, true, "w=V.6b49d200; Path=/; Max-Age=3600; HttpOnly; Secure; SameSite=Lax"},
		{StickyOptions{Name: "w", SameSite: "None", Path: "/a", Domain: "example.com"}, true, "w=V; Path=/a; Domain=example.com; Secure; SameSite=None"},
		{StickyOptions{Name: "w", SameSite: "None"}, false, "w=V; Path=/"},
	} {
		got := string(NewSticky(c.opt, sessions).append(nil, b[0], now, c.secure))
		if want := strings.Replace(c.want, "V", valueOf(sessions, b[0], 0), 1); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// TestSecured: the cookie is Secure as the client's own connection is.
func TestSecured(t *testing.T) {
	proxy := netip.MustParseAddrPort("10.0.0.1:5")
	for _, c := range []struct {
		secure SecureCookie
		tls    bool
		from   netip.AddrPort
		lines  string
		want   bool
	}{
		{SecureAuto, false, netip.AddrPort{}, "", false},
		{SecureAuto, true, netip.AddrPort{}, "", true},
		{SecureAlways, false, netip.AddrPort{}, "", true},
		{SecureNever, true, netip.AddrPort{}, "", false},
		{SecureAuto, false, netip.AddrPort{}, "X-Forwarded-Proto: https\r\n", false}, // nobody who is trusted
		{SecureAuto, false, proxy, "X-Forwarded-Proto: HTTPS\r\nX-Forwarded-For: 192.0.2.1\r\n", true},
		{SecureAuto, true, proxy, "X-Forwarded-Proto: http\r\nX-Forwarded-For: 192.0.2.1\r\n", false}, // the client's connection ends before weir
		{SecureAuto, true, proxy, "X-Forwarded-For: 192.0.2.1\r\n", true},
		{SecureAuto, true, proxy, "", true},
		{SecureAuto, false, proxy, "X-Forwarded-Proto: https\r\nX-Forwarded-Proto: http\r\n", false},
	} {
		sessions := NewSessions("app")
		h := &Handler{Trust: NewTrust([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, nil)}
		ci := &ClientInfo{Peer: c.from, TLS: c.tls}
		ci.refresh(h.Trust, h.CertFields)
		r := requestWith(t, strings.TrimSuffix("X: y\r\n"+c.lines, "\r\n"))
		e := &exchange{h: h, ci: ci, req: r, rt: &Route{Sticky: NewSticky(StickyOptions{Name: "w", Secure: c.secure}, sessions)}}
		e.shape()
		if e.sticky.secure != c.want {
			t.Errorf("%+v: %v", c, e.sticky.secure)
		}
	}
}
