// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/route"
)

// parsed returns the request of a text, routed.
func parsed(t testing.TB, text string) *message.Request {
	t.Helper()
	r := &message.Request{}
	var lim http1.Limits
	if n, err := http1.ParseRequest([]byte(text), &lim, r); err != nil || n == 0 {
		t.Fatalf("%q: %d %v", text, n, err)
	}
	table, err := route.New([]route.Rule{{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, bad := table.Match(r); !ok || bad != nil {
		t.Fatalf("%q: %v", text, bad)
	}
	return r
}

func asked(target string, fields ...string) string {
	return "GET " + target + " HTTP/1.1\r\nHost: h\r\n" + strings.Join(append(fields, ""), "\r\n") + "\r\n"
}

// TestKeys holds each source to what is equal to it and what is not. Requests
// of one group have equal keys, those of different groups different ones; the
// empty group has none.
func TestKeys(t *testing.T) {
	for name, c := range map[string]struct {
		parts []KeyPart
		same  [][]string
		none  []string
	}{
		"header": {
			[]KeyPart{{KeyHeader, "X-User"}},
			[][]string{
				{asked("/", "X-User: a"), asked("/other?q", "x-user:  a "), asked("/", "X-USER: a", "X-User:")},
				{asked("/", "X-User: A")},
				{asked("/", "X-User: a, b"), asked("/", "X-User: a", "x-user: b"), asked("/", "X-User:", "X-User: a", "X-Other: z", "x-user: b")},
				{asked("/", "X-User: b", "x-user: a")},
			},
			[]string{asked("/"), asked("/", "X-User:"), asked("/", "X-Use: a", "X-Users: a")},
		},
		"known field": {
			[]KeyPart{{KeyHeader, "authorization"}},
			[][]string{{asked("/", "Authorization: Basic x"), asked("/", "AUTHORIZATION: Basic x")}, {asked("/", "Authorization: Basic y")}},
			[]string{asked("/")},
		},
		"host": {
			[]KeyPart{{KeyHeader, "host"}},
			[][]string{
				{"GET / HTTP/1.1\r\nHost: A.example\r\n\r\n", "GET http://a.EXAMPLE/ HTTP/1.1\r\nHost: other\r\n\r\n"},
				{"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n"},
				{"GET / HTTP/1.1\r\nHost: " + strings.Repeat("B", 100) + "\r\n\r\n", "GET / HTTP/1.1\r\nHost: " + strings.Repeat("b", 100) + "\r\n\r\n"},
			},
			[]string{"GET / HTTP/1.0\r\n\r\n"},
		},
		"cookie": {
			[]KeyPart{{KeyCookie, "sid"}},
			[][]string{
				{asked("/", "Cookie: sid=1"), asked("/", "Cookie: a=b; sid=1; sid=2"), asked("/", "Cookie: a=b", "Cookie:  x;sid = 1 ;"), asked("/", "Cookie: =; ;;sid=1")},
				{asked("/", "Cookie: sid=2; sid=1")},
				{asked("/", `Cookie: sid="1"`)},
				{asked("/", "Cookie: sid=1=2")},
			},
			[]string{asked("/"), asked("/", "Cookie: SID=1"), asked("/", "Cookie: sid"), asked("/", "Cookie: sid=; sid=1"), asked("/", "Cookie: xsid=1; sidx=1; a=sid=1"), asked("/", "Set-Cookie: sid=1")},
		},
		"query": {
			[]KeyPart{{KeyQuery, "id"}},
			[][]string{
				{asked("/?id=a%2Fb"), asked("/x?id=a/b&id=c"), asked("/?z&%69d=%61/b"), asked("/?x=id&id=a%2fb")},
				{asked("/?id=a+b"), asked("/?id=a%20b")},
				{asked("/?id=a%2Bb")},
				{asked("/?id=a=b")},
				{asked("/?id=" + strings.Repeat("ab%63", 60)), asked("/?id=" + strings.Repeat("abc", 60))},
				{asked("/?id=" + strings.Repeat("abc", 60) + "c")},
			},
			[]string{asked("/"), asked("/?"), asked("/?id"), asked("/?id="), asked("/?id=&id=1"), asked("/?ID=1"), asked("/?idx=1;id=2"), asked("/?x=id=1"), asked("/?=1")},
		},
		"path": {
			[]KeyPart{{KeyPath, ""}},
			[][]string{
				{asked("/a/b"), asked("/a/b?c"), asked("/a//b"), asked("/x/../a/./%62"), "POST /a/b HTTP/1.1\r\nHost: z\r\nContent-Length: 0\r\n\r\n"},
				{asked("/a/B")}, {asked("/")}, {asked("/a/b/")},
			},
			nil,
		},
		"list": {
			[]KeyPart{{KeyHeader, "A"}, {KeyHeader, "B"}, {KeyQuery, "c"}},
			[][]string{
				{asked("/", "A: 1", "B: 2"), asked("/?c=", "b: 2", "a: 1")},
				{asked("/", "A: 2", "B: 1")}, {asked("/", "A: 12")}, {asked("/", "B: 12")}, {asked("/?c=12")}, {asked("/?c=3", "A: 1", "B: 2")},
				{asked("/?c=2", "A: 1")},
			},
			[]string{asked("/"), asked("/?d=1", "C: 1")},
		},
		"nothing": {nil, nil, []string{asked("/")}},
	} {
		t.Run(name, func(t *testing.T) {
			key := NewKeyFunc(c.parts)
			seen := map[uint64]int{}
			for i, group := range c.same {
				for _, text := range group {
					k, ok := key(parsed(t, text), netip.Addr{})
					if !ok {
						t.Errorf("%q has no key", text)
					}
					if j, there := seen[k]; there && j != i {
						t.Errorf("%q has the key of %q", text, c.same[j][0])
					}
					if seen[k] = i; k == 0 {
						t.Errorf("%q: key 0", text)
					}
				}
			}
			if len(seen) != len(c.same) {
				t.Errorf("%d keys of %d groups", len(seen), len(c.same))
			}
			for _, text := range c.none {
				if k, ok := key(parsed(t, text), netip.Addr{}); ok {
					t.Errorf("%q has key %x", text, k)
				}
			}
		})
	}
}

func TestClientKeys(t *testing.T) {
	key := NewKeyFunc([]KeyPart{{From: KeyClient}})
	r := parsed(t, asked("/"))
	of := func(a string) uint64 {
		k, ok := key(r, netip.MustParseAddr(a))
		if !ok {
			t.Errorf("%s has no key", a)
		}
		return k
	}
	if of("192.0.2.1") == of("192.0.2.2") || of("192.0.2.1") != of("::ffff:192.0.2.1") {
		t.Error("IPv4")
	}
	if of("2001:db8:0:1::1") != of("2001:db8:0:1:ffff:ffff:ffff:ffff") || of("2001:db8:0:1::1") == of("2001:db8:0:2::1") {
		t.Error("IPv6 goes by /64")
	}
	if _, ok := key(r, netip.Addr{}); ok {
		t.Error("a unix socket's client has a key")
	}
}

// TestKeyVectors pins what is hashed: a fleet of two versions must agree. The
// numbers are xxh64's of the bytes in the comment, made by another program.
func TestKeyVectors(t *testing.T) {
	r := parsed(t, asked("/p?q=v", "X-User: alice"))
	for _, c := range []struct {
		parts []KeyPart
		want  string
	}{
		{[]KeyPart{{KeyHeader, "x-user"}}, vectorHeader},
		{[]KeyPart{{From: KeyClient}, {KeyCookie, "none"}, {KeyQuery, "q"}, {From: KeyPath}}, vectorList},
	} {
		k, _ := NewKeyFunc(c.parts)(r, netip.MustParseAddr("192.0.2.1"))
		if got := fmt.Sprintf("%016x", k); got != c.want {
			t.Errorf("%v: %s, want %s", c.parts, got, c.want)
		}
	}
}

const (
	vectorHeader = "e638a5a3dac6bfd9" // "alice" 02 05000000
	vectorList   = "7d8bb2ae566a3b90" // c0000201 01 04000000, 00 00000000, "v" 04 01000000, "/p" 05 02000000
)

func TestKeyAllocatesNothing(t *testing.T) {
	r := parsed(t, asked("/a/b?c=d&e=%66"+strings.Repeat("%67", 100), "X-User: alice", "Cookie: a=b; sid=12345"))
	key := NewKeyFunc([]KeyPart{{From: KeyClient}, {KeyHeader, "X-User"}, {KeyHeader, "Host"}, {KeyCookie, "sid"}, {KeyQuery, "e"}, {From: KeyPath}})
	client := netip.MustParseAddr("192.0.2.1")
	sum := uint64(0)
	if n := testing.AllocsPerRun(1000, func() {
		k, _ := key(r, client)
		sum += k
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkKey(b *testing.B) {
	r := parsed(b, asked("/a/b?c=d&e=f", "X-User: alice", "Cookie: a=b; sid=12345"))
	client := netip.MustParseAddr("192.0.2.1")
	for name, p := range map[string]KeyPart{
		"client": {From: KeyClient}, "header": {KeyHeader, "X-User"}, "cookie": {KeyCookie, "sid"}, "query": {KeyQuery, "e"}, "path": {From: KeyPath},
	} {
		key := NewKeyFunc([]KeyPart{p})
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				key(r, client)
			}
		})
	}
}

// FuzzCookie holds the search against one that splits as the RFC describes.
func FuzzCookie(f *testing.F) {
	for _, s := range []string{"a=1; b=2", "b", "=b; b=", ";;b=\"1\"; b=2", " b\t= 1 ", "xb=1;b=;", "b=1=2"} {
		f.Add(s, "b=9", "b")
	}
	f.Fuzz(func(t *testing.T, one, two, name string) {
		var fields message.Fields
		var all []string
		for _, v := range []string{one, two} {
			fields.Add(message.Cookie, "Cookie", v)
			all = append(all, strings.Split(v, ";")...)
		}
		want, wantOK := "", false
		for _, pair := range all {
			n, v, ok := strings.Cut(pair, "=")
			if ok && strings.Trim(n, " \t") == name {
				want, wantOK = strings.Trim(v, " \t"), true
				break
			}
		}
		if got, ok := cookie(&fields, name); string(got) != want || ok != wantOK {
			t.Errorf("%q and %q, cookie %q: %q %v, want %q %v", one, two, name, got, ok, want, wantOK)
		}
	})
}

// FuzzParameter holds the search against one that decodes everything first.
func FuzzParameter(f *testing.F) {
	for _, s := range []string{"a=1&b=2", "b", "b=", "&&b=%41+", "%62=x&b=y", "b=%", "b=%4", "b=%zz%41", "x=b&b=1=2", "+=1"} {
		f.Add(s, "b")
		f.Add(s, " ")
	}
	f.Fuzz(func(t *testing.T, query, name string) {
		want, wantOK := "", false
		for pair := range strings.SplitSeq(query, "&") {
			n, v, _ := strings.Cut(pair, "=")
			if naiveDecode(n) == name && pair != "" {
				want, wantOK = naiveDecode(v), true
				break
			}
		}
		got, ok := parameter([]byte(query), name)
		if ok != wantOK || !decodesTo(got, want) {
			t.Errorf("%q, parameter %q: %q %v, want %q %v", query, name, got, ok, want, wantOK)
		}
		var a, b keyHash
		a.d.Reset()
		b.d.Reset()
		hashDecoded(&a, got)
		b.write([]byte(want))
		if a.n != b.n || a.d.Sum64() != b.d.Sum64() {
			t.Errorf("%q hashes unlike %q", got, want)
		}
	})
}

func naiveDecode(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		var c byte
		switch {
		case s[i] == '+':
			b.WriteByte(' ')
			continue
		case s[i] == '%' && i+2 < len(s):
			if strings.Trim(s[i+1:i+3], "0123456789abcdefABCDEF") == "" {
				_, _ = fmt.Sscanf(s[i+1:i+3], "%02x", &c)
				b.WriteByte(c)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
