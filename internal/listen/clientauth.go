// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/inputfile"
)

// ClientAuth says what is asked of clients. The zero value asks for nothing.
type ClientAuth struct {
	// Mode is tls.NoClientCert, tls.VerifyClientCertIfGiven or
	// tls.RequireAndVerifyClientCert.
	Mode   tls.ClientAuthType
	CAFile string // PEM: who signs certificates of clients; needed unless nobody is asked
	// CRLFile holds lists of what was revoked (RFC 5280, section 5), PEM or one in
	// DER, each signed by a certificate of CAFile. Certificates of an issuer whose
	// list is out of date are refused; those of one that has none are not looked up.
	// Empty: nothing is revoked.
	CRLFile string
	// Names says that only clients who ask for one of these server names are asked,
	// exact or `*.example.com` for one or more labels before example.com. Empty: all.
	Names []string
}

// concerns reports whether a client that asks for the name is asked.
func (a *ClientAuth) concerns(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return len(a.Names) == 0 || slices.ContainsFunc(a.Names, func(p string) bool {
		rest, wild := strings.CutPrefix(strings.ToLower(p), "*")
		return !wild && p != "" && name == rest || wild && len(name) > len(rest) && strings.HasSuffix(name, rest)
	})
}

func (a *ClientAuth) asks() bool { return a.Mode != tls.NoClientCert }

// authority is whom a listener believes about its clients. It is immutable.
type authority struct {
	pool  *x509.CertPool
	lists map[string]*revocations // by the issuer's raw name
}

// revocations is what one issuer has taken back.
type revocations struct {
	serials map[string]bool // big-endian bytes
	until   time.Time       // when the next list is due; zero: it does not say
}

// Errors of certificates that verify and are refused nevertheless.
var (
	errRevoked  = errors.New("the client's certificate was revoked")
	errStaleCRL = errors.New("the list of revocations of the client's issuer is out of date")
)

// load reads the files; nil where nobody is asked.
func (a *ClientAuth) load() (*authority, error) {
	if !a.asks() {
		return nil, nil
	}
	text, err := inputfile.Read(a.CAFile, inputfile.Most)
	if err != nil {
		return nil, fmt.Errorf("tls: client_auth.ca: %w", err)
	}
	issuers, err := parseAuthorities(text)
	if err != nil {
		return nil, fmt.Errorf("tls: client_auth.ca: %s: %w", a.CAFile, err)
	}
	out := &authority{pool: x509.NewCertPool()}
	for _, c := range issuers {
		out.pool.AddCert(c)
	}
	if a.CRLFile == "" {
		return out, nil
	}
	if text, err = inputfile.Read(a.CRLFile, inputfile.Most); err != nil {
		return nil, fmt.Errorf("tls: client_auth.crl: %w", err)
	}
	if out.lists, err = parseRevocations(text, issuers); err != nil {
		return nil, fmt.Errorf("tls: client_auth.crl: %s: %w", a.CRLFile, err)
	}
	return out, nil
}

// parseAuthorities reads certificates in PEM; at least one.
func parseAuthorities(text []byte) (out []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(out)+1, err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("it holds no certificate")
	}
	return out, nil
}

// parseRevocations reads lists and checks who signed them. Of two lists of one
// issuer the one with the later end counts.
func parseRevocations(text []byte, issuers []*x509.Certificate) (map[string]*revocations, error) {
	var ders [][]byte
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type == "X509 CRL" {
			ders = append(ders, block.Bytes)
		}
	}
	if len(ders) == 0 {
		ders = [][]byte{text}
	}
	out := map[string]*revocations{}
	for i, der := range ders {
		l, err := x509.ParseRevocationList(der)
		if err != nil {
			return nil, fmt.Errorf("list %d: %w", i+1, err)
		}
		if isDelta(l) {
			return nil, fmt.Errorf("list %d is a delta list: a whole one is needed", i+1)
		}
		if !signedBy(l, issuers) {
			return nil, fmt.Errorf("list %d: nobody of client_auth.ca has signed it (it is from %s)", i+1, l.Issuer)
		}
		r := &revocations{until: l.NextUpdate, serials: make(map[string]bool, len(l.RevokedCertificateEntries))}
		for j := range l.RevokedCertificateEntries {
			r.serials[string(l.RevokedCertificateEntries[j].SerialNumber.Bytes())] = true
		}
		if have := out[string(l.RawIssuer)]; have == nil || have.until.Before(r.until) {
			out[string(l.RawIssuer)] = r
		}
	}
	return out, nil
}

// deltaIndicator marks a list that only adds to another one (RFC 5280, section
// 5.2.4).
var deltaIndicator = asn1.ObjectIdentifier{2, 5, 29, 27}

func isDelta(l *x509.RevocationList) bool {
	return slices.ContainsFunc(l.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(deltaIndicator) })
}

func signedBy(l *x509.RevocationList, issuers []*x509.Certificate) bool {
	for _, c := range issuers {
		if string(c.RawSubject) == string(l.RawIssuer) && l.CheckSignatureFrom(c) == nil {
			return true
		}
	}
	return false
}

// demand makes a configuration ask clients for certificates.
func (a *authority) demand(c *tls.Config, mode tls.ClientAuthType) {
	c.ClientAuth, c.ClientCAs = mode, a.pool
	if len(a.lists) > 0 {
		// It is called for resumed sessions, too, whose certificates may have been
		// revoked since.
		c.VerifyConnection = func(s tls.ConnectionState) error { return a.revoked(s.VerifiedChains, time.Now()) }
	}
}

// revoked refuses certificates that their issuers took back. One chain without
// any is enough.
func (a *authority) revoked(chains [][]*x509.Certificate, now time.Time) (err error) {
	for _, chain := range chains {
		if err = a.revokedIn(chain, now); err == nil {
			return nil
		}
	}
	return err // nil without a chain: the client showed none, and did not have to
}

func (a *authority) revokedIn(chain []*x509.Certificate, now time.Time) error {
	for _, c := range chain[:max(len(chain)-1, 0)] { // the last one is believed as it is
		l := a.lists[string(c.RawIssuer)]
		switch {
		case l == nil:
		case l.serials[string(c.SerialNumber.Bytes())]:
			return errRevoked
		case !l.until.IsZero() && now.After(l.until):
			return errStaleCRL
		}
	}
	return nil
}

// Check reads the files and says what is wrong with them.
func (a ClientAuth) Check() error {
	_, err := a.load()
	return err
}
