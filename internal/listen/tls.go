// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// CertFile names a certificate chain and its key, both PEM.
type CertFile struct{ Cert, Key string }

// TLSOptions describe how a listener terminates TLS. A zero field means its
// default; what is not an option is crypto/tls's default, session tickets with
// rotating keys included.
type TLSOptions struct {
	Certificates []CertFile    // at least one; the first serves clients that name nobody known
	MinVersion   uint16        // tls.VersionTLS12
	ALPN         []string      // http/1.1
	ReloadEvery  time.Duration // how often the files are looked at; 5s, negative: only by Reload
}

// certStore holds the certificates of a listener and replaces them when their
// files change.
type certStore struct {
	// Constant.
	opt    TLSOptions
	log    *slog.Logger
	config *tls.Config

	now atomic.Pointer[certSet]

	mu     sync.Mutex // guards what follows: one reload at a time
	seen   []fileMark // of the files behind the last attempt
	failed string     // what the last attempt said, logged once
}

// certSet is one immutable generation of certificates.
type certSet struct {
	all    []*tls.Certificate
	byName map[string][]*tls.Certificate // lower case; wildcards as "*.example.com"
}

// fileMark tells versions of a file apart.
type fileMark struct {
	mtime time.Time
	size  int64
	inode uint64
}

func newCertStore(opt TLSOptions, log *slog.Logger) (*certStore, error) {
	if len(opt.Certificates) == 0 {
		return nil, errors.New("tls: no certificate")
	}
	if opt.MinVersion == 0 {
		opt.MinVersion = tls.VersionTLS12
	}
	if len(opt.ALPN) == 0 {
		opt.ALPN = []string{"http/1.1"}
	}
	if opt.ReloadEvery == 0 {
		opt.ReloadEvery = DefaultReloadEvery
	}
	s := &certStore{opt: opt, log: log}
	s.seen = s.marks()
	set, err := loadCerts(opt.Certificates)
	if err != nil {
		return nil, err
	}
	s.now.Store(set)
	s.config = &tls.Config{
		MinVersion:     opt.MinVersion,
		NextProtos:     opt.ALPN,
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return s.now.Load().choose(h), nil },
	}
	return s, nil
}

func loadCerts(files []CertFile) (*certSet, error) {
	set := &certSet{byName: make(map[string][]*tls.Certificate)}
	var errs []error
	for _, f := range files {
		c, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			errs = append(errs, fmt.Errorf("tls: certificate %s with key %s: %w", f.Cert, f.Key, err))
			continue
		}
		set.all = append(set.all, &c)
		names := c.Leaf.DNSNames
		if len(names) == 0 && c.Leaf.Subject.CommonName != "" {
			names = []string{c.Leaf.Subject.CommonName}
		}
		for _, n := range names {
			n = strings.ToLower(n)
			set.byName[n] = append(set.byName[n], &c)
		}
	}
	return set, errors.Join(errs...)
}

// choose returns the certificate for a client: by exact name, by wildcard of
// one label, else the first; among several the first that the client's
// algorithms can verify.
func (s *certSet) choose(h *tls.ClientHelloInfo) *tls.Certificate {
	name := strings.ToLower(strings.TrimSuffix(h.ServerName, "."))
	found := s.byName[name]
	if found == nil {
		if _, rest, ok := strings.Cut(name, "."); ok {
			found = s.byName["*."+rest]
		}
	}
	if found == nil {
		found = s.all[:1]
		if len(s.all[0].Leaf.DNSNames) > 0 {
			// The default's siblings: the same name with another kind of key.
			found = s.byName[strings.ToLower(s.all[0].Leaf.DNSNames[0])]
		}
	}
	for _, c := range found {
		if h.SupportsCertificate(c) == nil {
			return c
		}
	}
	return found[0]
}

// watch looks at the files from time to time until stop is closed.
func (s *certStore) watch(stop <-chan struct{}) {
	if s.opt.ReloadEvery < 0 {
		return
	}
	t := time.NewTicker(s.opt.ReloadEvery)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			_ = s.reload() // logged there
		}
	}
}

// reload loads the files if they changed since the last attempt, or if that
// failed: a certificate and its key are rarely replaced in the same instant.
func (s *certStore) reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.marks()
	if s.failed == "" && slices.Equal(seen, s.seen) {
		return nil
	}
	set, err := loadCerts(s.opt.Certificates)
	s.seen = seen
	if err != nil {
		if err.Error() != s.failed {
			s.log.Error("new certificates do not load; the old ones stay", "error", err)
			s.failed = err.Error()
		}
		return err
	}
	s.failed = ""
	s.now.Store(set)
	first := set.all[0].Leaf
	s.log.Info("certificates reloaded", "certificates", len(set.all), "first", first.Subject.String(), "not_after", first.NotAfter)
	return nil
}

// marks describes the files as they are. One that cannot be looked at has the
// zero mark; loading says why.
func (s *certStore) marks() []fileMark {
	out := make([]fileMark, 0, 2*len(s.opt.Certificates))
	for _, f := range s.opt.Certificates {
		for _, path := range []string{f.Cert, f.Key} {
			var m fileMark
			if fi, err := os.Stat(path); err == nil {
				m.mtime, m.size = fi.ModTime(), fi.Size()
				if st, ok := fi.Sys().(*syscall.Stat_t); ok {
					m.inode = st.Ino
				}
			}
			out = append(out, m)
		}
	}
	return out
}
