// SPDX-License-Identifier: Apache-2.0

package weirtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates for one test.
type Authority struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes a certificate authority.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb}
	a.cert, a.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "weir test authority"},
		IsCA:    true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	})
	return a
}

// Pool returns a pool that holds the authority.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// Issue makes a certificate for DNS names and IP addresses, for servers and
// clients alike.
func (a *Authority) Issue(names ...string) tls.Certificate {
	a.tb.Helper()
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	c, key := a.sign(t)
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
}

// Write writes a certificate and its key as PEM files NAME.crt and NAME.key.
func (a *Authority) Write(dir, name string, c tls.Certificate) (cert, key string) {
	a.tb.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		a.tb.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	a.write(cert, "CERTIFICATE", c.Certificate[0])
	a.write(key, "PRIVATE KEY", der)
	return cert, key
}

// WritePool writes the authority's own certificate as a PEM file.
func (a *Authority) WritePool(dir string) string {
	path := filepath.Join(dir, "ca.crt")
	a.write(path, "CERTIFICATE", a.cert.Raw)
	return path
}

// Revoke writes the authority's list of revocations, in PEM, with certificates
// that it issued on it. The list is good until a time.
func (a *Authority) Revoke(dir string, until time.Time, certs ...tls.Certificate) string {
	a.tb.Helper()
	l := &x509.RevocationList{Number: big.NewInt(time.Now().UnixNano()), ThisUpdate: until.Add(-24 * time.Hour), NextUpdate: until}
	for _, c := range certs {
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.Leaf.SerialNumber, RevocationTime: l.ThisUpdate})
	}
	der, err := x509.CreateRevocationList(rand.Reader, l, a.cert, a.key)
	if err != nil {
		a.tb.Fatal(err)
	}
	path := filepath.Join(dir, "ca.crl")
	a.write(path, "X509 CRL", der)
	return path
}

func (a *Authority) write(path, kind string, der []byte) {
	a.tb.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.tb.Fatal(err)
	}
}

func (a *Authority) sign(t *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.tb.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.tb.Fatal(err)
	}
	t.SerialNumber = serial
	t.NotBefore, t.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = t, key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, by)
	if err != nil {
		a.tb.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		a.tb.Fatal(err)
	}
	return c, key
}
