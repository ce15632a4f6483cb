// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// TestClientOf walks chains that trusted proxies tell.
func TestClientOf(t *testing.T) {
	trust := NewTrust(prefixes("10.0.0.0/8", "::ffff:192.168.0.0/112", "fd00::/8"), nil)
	for _, c := range []struct {
		lines []string // as they arrived
		want  string
	}{
		{nil, "10.0.0.1"},
		{[]string{"X-Forwarded-For: 1.2.3.4"}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: 6.6.6.6, 1.2.3.4"}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: 1.2.3.4, 10.0.0.9"}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: 1.2.3.4, 10.0.0.9, 192.168.3.4"}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 1.2.3.4,10.0.0.9"}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: 1.2.3.4", "X-Forwarded-For: 10.0.0.9"}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: 10.0.0.7, 10.0.0.9"}, "10.0.0.7"}, // all trusted: the leftmost
		{[]string{"X-Forwarded-For: unknown, 10.0.0.9"}, "10.0.0.9"},  // what lies left of nonsense is nobody's word
		{[]string{"X-Forwarded-For: 1.2.3.4, junk"}, "10.0.0.1"},
		{[]string{"X-Forwarded-For: 1.2.3.4:555"}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: [2001:db8::1]:555"}, "2001:db8::1"},
		{[]string{"X-Forwarded-For: 2001:db8::1"}, "2001:db8::1"},
		{[]string{"X-Forwarded-For: ::ffff:1.2.3.4"}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: 1.2.3.4, fd00::1"}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: , 1.2.3.4, ,"}, "1.2.3.4"},
		{[]string{"Forwarded: for=1.2.3.4;proto=https"}, "1.2.3.4"},
		{[]string{"Forwarded: proto=https; For=\"[2001:db8::1]:9\""}, "2001:db8::1"},
		{[]string{"Forwarded: for=6.6.6.6, for=1.2.3.4, for=10.0.0.3"}, "1.2.3.4"},
		{[]string{"Forwarded: for=1.2.3.4, for=_hidden"}, "10.0.0.1"},
		{[]string{"Forwarded: for=9.9.9.9;by=\"a,b\", for=1.2.3.4;host=\"x,y\""}, "1.2.3.4"},
		{[]string{"Forwarded: for=1.2.3.4;host=\"a\\\",for=6.6.6.6\""}, "1.2.3.4"},
		{[]string{"Forwarded: host=\"a\\\";for=6.6.6.6;x=\\\"\";for=1.2.3.4"}, "1.2.3.4"},
		// A client's open quote swallows nothing that a proxy appended.
		{[]string{"Forwarded: for=6.6.6.6;x=\", for=1.2.3.4;proto=https"}, "1.2.3.4"},
		{[]string{"Forwarded: \", for=1.2.3.4;host=\"h:80\""}, "1.2.3.4"},
		{[]string{"X-Forwarded-For: \", 1.2.3.4"}, "1.2.3.4"},
		{[]string{"Forwarded: for=9.9.9.9", "X-Forwarded-For: 1.2.3.4"}, "1.2.3.4"}, // the older field decides
	} {
		var f message.Fields
		for _, l := range c.lines {
			name, value, _ := strings.Cut(l, ": ")
			f.Add(idOf(name), name, value)
		}
		if got := clientOf(trust, netip.MustParseAddr("10.0.0.1"), &f); got.String() != c.want {
			t.Errorf("%q: client %s, want %s", c.lines, got, c.want)
		}
	}
}

// FuzzClientOf checks on any text that walking ends, and that the client is the
// peer or an address that the text holds.
func FuzzClientOf(f *testing.F) {
	f.Add("1.2.3.4, [::1]:3", `for="[2001:db8::1]:80";by=x, for=_a`)
	f.Add(",,,", `for=";"`)
	trust := NewTrust(prefixes("10.0.0.0/8"), nil)
	peer := netip.MustParseAddr("10.0.0.1")
	f.Fuzz(func(t *testing.T, xff, fwd string) {
		for _, text := range []struct {
			id    message.FieldID
			value string
		}{{message.XForwardedFor, xff}, {message.Forwarded, fwd}} {
			var fields message.Fields
			fields.Add(text.id, "n", text.value)
			got := clientOf(trust, peer, &fields)
			if !got.IsValid() || got.Zone() != "" || got.Is4In6() {
				t.Fatalf("client %v of %q", got, text.value)
			}
		}
	})
}

