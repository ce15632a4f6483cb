// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

// secure is a TLS listener with certificates in a directory.
type secure struct {
	*Listener
	ca   *weirtest.Authority
	dir  string
	logs *syncBuffer
	info chan Info
}

func startSecure(t *testing.T, opt Options, certs ...[]string) *secure {
	t.Helper()
	s := &secure{ca: weirtest.NewAuthority(t), dir: t.TempDir(), logs: &syncBuffer{}, info: make(chan Info, 100)}
	if opt.TLS == nil {
		opt.TLS = &TLSOptions{ReloadEvery: -1}
	}
	for _, names := range certs {
		c, k := s.ca.Write(s.dir, names[0], s.ca.Issue(names...))
		opt.TLS.Certificates = append(opt.TLS.Certificates, CertFile{c, k})
	}
	opt.Logger = slog.New(slog.NewTextHandler(s.logs, nil))
	s.Listener = start(t, opt, func(c *netconn.Conn, i Info) { s.info <- i; echoing(c, i) })
	return s
}

// hello makes a connection and returns its state; the connection is closed.
func (s *secure) hello(t *testing.T, cfg *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	cfg.RootCAs = s.ca.Pool()
	c := tls.Client(dial(t, s.Listener), cfg)
	defer c.Close()
	if err := c.Handshake(); err != nil {
		return tls.ConnectionState{}, err
	}
	echo(t, c, "hello") // the server's half is over, too, and tickets have come
	return c.ConnectionState(), nil
}

func (s *secure) names(t *testing.T, server string) string {
	t.Helper()
	st, err := s.hello(t, &tls.Config{ServerName: server, InsecureSkipVerify: true})
	if err != nil {
		t.Fatalf("%s: %v", server, err)
	}
	return st.PeerCertificates[0].DNSNames[0]
}

func TestSNI(t *testing.T) {
	s := startSecure(t, Options{},
		[]string{"default.test"}, []string{"a.example.com", "b.example.com"}, []string{"*.example.com"}, []string{"*.deep.example.com"})
	for server, want := range map[string]string{
		"default.test":         "default.test",
		"unknown.test":         "default.test",
		"":                     "default.test",
		"a.example.com":        "a.example.com",
		"B.Example.COM":        "a.example.com",
		"c.example.com":        "*.example.com",
		"x.deep.example.com":   "*.deep.example.com",
		"x.y.deep.example.com": "default.test",
		"example.com":          "default.test",
	} {
		if got := s.names(t, server); got != want {
			t.Errorf("%q: certificate of %s, want %s", server, got, want)
		}
	}
}

