// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/inputfile"
)

// CertFile names a certificate chain and its key, both PEM.
type CertFile struct{ Cert, Key string }

// TLSOptions describe how a listener terminates TLS. A zero field means its
// default; what is not an option is crypto/tls's default. Session tickets are on,
// their keys are the listener's: see tickets.go.
type TLSOptions struct {
	Certificates []CertFile    // at least one unless there are ManagedNames; the first serves clients that name nobody known
	MinVersion   uint16        // tls.VersionTLS12
	ALPN         []string      // http/1.1; not nil and empty: none is agreed on, whatever clients offer
	ReloadEvery  time.Duration // how often the files are looked at; 5s, negative: only by Reload
	ClientAuth   ClientAuth
	// TicketKeysFile holds the keys of session tickets, which several processes may
	// share (ticketfile.go says its form). Empty: the listener makes its own.
	TicketKeysFile string
	// Managed has certificates that are in none of the files, for ManagedNames (lower
	// case). One of Certificates that has the exact name goes before it. nil: none.
	Managed      Managed
	ManagedNames []string
}

// Managed has certificates that somebody else obtains and renews.
type Managed interface {
	// Certificate returns what to show for one of the names, or, to a client that
	// offers acme-tls/1 (RFC 8737) alone, the answer to its challenge; nil: nothing.
	Certificate(h *tls.ClientHelloInfo, name string) *tls.Certificate
}

// certStore holds the certificates of a listener and replaces them when their
// files change.
type certStore struct {
	// Constant.
	opt     TLSOptions // without Managed
	managed Managed
	named   map[string]bool // ManagedNames
	log     *slog.Logger
	config  *tls.Config

	now atomic.Pointer[certSet]

	mu     sync.Mutex            // guards what follows: one reload at a time
	onKeys func(keys [][32]byte) // told of the keys of tickets; nil until the store is in use
	seen   []fileMark            // of the files behind the last attempt
	failed string                // what the last attempt said, logged once
}

// certSet is one immutable generation of what the files say.
type certSet struct {
	all    []*tls.Certificate
	byName map[string][]*tls.Certificate // lower case; wildcards as "*.example.com"
	auth   *authority                    // of clients; nil: none is asked for a certificate
	keys   [][32]byte                    // of session tickets; nil: the listener makes its own
	// forClient is what a handshake is made with where clients are asked, as who
	// is believed may change; nil elsewhere.
	forClient *tls.Config
}

// fileMark tells versions of a file apart.
type fileMark struct {
	mtime time.Time
	size  int64
	inode uint64
}

func (o *TLSOptions) defaults() {
	if o.MinVersion == 0 {
		o.MinVersion = tls.VersionTLS12
	}
	if o.ALPN == nil {
		o.ALPN = []string{"http/1.1"}
	}
	if o.ReloadEvery == 0 {
		o.ReloadEvery = DefaultReloadEvery
	}
}

// change returns the store for other options, with certificates loaded. The keys
// of session tickets stay, so that clients resume. adopt is to be called when
// the store is put into force. s may be nil: then there was none.
func (s *certStore) change(opt TLSOptions, log *slog.Logger) (next *certStore, adopt func(), err error) {
	if len(opt.Certificates) == 0 && (opt.Managed == nil || len(opt.ManagedNames) == 0) {
		return nil, nil, errors.New("tls: no certificate")
	}
	opt.defaults()
	next = &certStore{managed: opt.Managed, log: log, named: make(map[string]bool, len(opt.ManagedNames))}
	for _, n := range opt.ManagedNames {
		next.named[n] = true
	}
	opt.Managed = nil
	next.opt = opt
	next.seen = next.marks()
	set, err := next.load(nil)
	if err != nil {
		return nil, nil, err
	}
	if s != nil && s.managed == next.managed && reflect.DeepEqual(s.opt, opt) {
		return s, func() { s.replace(set, next.seen) }, nil
	}
	next.config = next.fresh()
	if opt.ClientAuth.asks() || next.managed != nil && len(opt.ALPN) == 0 {
		next.config.GetConfigForClient = next.forClient
	}
	next.now.Store(set)
	return next, func() {}, nil
}

// forClient decides what a client's handshake is made with; nil: what the others' is.
func (s *certStore) forClient(h *tls.ClientHelloInfo) (*tls.Config, error) {
	switch {
	case s.managed != nil && isChallenge(h):
		// A validator has no certificate, and gets nothing but the handshake.
		if len(s.opt.ALPN) > 0 {
			return nil, nil
		}
		c := s.fresh()
		c.NextProtos = []string{challengeALPN}
		return c, nil
	case !s.opt.ClientAuth.asks() || !s.opt.ClientAuth.concerns(h.ServerName):
		return nil, nil
	}
	return s.now.Load().forClient, nil
}

// fresh returns a configuration without keys of tickets: those are put in by who
// owns them.
func (s *certStore) fresh() *tls.Config {
	c := &tls.Config{MinVersion: s.opt.MinVersion, NextProtos: s.opt.ALPN, GetCertificate: s.certificate}
	if s.managed != nil && len(c.NextProtos) > 0 {
		c.NextProtos = append(slices.Clone(c.NextProtos), challengeALPN)
	}
	return c
}

