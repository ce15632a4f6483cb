// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// startAsking is a listener that asks its clients, and who signs them.
func startAsking(t *testing.T, mode tls.ClientAuthType, crl func(ca *weirtest.Authority, dir string) string) (*secure, *weirtest.Authority) {
	t.Helper()
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	auth := ClientAuth{Mode: mode, CAFile: ca.WritePool(dir)}
	if crl != nil {
		auth.CRLFile = crl(ca, dir)
	}
	return startSecure(t, Options{TLS: &TLSOptions{ReloadEvery: -1, ClientAuth: auth}}, []string{"a.test"}), ca
}

func showing(certs ...tls.Certificate) *tls.Config {
	return &tls.Config{ServerName: "a.test", Certificates: certs, MaxVersion: tls.VersionTLS13}
}

func (s *secure) shaken(t *testing.T, h Handshake, n int64) {
	t.Helper()
	eventually(t, h.String(), func() bool { return s.Handshakes()[h] == n })
}

// TestClientAuth: who shows what, in both versions of TLS, and what the handler
// learns of it.
func TestClientAuth(t *testing.T) {
	stranger := weirtest.NewAuthority(t).Issue("mallory")
	for _, c := range []struct {
		name    string
		mode    tls.ClientAuthType
		show    string // own, strange or nothing
		served  bool
		subject string
		end     Handshake
	}{
		{"not asked", tls.NoClientCert, "own", true, "", HandshakeFull},
		{"optional, none", tls.VerifyClientCertIfGiven, "", true, "", HandshakeFull},
		{"optional, own", tls.VerifyClientCertIfGiven, "own", true, "alice", HandshakeFull},
		{"optional, strange", tls.VerifyClientCertIfGiven, "strange", false, "", HandshakeBadClientCert},
		{"required, none", tls.RequireAndVerifyClientCert, "", false, "", HandshakeNoClientCert},
		{"required, own", tls.RequireAndVerifyClientCert, "own", true, "alice", HandshakeFull},
		{"required, strange", tls.RequireAndVerifyClientCert, "strange", false, "", HandshakeBadClientCert},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			s, ca := startAsking(t, c.mode, nil)
			cfg := showing()
			cfg.MaxVersion = version
			switch alice := ca.Issue("alice"); c.show {
			case "own":
				cfg.Certificates = append(cfg.Certificates, alice)
			case "strange":
				// Whatever the server says it would take.
				cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil }
			}
			if got := s.tries(cfg); got != c.served {
				t.Errorf("%s, %s: served %v", c.name, tls.VersionName(version), got)
				continue
			}
			s.shaken(t, c.end, 1)
			if !c.served {
				continue
			}
			subject := ""
			if in := <-s.info; len(in.ClientCerts) > 0 {
				subject = in.ClientCerts[0].Subject.CommonName
			}
			if subject != c.subject {
				t.Errorf("%s: the handler sees %q", c.name, subject)
			}
		}
	}
}

// tries reports whether a client with the configuration is served. In TLS 1.3 it
// learns that it is not when it reads.
func (s *secure) tries(cfg *tls.Config) bool {
	cfg.RootCAs = s.ca.Pool()
	c, err := tls.Dial("tcp", s.Addrs()[0].String(), cfg)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("x")); err != nil {
		return false
	}
	_, err = c.Read(make([]byte, 1))
	return err == nil
}

