// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/route"
)

// certHandler has one route, to a pool that is never asked.
func certHandler(t *testing.T, fields CertFields, trusted ...string) *Handler {
	t.Helper()
	table, err := route.New([]route.Rule{{}})
	if err != nil {
		t.Fatal(err)
	}
	h := &Handler{Listener: "web", Routes: table, Targets: []*Route{{Name: "r", Pool: struct{ PoolHandle }{}}}, CertFields: fields}
	if len(trusted) > 0 {
		h.Trust = NewTrust(prefixes(trusted...), nil)
	}
	return h
}

// forwards returns the fields about certificates that a backend would get.
func forwards(t *testing.T, h *Handler, ci *ClientInfo, fields string) (out []string) {
	t.Helper()
	var r message.Request
	text := "GET / HTTP/1.1\r\nHost: h\r\n" + fields + "\r\n"
	if n, err := http1.ParseRequest([]byte(text), &http1.Limits{}, &r); err != nil || n != len(text) {
		t.Fatalf("%d of %d bytes, %v", n, len(text), err)
	}
	for line := range strings.SplitSeq(string(h.Explain(&r, ci).Head), "\r\n") {
		if strings.Contains(strings.ToLower(line), "cert") {
			out = append(out, line)
		}
	}
	return out
}

func someone() *Secure {
	leaf := &x509.Certificate{
		Raw: []byte("leaf"), Subject: pkix.Name{CommonName: "alice", Organization: []string{`Ex "ample", Inc`}}, DNSNames: []string{"alice.example.com"},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/alice"}},
	}
	return NewSecure(observe.Session{}, []*x509.Certificate{leaf, {Raw: []byte("issuer")}, {Raw: []byte("root")}})
}

const (
	// The sum is what sha256sum says of "leaf".
	aliceXFCC = `X-Forwarded-Client-Cert: Hash=9f91161f43433e49a6de6db680d79f60159f2e4ac9172621a12846428158440b;` +
		`Subject="CN=alice,O=Ex \"ample\"\, Inc";URI=spiffe://example.com/alice;DNS=alice.example.com`
	aliceCert  = "Client-Cert: :bGVhZg==:"
	aliceChain = "Client-Cert-Chain: :aXNzdWVy:, :cm9vdA==:"
)

// TestCertFields: a backend learns who the client is by the fields that are wanted,
// and by nobody else's.
func TestCertFields(t *testing.T) {
	const forged = "X-Forwarded-Client-Cert: Hash=0;Subject=\"CN=root\"\r\nclient-cert: :AA==:\r\nClient-Cert-Chain: :AA==:\r\n" +
		"X_Forwarded_Client_Cert: x\r\nClient_Cert: y\r\nConnection: X-Forwarded-Client-Cert, Client-Cert\r\n"
	peer := netip.MustParseAddrPort("192.0.2.1:1")
	alice := someone()
	for name, c := range map[string]struct {
		fields CertFields
		who    *Secure
		sent   string
		want   []string
	}{
		"nobody, forged":          {CertXFCC | CertClient | CertClientAll, nil, forged, nil},
		"no certificate, forged":  {CertXFCC | CertClient | CertClientAll, NewSecure(observe.Session{}, nil), forged, nil},
		"a certificate":           {CertXFCC, alice, "", []string{aliceXFCC}},
		"a certificate, forged":   {CertXFCC, alice, forged, []string{aliceXFCC}},
		"RFC 9440":                {CertClient, alice, forged, []string{aliceCert}},
		"RFC 9440 with the chain": {CertClient | CertClientAll, alice, forged, []string{aliceCert, aliceChain}},
		"all":                     {CertXFCC | CertClient | CertClientAll, alice, "", []string{aliceXFCC, aliceCert, aliceChain}},
		"no field, forged":        {0, alice, forged, nil},
	} {
		ci := &ClientInfo{Peer: peer, TLS: true, Secure: c.who}
		if got := forwards(t, certHandler(t, c.fields), ci, c.sent); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, c.want)
		}
	}
	// The fields of a connection follow the listener when that changes.
	ci := &ClientInfo{Peer: peer, TLS: true, Secure: alice}
	for _, c := range []struct {
		fields CertFields
		want   []string
	}{{CertXFCC, []string{aliceXFCC}}, {CertClient, []string{aliceCert}}, {0, nil}} {
		if got := forwards(t, certHandler(t, c.fields), ci, ""); !slices.Equal(got, c.want) {
			t.Errorf("after a change to %d: %q", c.fields, got)
		}
	}
}