// TestTrustedProxy checks the fields that leave when a trusted proxy is the
// peer: extended, kept, completed.
func TestTrustedProxy(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
		client   string
	}{
		{
			"chain", "X-Forwarded-For: 6.6.6.6, 1.2.3.4\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: pub\r\nX-Forwarded-Port: 443\r\nX-Real-IP: 7.7.7.7\r\n",
			[]string{
				"X-Forwarded-For: 6.6.6.6, 1.2.3.4, 127.0.0.1", "X-Forwarded-Proto: https", "X-Forwarded-Host: pub", "X-Forwarded-Port: 443",
				"X-Real-IP: 1.2.3.4", "Forwarded: for=1.2.3.4, for=127.0.0.1;host=h;proto=http",
			}, "1.2.3.4",
		},
		{
			"forwarded", "Forwarded: for=\"[2001:db8::7]\"\r\n",
			[]string{
				"X-Forwarded-For: 2001:db8::7, 127.0.0.1", "X-Forwarded-Proto: http", "X-Forwarded-Host: h", "X-Forwarded-Port: 8080",
				"X-Real-IP: 2001:db8::7", "Forwarded: for=\"[2001:db8::7]\", for=127.0.0.1;host=h;proto=http",
			}, "2001:db8::7",
		},
		{
			"nonsense proto", "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: gopher\r\nX-Weir-Attempt: 2\r\n",
			[]string{
				"X-Forwarded-For: 1.2.3.4, 127.0.0.1", "X-Forwarded-Proto: http", "X-Forwarded-Host: h", "X-Forwarded-Port: 8080",
				"X-Real-IP: 1.2.3.4", "Forwarded: for=1.2.3.4, for=127.0.0.1;host=h;proto=http",
			}, "1.2.3.4",
		},
		{
			"lines twice", "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\nX-Forwarded-Host: b\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Port: 2\r\n",
			[]string{
				"X-Forwarded-For: 1.2.3.4, 127.0.0.1", "X-Forwarded-Proto: http", "X-Forwarded-Host: h", "X-Forwarded-Port: 8080",
				"X-Real-IP: 1.2.3.4", "Forwarded: for=1.2.3.4, for=127.0.0.1;host=h;proto=http",
			}, "1.2.3.4",
		},
		{
			"open quote", "Forwarded: for=6.6.6.6;x=\", for=1.2.3.4\r\n",
			[]string{
				"X-Forwarded-For: 1.2.3.4, 127.0.0.1", "X-Forwarded-Proto: http", "X-Forwarded-Host: h", "X-Forwarded-Port: 8080",
				"X-Real-IP: 1.2.3.4", "Forwarded: for=1.2.3.4, for=127.0.0.1;host=h;proto=http",
			}, "1.2.3.4",
		},
		{"no chain", "", strings.Split(strings.TrimSuffix(strings.Split(forwardedTail, "X-Request-Id")[0], "\r\n"), "\r\n"), "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := weirtest.Always(t, ok2)
			r := newRig(t, []string{b.Addr()}, edit(func(r *rig) { r.h.Trust = NewTrust(prefixes("127.0.0.0/8"), nil) }))
			if m := r.roundTrip("GET / HTTP/1.1\r\nHost: h\r\n" + c.in + "\r\n"); m.Status() != 200 {
				t.Fatalf("answer %+v", m)
			}
			var got []string
			for _, l := range b.Seen()[0].Lines {
				if regexp.MustCompile(`^(?i)(x-forwarded-.*|forwarded|x-real-ip|x-weir.*):`).MatchString(l) {
					got = append(got, l)
				}
			}
			sorted := func(l []string) string {
				l = append([]string(nil), l...)
				for i := range l {
					for j := range i {
						if l[i] < l[j] {
							l[i], l[j] = l[j], l[i]
						}
					}
				}
				return strings.Join(l, "\n")
			}
			if sorted(got) != sorted(c.want) {
				t.Errorf("backend saw\n%s\nwant\n%s", sorted(got), sorted(c.want))
			}
			if rec := r.want(200, message.OK, true); rec.ClientIP.String() != c.client {
				t.Errorf("client %s, want %s", rec.ClientIP, c.client)
			}
		})
	}
}

