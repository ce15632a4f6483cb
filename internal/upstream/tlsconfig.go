// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/weirlb/weir/internal/inputfile"
)

// TLSOptions describe TLS to the backends of a pool. The zero value verifies
// against the system's authorities and the backend's own name.
type TLSOptions struct {
	CAFile             string   // PEM; empty: the system's authorities
	ServerName         string   // sent and verified; empty: the host of each backend's address
	CertFile, KeyFile  string   // client certificate, PEM; both or neither
	InsecureSkipVerify bool     // takes any certificate
	MinVersion         uint16   // tls.VersionTLS12 when 0
	ALPN               []string // offered to the backend, the preferred one first; nil: none is
	// Logger hears of a client certificate that was replaced while connections are
	// made, or does not load any more. nil: nobody.
	Logger *slog.Logger
}

// Config reads the files and returns what Options.TLS wants. The client certificate
// follows its files from then on: they are looked at when a backend asks for it, at
// most every 5 s, and while they do not load the one before is shown.
func (o TLSOptions) Config() (*tls.Config, error) {
	c := &tls.Config{
		ServerName: o.ServerName, MinVersion: o.MinVersion, NextProtos: o.ALPN,
		InsecureSkipVerify: o.InsecureSkipVerify, //nolint:gosec // said by the operator
	}
	if c.MinVersion == 0 {
		c.MinVersion = tls.VersionTLS12
	}
	if o.CAFile != "" {
		pem, err := inputfile.Read(o.CAFile, inputfile.Most)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca: %s holds no certificate", o.CAFile)
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, fmt.Errorf("tls: client certificate: cert and key go together, got %q and %q", o.CertFile, o.KeyFile)
	}
	if o.CertFile != "" {
		own := &clientCert{cert: o.CertFile, key: o.KeyFile, log: o.Logger}
		if err := own.load(time.Now()); err != nil {
			return nil, fmt.Errorf("tls: client certificate %s with key %s: %w", o.CertFile, o.KeyFile, err)
		}
		c.Certificates = []tls.Certificate{*own.now} // for who compares; what is shown is decided below
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.get(time.Now()), nil }
	}
	return c, nil
}

// clientCertEvery is how often the files of a client certificate are looked at.
const clientCertEvery = 5 * time.Second

// clientCert is a certificate that follows its files. It has no goroutine: it is
// needed when a connection is made, and looks then.
type clientCert struct {
	// Constant.
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex // guards what follows
	now    *tls.Certificate
	seen   [2]fileState
	looked time.Time
	failed string // what the last attempt said
}

// fileState tells versions of a file apart.
type fileState struct {
	size  int64
	mtime time.Time
	info  os.FileInfo // nil: there is no such file
}

func (a fileState) same(b fileState) bool {
	return a.size == b.size && a.mtime.Equal(b.mtime) && (a.info == nil) == (b.info == nil) && (a.info == nil || os.SameFile(a.info, b.info))
}

func stateOf(path string) (s fileState) {
	if fi, err := os.Stat(path); err == nil {
		s = fileState{fi.Size(), fi.ModTime(), fi}
	}
	return s
}

// load reads the files. On an error what there was stays.
func (c *clientCert) load(now time.Time) error {
	c.looked = now
	c.seen = [2]fileState{stateOf(c.cert), stateOf(c.key)}
	pair, err := inputfile.KeyPair(c.cert, c.key)
	if err == nil {
		c.now = &pair
	}
	return err
}

// get returns the certificate to show.
func (c *clientCert) get(now time.Time) *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.looked) < clientCertEvery {
		return c.now
	}
	c.looked = now
	if c.failed == "" && stateOf(c.cert).same(c.seen[0]) && stateOf(c.key).same(c.seen[1]) {
		return c.now
	}
	err := c.load(now)
	switch {
	case err != nil && err.Error() != c.failed:
		c.failed = err.Error()
		c.say(slog.LevelError, "a new client certificate does not load; the old one stays", "error", err)
	case err == nil:
		c.failed = ""
		c.say(slog.LevelInfo, "client certificate reloaded", "subject", c.now.Leaf.Subject.String(), "not_after", c.now.Leaf.NotAfter)
	}
	return c.now
}

func (c *clientCert) say(level slog.Level, msg string, args ...any) {
	if c.log != nil {
		c.log.Log(context.Background(), level, msg, append([]any{"cert", c.cert}, args...)...)
	}
}
