// SPDX-License-Identifier: Apache-2.0

package route

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/message"
)

func TestNormalizePath(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"/", "/"}, {"", "/"}, {"/a", "/a"}, {"/a/", "/a/"}, {"/a/b", "/a/b"},
		// Dot segments (RFC 3986 section 5.2.4, and its example).
		{"/a/b/c/./../../g", "/a/g"}, {"/.", "/"}, {"/./", "/"}, {"/..", "/"}, {"/../", "/"},
		{"/a/.", "/a/"}, {"/a/..", "/"}, {"/a/../", "/"}, {"/a/b/..", "/a/"}, {"/../../a", "/a"},
		{"/../a/../../b", "/b"}, {"/...", "/..."}, {"/a/...", "/a/..."}, {"/.a", "/.a"}, {"/a./b", "/a./b"},
		{"/..a", "/..a"}, {"/.well-known/x", "/.well-known/x"},
		// Slashes, before dots: a/../ drops a, not the empty segment.
		{"//", "/"}, {"//a", "/a"}, {"/a//b", "/a/b"}, {"/a//../b", "/b"}, {"///a///", "/a/"}, {"/.//..//a", "/a"},
		// Escapes.
		{"/%7Eme", "/~me"}, {"/%41%2d%5f", "/A-_"}, {"/%2e%2e/a", "/a"}, {"/a/%2E./b", "/b"}, {"/a%2eb", "/a.b"},
		{"/caf%c3%a9", "/caf%C3%A9"}, {"/%C3", "/%C3"}, {"/%20x", "/%20x"}, {"/%252f", "/%252f"}, {"/%3a%3B", "/%3A%3B"},
		{"/%25%32%66", "/%252f"},
		{"/a/..;/b", "/a/..;/b"}, {"/%0d%0A", "/%0D%0A"},
	} {
		got, changed, err := NormalizePath(nil, []byte(c.in))
		if err != nil || string(got) != c.want || changed != (c.in != c.want) {
			t.Errorf("%q: %q, changed %v, %v; want %q", c.in, got, changed, err, c.want)
		}
	}
}

func TestNormalizePathErrors(t *testing.T) {
	for in, want := range map[string]*Error{
		"/%2f": errSlash, "/a%2Fb": errSlash, "/%5c": errBackslash, "/%5C": errBackslash, `/a\b`: errBackslash,
		"/%00": errNUL, "/a\x00": errNUL, "/%": errEscape, "/%4": errEscape, "/%4g": errEscape, "/%g4": errEscape,
		"/a%": errEscape, "/%%41": errEscape, "a": errNotAbsolute, "*": errNotAbsolute, "a/b": errNotAbsolute,
	} {
		_, _, err := NormalizePath(nil, []byte(in))
		var e *Error
		if !errors.As(err, &e) || e != want {
			t.Errorf("%q: %v, want %v", in, err, want)
		}
		if e != nil && e.Reason != message.BadRequest {
			t.Errorf("%q: reason %v", in, e.Reason)
		}
	}
}

// A normal path is returned as it is: nothing is copied.
func TestNormalizePathKeepsNormal(t *testing.T) {
	for _, in := range []string{"/a/b", "/.well-known/acme", "/%C3%A9", "/a.b/c..d"} {
		p := []byte(in)
		dst := []byte("zzzzzzzzzzzzzzzzzzzzzzzzzz")
		got, _, err := NormalizePath(dst, p)
		if err != nil || &got[0] != &p[0] {
			t.Errorf("%q was copied (%v)", in, err)
		}
	}
}

// specNormalize is the definition, written the slow way: decode, split,
// resolve, join.
func specNormalize(path string, lenient bool) (string, bool) {
	if path == "" {
		path = "/"
	}
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '%' && i+2 < len(path) && strings.IndexByte(hexDigits, path[i+1]) >= 0 && strings.IndexByte(hexDigits, path[i+2]) >= 0 {
			esc := strings.ToUpper(path[i : i+3])
			v := byte(strings.IndexByte(hexUpper, esc[1])<<4 | strings.IndexByte(hexUpper, esc[2]))
			i += 2
			switch {
			case strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~", v) >= 0:
				b.WriteByte(v)
			case v == '/' || v == '\\' || v == 0:
				if !lenient {
					return "", false
				}
				if v == 0 {
					b.WriteString(esc)
				} else {
					b.WriteByte('/')
				}
			default:
				b.WriteString(esc)
			}
			continue
		}
		switch {
		case lenient && c == '\\':
			c = '/'
		case !lenient && (c == '%' || c == '\\' || c == 0):
			return "", false
		}
		b.WriteByte(c)
	}
	s := b.String()
	if s[0] != '/' {
		if !lenient {
			return "", false
		}
		s = "/" + s
	}
	var out []string
	parts := strings.Split(s, "/")
	for i, p := range parts {
		last := i == len(parts)-1
		switch p {
		case "", ".":
		case "..":
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
		default:
			out = append(out, p)
			if !last {
				continue
			}
			return "/" + strings.Join(out, "/"), true
		}
	}
	if len(out) == 0 {
		return "/", true
	}
	return "/" + strings.Join(out, "/") + "/", true
}

const (
	hexDigits = "0123456789abcdefABCDEF"
	hexUpper  = "0123456789ABCDEF"
)

func FuzzNormalizePath(f *testing.F) {
	for _, s := range []string{
		"/", "", "/a/../b", "//a//", "/%2e%2E/", "/%41", "/%c3%a9", "/%2f", `/\`, "/%5c..", "/%00", "/%", "/a/%2e%2e%2f..",
		"/.well-known/", "*", "a", "/a/b/../../../c", "/....//", "/%25%32%65", "/a/.%2e/b/./", "/\xff\xfe",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, path []byte) {
		original := bytes.Clone(path)
		for _, lenient := range []bool{false, true} {
			out, e := rewrite(nil, path, lenient)
			want, ok := specNormalize(string(path), lenient)
			if (e == nil) != ok || ok && string(out) != want {
				t.Fatalf("%q, lenient %v: %q, %v; the definition says %q, %v", path, lenient, out, e, want, ok)
			}
		}
		out, changed, err := NormalizePath(make([]byte, 0, 8), path)
		if !bytes.Equal(original, path) {
			t.Fatalf("%q was written to", original)
		}
		if err != nil {
			return
		}
		if changed == bytes.Equal(out, path) {
			t.Fatalf("%q: changed %v, result %q", path, changed, out)
		}
		if len(out) > max(1, len(path)) {
			t.Fatalf("%q: longer: %q", path, out)
		}
		if again, changed, err := NormalizePath(nil, out); err != nil || changed {
			t.Fatalf("%q: not idempotent: %q becomes %q, %v", path, out, again, err)
		}
		for part := range strings.SplitSeq(string(out[1:]), "/") {
			if part == "." || part == ".." {
				t.Fatalf("%q: dot segment in %q", path, out)
			}
		}
		if out[0] != '/' || bytes.Contains(out, []byte("//")) || bytes.ContainsAny(out, "\\\x00") {
			t.Fatalf("%q: %q is not normal", path, out)
		}
	})
}
