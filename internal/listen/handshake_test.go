// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestHandshakeEnds: each way in which a handshake ends is counted as what it is.
// The texts of crypto/tls are no promise of that package: this says when they
// change.
func TestHandshakeEnds(t *testing.T) {
	s := startSecure(t, Options{HandshakeTimeout: 200 * time.Millisecond, TLS: &TLSOptions{ReloadEvery: -1, MinVersion: tls.VersionTLS12}}, []string{"a.test"})
	says := func(text string) func() {
		return func() {
			c := dial(t, s.Listener)
			_, _ = io.WriteString(c, text)
			_, _ = io.ReadAll(c)
		}
	}
	greets := func(cfg *tls.Config) func() {
		return func() {
			cfg.ServerName, cfg.RootCAs = "a.test", s.ca.Pool()
			_ = tls.Client(dial(t, s.Listener), cfg).Handshake()
		}
	}
	for _, c := range []struct {
		end Handshake
		do  func()
	}{
		{HandshakeSlow, says("")},
		{HandshakeClosed, func() { _ = dial(t, s.Listener).Close() }},
		{HandshakePlainHTTP, says("GET / HTTP/1.1\r\n\r\n")},
		{HandshakePlainHTTP, says("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
		{HandshakeNotTLS, says("SSH-2.0-OpenSSH_9\r\n")},
		{HandshakeVersion, greets(&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})},
		{HandshakeCipher, greets(&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}})},
		{HandshakeALPN, greets(&tls.Config{NextProtos: []string{"imap"}})},
		{HandshakeRefused, greets(&tls.Config{RootCAs: x509.NewCertPool(), VerifyConnection: func(tls.ConnectionState) error { return io.EOF }})},
	} {
		before := s.Handshakes()
		c.do()
		eventually(t, c.end.String(), func() bool { return s.Handshakes()[c.end] == before[c.end]+1 })
	}
	if got := s.Handshakes()[HandshakeOther]; got != 0 {
		t.Errorf("%d without a name", got)
	}
	eventually(t, "none under way", func() bool { return s.Handshaking() == 0 && s.Connections() == 0 })
	names := handshakeNames[:]
	if slices.Contains(names, "") || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
		t.Errorf("%q", names)
	}
}

// TestTwoKinds: of an ECDSA and an RSA certificate for one name a client gets the
// one that it can verify, the first of both if it can verify both, and the default
// does the same.
func TestTwoKinds(t *testing.T) {
	dir := t.TempDir()
	crt, key := writeRSA(t, dir, "a.test")
	s := startSecure(t, Options{TLS: &TLSOptions{ReloadEvery: -1}}, []string{"a.test"})
	opt := s.set.Load().opt
	changed := *opt.TLS
	changed.Certificates = append(changed.Certificates[:1:1], CertFile{crt, key})
	opt.TLS = &changed
	commit, _, err := s.Change(opt)
	if err != nil {
		t.Fatal(err)
	}
	commit()
	for _, c := range []struct {
		suites []uint16
		want   x509.PublicKeyAlgorithm
	}{
		{nil, x509.ECDSA},
		{[]uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}, x509.ECDSA},
		{[]uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}, x509.RSA},
	} {
		for _, name := range []string{"a.test", "A.TEST", "unknown.test", ""} {
			st, err := s.hello(t, &tls.Config{ServerName: name, InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, CipherSuites: c.suites})
			if err != nil {
				t.Fatalf("%q, %v: %v", name, c.suites, err)
			}
			if got := st.PeerCertificates[0].PublicKeyAlgorithm; got != c.want {
				t.Errorf("%q, %v: %v", name, c.suites, got)
			}
		}
	}
}

// writeRSA makes a certificate that signs itself with an RSA key.
func writeRSA(t *testing.T, dir, name string) (crt, key string) {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	crt, key = filepath.Join(dir, "rsa.crt"), filepath.Join(dir, "rsa.key")
	for file, block := range map[string]*pem.Block{
		crt: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return crt, key
}
