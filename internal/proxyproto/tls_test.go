// SPDX-License-Identifier: Apache-2.0

package proxyproto

import (
	"crypto/tls"
	"net/netip"
	"strings"
	"testing"
)

// TestSecured holds the TLV against one that was written by hand after section 2.2.6,
// and reads what Append writes.
func TestSecured(t *testing.T) {
	s := Secured{Version: tls.VersionTLS13, Suite: tls.TLS_AES_128_GCM_SHA256, Certificate: true, CN: "alice"}
	want := "\x20\x00\x31\x07\x00\x00\x00\x00" + "\x21\x00\x07TLSv1.3" + "\x22\x00\x05alice" + "\x23\x00\x16TLS_AES_128_GCM_SHA256"
	want = want[:2] + string(rune(len(want)-3)) + want[3:]
	if got := string(s.Append(nil)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := string((&Secured{Resumed: true}).Append([]byte("x"))); got != "x\x20\x00\x05\x01\x00\x00\x00\x01" {
		t.Errorf("nothing known: %q", got)
	}
	if got := (&Secured{Certificate: true, Resumed: true}).Append(nil); got[3] != 0x05 {
		t.Errorf("a certificate of the session: %x", got)
	}
	if got := AppendTLV(nil, TypeAuthority, strings.Repeat("x", mostValue+1)); got != nil {
		t.Errorf("%d bytes of a value that is too long", len(got))
	}
	h := Header{Source: netip.MustParseAddrPort("192.0.2.7:1"), Destination: netip.MustParseAddrPort("192.0.2.1:443"), Transport: Stream, TLVs: s.Append(AppendTLV(nil, TypeAuthority, "a.test"))}
	got, _, why := Parse(h.Append(nil, 2))
	name, _ := got.TLV(TypeAuthority)
	ssl, ok := got.TLV(TypeSSL)
	if why != OK || string(name) != "a.test" || !ok || string(ssl) != want[3:] {
		t.Errorf("read back: %v, %q, %q", why, name, ssl)
	}
	said := got.TLVs
	got.Add(AppendTLV(AppendTLV(AppendTLV(nil, TypeAuthority, "b.test"), TypeALPN, "h2"), TypeALPN, "imap"))
	name, _ = got.TLV(TypeAuthority)
	if alpn, _ := got.TLV(TypeALPN); string(name) != "a.test" || string(alpn) != "h2" || &said[0] == &got.TLVs[0] {
		t.Errorf("added: %q, %q", name, got.TLVs)
	}
	for _, suite := range tls.CipherSuites() {
		if suite.ID < 0xc000 && suite.ID > 0x1303 || strings.HasPrefix(suite.Name, "TLS_RSA") {
			continue
		}
		if cipherNames[suite.ID] == "" {
			t.Errorf("%s has no name", suite.Name)
		}
	}
}