// TestForwardedForms checks what depends on the connection: IPv6, TLS, an
// authority that needs quotes, a trusted weir, and a change of authority.
func TestForwardedForms(t *testing.T) {
	b := weirtest.Always(t, ok2)
	r := newRig(t, []string{b.Addr()}, edit(func(r *rig) {
		r.peer, r.tls = netip.MustParseAddrPort("[2001:db8::5]:99"), true
		r.h.Trust = NewTrust(nil, prefixes("2001:db8::/32"))
	}))
	c := r.dial()
	for i, host := range []string{"h:8443", "h:8443", "other"} {
		c.Sendf("GET / HTTP/1.1\r\nHost: %s\r\nX-Weir-Else: 1\r\n\r\n", host)
		_ = c.Final("GET")
		m := b.Seen()[i]
		quoted := host
		if strings.Contains(host, ":") {
			quoted = `"` + host + `"`
		}
		if got, want := m.Values("Forwarded"), `for="[2001:db8::5]";host=`+quoted+`;proto=https`; len(got) != 1 || got[0] != want {
			t.Errorf("Forwarded %q, want %s", got, want)
		}
		if got := m.Values("X-Forwarded-Host"); len(got) != 1 || got[0] != host {
			t.Errorf("X-Forwarded-Host %q", got)
		}
		if m.Get("X-Forwarded-Proto") != "https" || m.Get("X-Real-IP") != "2001:db8::5" || m.Get("X-Weir-Else") != "1" {
			t.Errorf("backend saw %q", m.Head())
		}
	}
}

// TestTraceparent holds validity to the W3C's rules.
func TestTraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for v, want := range map[string]bool{
		good:                      true,
		"cc" + good[2:]:           true,
		"cc" + good[2:] + "-more": true,
		"cc" + good[2:] + "more":  false,
		"ff" + good[2:]:           false,
		good + "-more":            false,
		good[:54]:                 false,
		strings.ToUpper(good):     false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": false,
		"": false,
	} {
		if validTraceparent([]byte(v)) != want {
			t.Errorf("%q: want %v", v, want)
		}
	}
	if made := appendTraceparent(nil); !validTraceparent(made) {
		t.Errorf("made %q", made)
	}
}

// TestRequestIDs checks which ids are taken over.
func TestRequestIDs(t *testing.T) {
	for v, want := range map[string]bool{
		"a": true, "A-z_0.9": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false,
		"": false, "a b": false, "a/b": false, "é": false, "a\x00": false,
	} {
		if validRequestID([]byte(v)) != want {
			t.Errorf("%q: want %v", v, want)
		}
	}
	b := weirtest.Always(t, ok2)
	r := newRig(t, []string{b.Addr()})
	m := r.roundTrip("GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: one\r\nX-Request-Id: two\r\n\r\n")
	up := b.Seen()[0].Values("X-Request-Id")
	if len(up) != 1 || len(up[0]) != 32 || m.Get("X-Request-Id") != up[0] {
		t.Errorf("two ids became %q toward the backend, %q toward the client", up, m.Get("X-Request-Id"))
	}
}

// TestHex holds the digits to fmt's.
func TestHex(t *testing.T) {
	for range 1000 {
		a, b := rand.Uint64(), rand.Uint64()
		if got, want := string(appendHex(nil, a, b, 0, ^uint64(0))), fmt.Sprintf("%016x%016x%016x%016x", a, b, 0, ^uint64(0)); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
}

// TestLinesFit checks that the lines that a connection keeps are allocated once
// and not grown: with many idle clients they are a good part of what each costs.
func TestLinesFit(t *testing.T) {
	for _, peer := range []string{"255.255.255.255:65535", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"} {
		req := &message.Request{Authority: []byte("a.rather-long-name.example.com:65535")}
		ap := netip.MustParseAddrPort(peer)
		if n := testing.AllocsPerRun(50, func() {
			ci := &ClientInfo{Peer: ap, Local: ap, TLS: true}
			ci.refresh(nil, 0)
			e := &exchange{ci: ci, req: req}
			e.writeLines()
		}); n > 4 && !raceEnabled { // ClientInfo, authority, lines, their text; the race detector adds its own
			t.Errorf("%s: %v allocations", peer, n)
		}
	}
}