// TestCertFieldsTrusted: what a trusted proxy says of its client passes, and its
// own certificate is not taken for the client's.
func TestCertFieldsTrusted(t *testing.T) {
	h := certHandler(t, CertXFCC|CertClient, "192.0.2.0/24")
	ci := &ClientInfo{Peer: netip.MustParseAddrPort("192.0.2.1:1"), TLS: true, Secure: someone()}
	for sent, want := range map[string][]string{
		"":                                     nil,
		"X-Forwarded-For: 198.51.100.7\r\n":    nil,
		"X-Forwarded-Client-Cert: Hash=77\r\n": {"X-Forwarded-Client-Cert: Hash=77"},
		"X-Forwarded-For: 198.51.100.7\r\nClient-Cert: :AA==:\r\nClient_Cert: x\r\n": {"Client-Cert: :AA==:"},
	} {
		if got := forwards(t, h, ci, sent); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", sent, got, want)
		}
	}
}

// FuzzCertFields: whatever a certificate says, each field is one line, and the
// element has the keys that it should, each once or with a name.
func FuzzCertFields(f *testing.F) {
	f.Add("alice", "a.example.com", "/x", []byte{1})
	f.Add("a\r\nX-Evil: 1", "b\r\nc", "/;DNS=evil", []byte(nil))
	f.Add(`"; DNS=evil`, `a",b`, "/a,b", []byte("x"))
	f.Add(`back\`, "é", "é", []byte("x"))
	f.Fuzz(func(t *testing.T, name, dns, path string, raw []byte) {
		c := &x509.Certificate{Raw: raw, Subject: pkix.Name{CommonName: name}, DNSNames: []string{dns}, URIs: []*url.URL{{Scheme: "spiffe", Host: "h", Path: path}}}
		s := NewSecure(observe.Session{}, []*x509.Certificate{c, c})
		var fields message.Fields
		certLines(&fields, s, CertXFCC|CertClient|CertClientAll)
		if fields.Len() != 3 {
			t.Fatalf("%d fields", fields.Len())
		}
		for i := range fields.Len() {
			for _, b := range fields.Value(i) {
				if b < ' ' || b > '~' {
					t.Fatalf("byte %#x in %q", b, fields.Value(i))
				}
			}
		}
		if got, err := base64.StdEncoding.DecodeString(strings.Trim(string(fields.Value(1)), ":")); err != nil || string(got) != string(raw) {
			t.Fatalf("%q: %v", fields.Value(1), err)
		}
		if keys := elementKeys(t, string(fields.Value(0))); keys[0] != "Hash" || keys[1] != "Subject" || len(keys) > 4 ||
			slices.ContainsFunc(keys[2:], func(k string) bool { return k != "URI" && k != "DNS" }) {
			t.Fatalf("%q: keys %q", fields.Value(0), keys)
		}
	})
}

// elementKeys reads one element as Envoy does: a backslash within quotes hides the
// byte behind it.
func elementKeys(t *testing.T, s string) (keys []string) {
	t.Helper()
	for s != "" {
		key, rest, ok := strings.Cut(s, "=")
		if !ok {
			t.Fatalf("no value in %q", s)
		}
		keys = append(keys, key)
		end, quoted := 0, false
		for ; end < len(rest); end++ {
			switch c := rest[end]; {
			case c == '\\' && quoted:
				end++
			case c == '"':
				quoted = !quoted
			case c == ',' && !quoted:
				t.Fatalf("a second element in %q", s)
			}
			if end < len(rest) && rest[end] == ';' && !quoted {
				break
			}
		}
		if quoted {
			t.Fatalf("an open quote in %q", s)
		}
		s = strings.TrimPrefix(rest[min(end, len(rest)):], ";")
	}
	return keys
}