func TestTLSInfo(t *testing.T) {
	s := startSecure(t, Options{Name: "web"}, []string{"a.test"})
	cache := tls.NewLRUClientSessionCache(1)
	for i := range 2 {
		st, err := s.hello(t, &tls.Config{ServerName: "a.test", NextProtos: []string{"h2", "http/1.1"}, ClientSessionCache: cache})
		if err != nil {
			t.Fatal(err)
		}
		if st.NegotiatedProtocol != "http/1.1" || st.Version != tls.VersionTLS13 || st.DidResume != (i == 1) {
			t.Errorf("connection %d: %q, %x, resumed %v", i, st.NegotiatedProtocol, st.Version, st.DidResume)
		}
		in := <-s.info
		if !in.TLS || in.SNI != "a.test" || in.ALPN != "http/1.1" || in.TLSVersion != tls.VersionTLS13 || in.Listener != "web" || !in.Remote.IsValid() {
			t.Errorf("info %+v", in)
		}
	}
	if _, err := s.hello(t, &tls.Config{ServerName: "a.test", MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
	if st, err := s.hello(t, &tls.Config{ServerName: "a.test", MaxVersion: tls.VersionTLS12}); err != nil || st.Version != tls.VersionTLS12 {
		t.Errorf("TLS 1.2: %v", err)
	}
	only13 := startSecure(t, Options{TLS: &TLSOptions{MinVersion: tls.VersionTLS13, ReloadEvery: -1}}, []string{"a.test"})
	if _, err := only13.hello(t, &tls.Config{ServerName: "a.test", MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 was accepted below the minimum")
	}
}

// TestReload: new files are served, a broken or mismatched pair keeps the old
// one, is logged once, and heals; a kept connection goes on.
func TestReload(t *testing.T) {
	s := startSecure(t, Options{}, []string{"old.test"})
	kept := tls.Client(dial(t, s.Listener), &tls.Config{RootCAs: s.ca.Pool(), ServerName: "old.test"})
	defer kept.Close()
	echo(t, kept, "before")
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	crt, key := filepath.Join(s.dir, "old.test.crt"), filepath.Join(s.dir, "old.test.key")
	replace := func(path, from string) {
		t.Helper()
		if err := os.Rename(from, path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(crt, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.Reload(); err == nil {
			t.Error("garbage was loaded")
		}
	}
	if got := s.names(t, "x"); got != "old.test" {
		t.Errorf("after garbage: %s", got)
	}
	if n := strings.Count(s.logs.String(), "old ones stay"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	newCrt, newKey := s.ca.Write(s.dir, "new", s.ca.Issue("new.test"))
	replace(crt, newCrt) // the key does not match yet
	if err := s.Reload(); err == nil {
		t.Error("a mismatched pair was loaded")
	}
	if got := s.names(t, "x"); got != "old.test" {
		t.Errorf("between the two files: %s", got)
	}
	replace(key, newKey)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := s.names(t, "x"); got != "new.test" {
		t.Errorf("after the change: %s", got)
	}
	echo(t, kept, "after")
	if n := strings.Count(s.logs.String(), "certificates reloaded"); n != 1 {
		t.Errorf("success logged %d times", n)
	}
}

// TestReloadByItself: the files are looked at without being asked.
func TestReloadByItself(t *testing.T) {
	s := startSecure(t, Options{TLS: &TLSOptions{ReloadEvery: 5 * time.Millisecond}}, []string{"old.test"})
	c, k := s.ca.Write(s.dir, "new", s.ca.Issue("new.test"))
	_ = os.Rename(c, filepath.Join(s.dir, "old.test.crt"))
	_ = os.Rename(k, filepath.Join(s.dir, "old.test.key"))
	eventually(t, "reload", func() bool { return s.names(t, "x") == "new.test" })
}

// TestHandshakeTimeout: a client that does not finish is cut, and its place is
// free again; meanwhile others are served though turns are few.
func TestHandshakeTimeout(t *testing.T) {
	s := startSecure(t, Options{HandshakeTimeout: 300 * time.Millisecond, MaxHandshakes: 1}, []string{"a.test"})
	begin := time.Now()
	var silent []net.Conn
	for i := range 5 {
		c := dial(t, s.Listener)
		if i%2 == 0 { // the start of a record
			_, _ = c.Write([]byte{22, 3, 1, 2, 0, 1})
		}
		silent = append(silent, c)
	}
	if got := s.names(t, "a.test"); got != "a.test" {
		t.Error(got)
	}
	for _, c := range silent {
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a silent client was not cut")
		}
	}
	if d := time.Since(begin); d < 300*time.Millisecond {
		t.Errorf("cut after %v", d)
	}
	eventually(t, "places", func() bool {
		return s.Connections() == 0 && s.Refused(HandshakeTimeout) == 5 && s.Refused(HandshakeFailed) == 0
	})
}

// TestHandshakeUnbounded: without a bound a silent client stays, and one that
// talks nonsense has failed, not timed out.
func TestHandshakeUnbounded(t *testing.T) {
	s := startSecure(t, Options{HandshakeTimeout: -1}, []string{"a.test"})
	silent := dial(t, s.Listener)
	defer silent.Close()
	rude := dial(t, s.Listener)
	_, _ = rude.Write([]byte("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"))
	res, err := http.ReadResponse(bufio.NewReader(rude), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 400 || !res.Close || !strings.Contains(string(body), "TLS") {
		t.Errorf("HTTP where TLS is spoken: %d %q, %v", res.StatusCode, body, err)
	}
	eventually(t, "one left", func() bool { return s.Connections() == 1 && s.Refused(HandshakeFailed) == 1 })
	if got := s.names(t, "a.test"); got != "a.test" {
		t.Error(got)
	}
	_ = silent.Close()
}

// TestTLSCeiling: at a ceiling a TLS client is closed without a handshake.
func TestTLSCeiling(t *testing.T) {
	s := startSecure(t, Options{MaxConnections: 1}, []string{"a.test"})
	c := tls.Client(dial(t, s.Listener), &tls.Config{RootCAs: s.ca.Pool(), ServerName: "a.test"})
	defer c.Close()
	echo(t, c, "in")
	if got, _ := io.ReadAll(dial(t, s.Listener)); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

// issuedElsewhere stands for who obtains certificates.
type issuedElsewhere map[string]*tls.Certificate

func (i *issuedElsewhere) Certificate(h *tls.ClientHelloInfo, name string) *tls.Certificate {
	if isChallenge(h) {
		name = "challenge." + name
	}
	return (*i)[name]
}

// TestManaged: certificates of others are shown for their names, behind those of
// files that have the exact name; a validator gets its answer and nothing else, and
// is asked for no certificate; who names nobody gets the first there is.
func TestManaged(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	issue := func(name string) *tls.Certificate {
		c := ca.Issue(name)
		return &c
	}
	managed := issuedElsewhere{
		"a.test": issue("a.test"), "both.test": issue("wrong.test"), "www.wild.test": issue("www.wild.test"), "stranger.test": issue("stranger.test"),
		"challenge.a.test": issue("answer.test"),
	}
	names := []string{"a.test", "both.test", "www.wild.test", "missing.test"}
	auth := ClientAuth{Mode: tls.RequireAndVerifyClientCert, CAFile: ca.WritePool(dir)}
	own := []tls.Certificate{ca.Issue("alice")}
	for _, files := range []bool{true, false} {
		opt := Options{TLS: &TLSOptions{ReloadEvery: -1, Managed: &managed, ManagedNames: names, ClientAuth: auth}}
		want := map[string]string{"a.test": "a.test", "A.test": "a.test", "": "a.test", "stranger.test": "a.test", "missing.test": "", "both.test": "wrong.test", "www.wild.test": "www.wild.test"}
		var certs [][]string
		if files {
			certs = [][]string{{"both.test"}, {"*.wild.test"}}
			for name, of := range map[string]string{"": "both.test", "stranger.test": "both.test", "missing.test": "both.test", "both.test": "both.test"} {
				want[name] = of
			}
		}
		s := startSecure(t, opt, certs...)
		for name, of := range want {
			st, err := s.hello(t, &tls.Config{ServerName: name, InsecureSkipVerify: true, Certificates: own})
			if (err == nil) != (of != "") || err == nil && st.PeerCertificates[0].DNSNames[0] != of {
				t.Errorf("files %v, %q: %v, want %q", files, name, err, of)
			}
		}
		before := len(s.info)
		for name, of := range map[string]string{"a.test": "answer.test", "both.test": ""} {
			c := tls.Client(dial(t, s.Listener), &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{challengeALPN}})
			err := c.Handshake()
			if (err == nil) != (of != "") || err == nil && c.ConnectionState().PeerCertificates[0].DNSNames[0] != of {
				t.Errorf("files %v, challenge of %q: %v", files, name, err)
			}
			if n, err := c.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a validator goes on: %d, %v", n, err)
			}
			_ = c.Close()
		}
		eventually(t, "validators are gone", func() bool { return s.Connections() == 0 })
		if len(s.info) != before {
			t.Error("the handler got a validator's connection")
		}
	}
}