// TestClientAuthResumes: a session goes on while the client is believed, and not
// after its authority was replaced; a reload of one file leaves the others alone.
func TestClientAuthResumes(t *testing.T) {
	s, ca := startAsking(t, tls.RequireAndVerifyClientCert, nil)
	cfg := showing(ca.Issue("alice"))
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for i, end := range []Handshake{HandshakeFull, HandshakeResumed} {
		if !s.tries(cfg) {
			t.Fatalf("connection %d", i)
		}
		s.shaken(t, end, 1)
	}
	file := s.set.Load().certs.opt.ClientAuth.CAFile
	if err := os.WriteFile(file, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(); err == nil || !strings.Contains(err.Error(), "client_auth.ca") {
		t.Errorf("garbage: %v", err)
	}
	if !s.tries(cfg) {
		t.Error("the old authority is gone with a broken file")
	}
	crt, key := s.ca.Write(s.dir, "a.test", s.ca.Issue("renewed.test")) // while the other file is broken
	_ = s.Reload()
	if got := s.Certificates()[0].Name; got != "renewed.test" {
		t.Errorf("a broken list of authorities kept a new certificate out: %s (%s, %s)", got, crt, key)
	}
	weirtest.NewAuthority(t).WritePool(filepath.Dir(file))
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	cfg.ServerName = "renewed.test"
	if s.tries(cfg) {
		t.Error("a session outlived the authority of its client")
	}
}

// TestRevocations: who was taken back is refused, at the next handshake after the
// list came, resumed or not; a list that is out of date refuses all of its issuer.
func TestRevocations(t *testing.T) {
	var alice, bob tls.Certificate
	list := func(until time.Duration, revoked ...*tls.Certificate) func(*weirtest.Authority, string) string {
		return func(ca *weirtest.Authority, dir string) string {
			if alice.Leaf == nil {
				alice, bob = ca.Issue("alice"), ca.Issue("bob")
			}
			var all []tls.Certificate
			for _, c := range revoked {
				all = append(all, *c)
			}
			return ca.Revoke(dir, time.Now().Add(until), all...)
		}
	}
	s, ca := startAsking(t, tls.RequireAndVerifyClientCert, list(time.Hour))
	dir := filepath.Dir(s.set.Load().certs.opt.ClientAuth.CAFile)
	a, b := showing(alice), showing(bob)
	a.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for range 2 { // the second one resumes
		if !s.tries(a) {
			t.Fatal("alice, who was not revoked, is refused")
		}
	}
	if !s.tries(b) {
		t.Fatal("bob, who was not revoked, is refused")
	}
	s.shaken(t, HandshakeResumed, 1)
	list(time.Hour, &alice)(ca, dir)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if s.tries(a) || !s.tries(b) {
		t.Error("the list is not followed")
	}
	s.shaken(t, HandshakeRevoked, 1)
	list(-time.Hour)(ca, dir)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if s.tries(b) {
		t.Error("a list that is out of date is believed")
	}
	s.shaken(t, HandshakeRevoked, 2)
	weirtest.NewAuthority(t).Revoke(dir, time.Now().Add(time.Hour))
	if err := s.Reload(); err == nil || !strings.Contains(err.Error(), "nobody of client_auth.ca") {
		t.Errorf("a stranger's list: %v", err)
	}
}

// FuzzRevocations: no text of a list makes the parser fail otherwise than by an
// error, and none that nobody signed is taken.
func FuzzRevocations(f *testing.F) {
	f.Add([]byte("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"))
	f.Add([]byte{0x30, 0x00})
	f.Fuzz(func(t *testing.T, text []byte) {
		if lists, err := parseRevocations(text, nil); err == nil {
			t.Fatalf("taken: %v", lists)
		}
		_, _ = parseAuthorities(text)
	})
}

// TestClientAuthByName: only clients that ask for one of the names are asked, also
// when a session of another name is resumed.
func TestClientAuthByName(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	auth := ClientAuth{Mode: tls.RequireAndVerifyClientCert, CAFile: ca.WritePool(dir), Names: []string{"Admin.test", "*.secret.test"}}
	s := startSecure(t, Options{TLS: &TLSOptions{ReloadEvery: -1, ClientAuth: auth}}, []string{"a.test", "admin.test", "*.secret.test"})
	sessions := tls.NewLRUClientSessionCache(8)
	for _, c := range []struct {
		name  string
		certs []tls.Certificate
		want  bool
	}{
		{"a.test", nil, true},
		{"a.test", nil, true},
		{"admin.test", nil, false},
		{"ADMIN.test", nil, false},
		{"x.secret.test", nil, false},
		{"admin.test", []tls.Certificate{ca.Issue("alice")}, true},
		{"a.test", []tls.Certificate{ca.Issue("alice")}, true},
	} {
		// One cache with one key for all names: what a client would do that tries.
		cfg := showing(c.certs...)
		cfg.ServerName, cfg.ClientSessionCache = c.name, oneSession{sessions}
		if got := s.tries(cfg); got != c.want {
			t.Errorf("%s with %d certificates: served %v", c.name, len(c.certs), got)
		}
	}
}

// oneSession is a cache that has one session for all servers.
type oneSession struct{ tls.ClientSessionCache }

func (o oneSession) Get(string) (*tls.ClientSessionState, bool) { return o.ClientSessionCache.Get("") }
func (o oneSession) Put(_ string, s *tls.ClientSessionState)    { o.ClientSessionCache.Put("", s) }