// challengeALPN is what a validator of tls-alpn-01 (RFC 8737) offers, and nothing
// beside it.
const challengeALPN = "acme-tls/1"

func isChallenge(h *tls.ClientHelloInfo) bool {
	return len(h.SupportedProtos) == 1 && h.SupportedProtos[0] == challengeALPN
}

// certificate decides what a client is shown.
func (s *certStore) certificate(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	set := s.now.Load()
	if s.managed != nil {
		name := strings.ToLower(strings.TrimSuffix(h.ServerName, "."))
		switch {
		case isChallenge(h):
			if c := s.managed.Certificate(h, name); c != nil {
				return c, nil
			}
			return nil, errNoCertificate
		case s.named[name] && set.byName[name] == nil:
			if c := s.managed.Certificate(h, name); c != nil {
				return c, nil
			}
		}
		if len(set.all) == 0 {
			if c := s.managed.Certificate(h, s.opt.ManagedNames[0]); c != nil && !s.named[name] {
				return c, nil
			}
			return nil, errNoCertificate
		}
	}
	return set.choose(h), nil
}

// load reads all files. Where one kind of them does not load, what old has of it
// stays, and the rest is taken: a list of revocations that is broken must not
// keep a renewed certificate out. The error then says what is wrong; without old
// there is no set.
func (s *certStore) load(old *certSet) (*certSet, error) {
	set, err := loadCerts(s.opt.Certificates)
	auth, authErr := s.opt.ClientAuth.load()
	keys, keysErr := loadTicketKeys(s.opt.TicketKeysFile)
	all := errors.Join(err, authErr, keysErr)
	if all != nil && old == nil {
		return nil, all
	}
	if err != nil {
		set = &certSet{all: old.all, byName: old.byName}
	}
	if authErr != nil {
		auth = old.auth
	}
	if keysErr != nil {
		keys = old.keys
	}
	set.auth, set.keys = auth, keys
	if auth != nil {
		set.forClient = s.fresh()
		auth.demand(set.forClient, s.opt.ClientAuth.Mode)
	}
	return set, all
}

func loadCerts(files []CertFile) (*certSet, error) {
	set := &certSet{byName: make(map[string][]*tls.Certificate)}
	var errs []error
	for _, f := range files {
		c, err := inputfile.KeyPair(f.Cert, f.Key)
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
	nameless := *h // the name is settled, and the default may serve another one
	nameless.ServerName = ""
	for _, c := range found {
		if nameless.SupportsCertificate(c) == nil {
			return c
		}
	}
	return found[0]
}

// watch looks at the files from time to time until the listener stops or is
// plain.
func (l *Listener) watch() {
	for {
		s := l.set.Load().certs
		if s == nil || s.opt.ReloadEvery < 0 {
			l.mu.Lock()
			// Once more, under the lock that a change takes to begin a watch.
			s = l.set.Load().certs
			l.watched = s != nil && s.opt.ReloadEvery >= 0
			again := l.watched
			l.mu.Unlock()
			if !again {
				return
			}
		}
		t := time.NewTimer(s.opt.ReloadEvery)
		select {
		case <-l.stop:
			t.Stop()
			return
		case <-t.C:
			if s := l.set.Load().certs; s != nil {
				_ = s.reload() // logged there
			}
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
	set, err := s.load(s.now.Load())
	s.seen = seen
	if err != nil {
		if err.Error() != s.failed {
			s.log.Error("new certificates do not load; the old ones stay", "error", err)
			s.failed = err.Error()
		}
		s.store(set) // what does load
		return err
	}
	s.put(set)
	return nil
}

// replace puts certificates into force that were loaded from files as marked.
func (s *certStore) replace(set *certSet, seen []fileMark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.failed != "" || !slices.Equal(seen, s.seen)
	s.seen = seen
	if changed {
		s.put(set)
	}
}

// put is called under mu.
func (s *certStore) put(set *certSet) {
	s.failed = ""
	s.store(set)
	if len(set.all) == 0 {
		s.log.Info("files of TLS reloaded")
		return
	}
	first := set.all[0].Leaf
	s.log.Info("certificates reloaded", "certificates", len(set.all), "first", first.Subject.String(), "not_after", first.NotAfter)
}

// store puts a set into force. Called under mu.
func (s *certStore) store(set *certSet) {
	s.now.Store(set)
	if s.onKeys != nil {
		s.onKeys(set.keys)
	}
}

// files are those that are looked at.
func (s *certStore) files() []string {
	out := make([]string, 0, 2*len(s.opt.Certificates)+3)
	for _, f := range s.opt.Certificates {
		out = append(out, f.Cert, f.Key)
	}
	for _, f := range []string{s.opt.ClientAuth.CAFile, s.opt.ClientAuth.CRLFile, s.opt.TicketKeysFile} {
		if f != "" {
			out = append(out, f)
		}
	}
	return out
}

// marks describes the files as they are. One that cannot be looked at has the
// zero mark; loading says why.
func (s *certStore) marks() []fileMark {
	files := s.files()
	out := make([]fileMark, len(files))
	for i, path := range files {
		fi, err := os.Stat(path)
		if err != nil {
			continue
		}
		out[i].mtime, out[i].size = fi.ModTime(), fi.Size()
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			out[i].inode = st.Ino
		}
	}
	return out
}
