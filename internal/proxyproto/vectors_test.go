// SPDX-License-Identifier: Apache-2.0

package proxyproto

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// vector is one line of testdata/vectors.txt: name, bytes (Go's quoted text, or
// hex with x: before it), and what comes of them.
type vector struct {
	name, want string
	in         []byte
}

func vectors(t testing.TB) []vector {
	t.Helper()
	f, err := os.Open("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []vector
	for s := bufio.NewScanner(f); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		parts := strings.Split(line, " | ")
		if len(parts) != 3 {
			t.Fatalf("%q: want name | bytes | outcome", line)
		}
		v := vector{name: strings.TrimSpace(parts[0]), want: strings.TrimSpace(parts[2])}
		text := strings.TrimSpace(parts[1])
		if h, ok := strings.CutPrefix(text, "x:"); ok {
			v.in, err = expand(h)
		} else {
			var plain string
			plain, err = strconv.Unquote(text)
			v.in = []byte(plain)
		}
		if err != nil {
			t.Fatalf("%s: %v", v.name, err)
		}
		out = append(out, v)
	}
	if len(out) < 60 {
		t.Fatalf("only %d vectors", len(out))
	}
	return out
}

// expand reads hex with SIG for the signature and B*N for a byte N times.
func expand(text string) (out []byte, err error) {
	for w := range strings.FieldsSeq(text) {
		times := 1
		if b, n, ok := strings.Cut(w, "*"); ok {
			if times, err = strconv.Atoi(n); err != nil {
				return nil, err
			}
			w = b
		}
		b := []byte(signature)
		if w != "SIG" {
			if b, err = hex.DecodeString(w); err != nil {
				return nil, err
			}
		}
		for range times {
			out = append(out, b...)
		}
	}
	return out, nil
}

// outcome is what vectors say of a result.
func outcome(h *Header, n int, why Fault) string {
	if why != OK {
		return why.Word()
	}
	s := fmt.Sprintf("v%d %d bytes", h.Version, n)
	switch {
	case h.Local:
		s += " local"
	case h.Source.IsValid():
		s += fmt.Sprintf(" %s %s>%s", h.Transport, h.Source, h.Destination)
	default:
		s += " nobody"
	}
	if len(h.TLVs) > 0 {
		s += fmt.Sprintf(" tlvs=%d", len(h.TLVs))
	}
	if h.Checksum {
		s += " crc"
	}
	return s
}

// TestVectors: each of them as a whole, with something behind it, and byte by
// byte: until the last byte it is a beginning, and a wrong one is refused at one
// place and ever after.
func TestVectors(t *testing.T) {
	for _, v := range vectors(t) {
		h, n, why := Parse(v.in)
		if got := outcome(&h, n, why); got != v.want {
			t.Errorf("%s: %s, want %s", v.name, got, v.want)
			continue
		}
		if why == OK {
			again := append(append([]byte(nil), v.in[:n]...), "PROXY TCP4 192.0.2.9 192.0.2.9 1 1\r\n"...)
			h, n, why := Parse(again)
			if got := outcome(&h, n, why); got != v.want {
				t.Errorf("%s, with another header behind it: %s", v.name, got)
			}
		}
		checkPrefixes(t, v.in, n, why)
	}
}

// checkPrefixes holds all beginnings of an input to its outcome.
func checkPrefixes(t *testing.T, in []byte, n int, why Fault) {
	t.Helper()
	decided := Short
	for i := range in {
		_, m, e := Parse(in[:i])
		switch {
		case why == OK && i < n && e != Short:
			t.Fatalf("%q is a header of %d bytes, but %d of them are %v", in, n, i, e)
		case why == OK && i >= n && (e != OK || m != n):
			t.Fatalf("%q is a header of %d bytes, but with %d: %d, %v", in, n, i, m, e)
		case why != OK && e == OK:
			t.Fatalf("%q is %v, but %d bytes of it are a header", in, why, i)
		case why != OK && decided != Short && e != decided:
			t.Fatalf("%q: %v, and with %d bytes %v", in, decided, i, e)
		}
		decided = e
	}
}
