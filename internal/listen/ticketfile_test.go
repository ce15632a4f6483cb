// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func ticketLine(b byte) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 48)) }

// TestTicketKeysFile: two weirs with one file resume each other's sessions; two
// listeners of one weir do not; a rotation in two steps loses nobody; a broken
// file changes nothing; and the keys are nothing to hand over.
func TestTicketKeysFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tickets")
	write := func(keys ...byte) {
		t.Helper()
		var b strings.Builder
		for _, k := range keys {
			b.WriteString(ticketLine(k) + "\n")
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	one := startSecure(t, Options{Name: "web", TLS: &TLSOptions{ReloadEvery: -1, TicketKeysFile: file}}, []string{"a.test"})
	beside := func(name string) *secure {
		tls := *one.set.Load().opt.TLS
		s := startSecure(t, Options{Name: name, TLS: &tls})
		s.ca = one.ca
		return s
	}
	two, other := beside("web"), beside("admin")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cfg := &tls.Config{ServerName: "a.test", MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		step := func(what string, s *secure, want bool) {
			t.Helper()
			st, err := s.hello(t, cfg)
			if err != nil || st.DidResume != want {
				t.Errorf("%s, %s: resumed %v, %v", tls.VersionName(version), what, st.DidResume, err)
			}
		}
		step("first", one, false)
		step("the other weir", two, true)
		step("another listener", other, false)
		step("back", one, false)
		write(1, 2)
		for _, s := range []*secure{one, two} {
			if err := s.Reload(); err != nil {
				t.Fatal(err)
			}
		}
		step("a key was added", two, true)
		write(2, 1)
		if err := one.Reload(); err != nil { // the other one has not looked yet
			t.Fatal(err)
		}
		step("the new key makes tickets here", one, true)
		step("and is known there", two, true)
		if err := os.WriteFile(file, []byte("half a fi"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := one.Reload(); err == nil || strings.Contains(err.Error(), "half") {
			t.Errorf("a broken file: %v", err)
		}
		step("a broken file", one, true)
		write(1)
		for _, s := range []*secure{one, two} {
			if err := s.Reload(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if one.TicketKeys() != nil {
		t.Error("keys of a file were exported")
	}
	if err := one.SetTicketKeys([]TicketKey{{bytes.Repeat([]byte{9}, 32), 0}}); err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{ServerName: "a.test", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	for i := range 2 {
		if st, err := two.hello(t, cfg); err != nil || st.DidResume != (i == 1) {
			t.Errorf("%d: %v, %v", i, st.DidResume, err)
		}
	}
	if st, err := one.hello(t, cfg); err != nil || !st.DidResume {
		t.Error("keys of a predecessor replaced those of the file")
	}
}
