// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/proxyproto"
)

// Secure is what is known of a client's TLS connection. It is immutable, and
// shared by the streams of a connection.
type Secure struct {
	observe.Session
	// Chain is what the client showed and the listener has verified, its own
	// certificate first; empty: none.
	Chain []*x509.Certificate
	// ALPN is the protocol that was agreed on; empty: none.
	ALPN string
}

// TLVs are what a PROXY header of version 2 tells a backend of the connection: what it
// would know if TLS had ended there.
func (s *Secure) TLVs() []byte {
	if s == nil {
		return nil
	}
	out := proxyproto.AppendTLV(nil, proxyproto.TypeAuthority, s.Name)
	if s.Name == "" {
		out = nil
	}
	said := proxyproto.Secured{Version: s.Version, Suite: s.Suite, Resumed: s.Resumed, Certificate: len(s.Chain) > 0}
	if said.Certificate {
		said.CN = s.Chain[0].Subject.CommonName
	}
	out = said.Append(out)
	if s.ALPN != "" {
		out = proxyproto.AppendTLV(out, proxyproto.TypeALPN, s.ALPN)
	}
	return out
}

// NewSecure returns what a session says; the client's part of it is filled in
// from the chain, which may be empty.
func NewSecure(s observe.Session, chain []*x509.Certificate) *Secure {
	out := &Secure{Session: s, Chain: chain}
	if len(chain) > 0 {
		sum := sha256.Sum256(chain[0].Raw)
		out.ClientCert, out.ClientCertHash = Subject(chain[0]), hex.EncodeToString(sum[:])
	}
	return out
}

// CertFields says by which fields a backend learns whose certificate was
// verified. Whatever it says, a client's own fields of these names never pass.
type CertFields uint8

// The fields; they add up.
const (
	CertXFCC      CertFields = 1 << iota // X-Forwarded-Client-Cert, as Envoy writes it
	CertClient                           // Client-Cert (RFC 9440): the certificate
	CertClientAll                        // Client-Cert-Chain: those that issued it, as the client sent them
)

// Subject returns a certificate's subject as RFC 4514 writes it, in printable
// ASCII: every other byte is a backslash with two hexadecimal digits.
func Subject(c *x509.Certificate) string {
	s := c.Subject.String()
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return s
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+16)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' {
			b = append(b, '\\', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// certLines adds the fields that a listener wants backends to have.
func certLines(f *message.Fields, s *Secure, which CertFields) {
	if s == nil || len(s.Chain) == 0 {
		return
	}
	if which&CertXFCC != 0 {
		f.AddFunc(message.ClientCert, "X-Forwarded-Client-Cert", s.appendXFCC)
	}
	if which&CertClient != 0 {
		f.AddFunc(message.ClientCert, "Client-Cert", func(b []byte) []byte { return appendBytes(b, s.Chain[0].Raw) })
	}
	if which&CertClientAll != 0 && len(s.Chain) > 1 {
		f.AddFunc(message.ClientCert, "Client-Cert-Chain", func(b []byte) []byte {
			for i, c := range s.Chain[1:] {
				if i > 0 {
					b = append(b, ", "...)
				}
				b = appendBytes(b, c.Raw)
			}
			return b
		})
	}
}

// appendBytes appends a byte sequence as RFC 9651 (section 3.3.5) writes it.
func appendBytes(b, der []byte) []byte {
	b = append(b, ':')
	b = base64.StdEncoding.AppendEncode(b, der)
	return append(b, ':')
}

// maxCertNames bounds the names in a field, in bytes: a certificate may have
// thousands, and a backend takes a few KiB of fields.
const maxCertNames = 4 << 10

// appendXFCC appends the element that Envoy would write:
//
//	Hash=6f…;Subject="CN=alice,O=Example";URI=spiffe://example.com/alice;DNS=alice.example.com
//
// A name that could be read as something else than a value is left out: quotes,
// and whatever ends a value, an element or a line.
func (s *Secure) appendXFCC(b []byte) []byte {
	c := s.Chain[0]
	b = append(b, "Hash="...)
	b = append(b, s.ClientCertHash...)
	b = append(b, `;Subject="`...)
	b = append(b, s.ClientCert...)
	b = append(b, '"')
	names := 0
	add := func(key, v string) {
		if names+len(v) > maxCertNames || v == "" || strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`",;=\`, r) }) {
			return
		}
		names += len(v)
		b = append(b, ';')
		b = append(b, key...)
		b = append(b, '=')
		b = append(b, v...)
	}
	for _, u := range c.URIs {
		add("URI", u.String())
	}
	for _, n := range c.DNSNames {
		add("DNS", n)
	}
	return b
}
