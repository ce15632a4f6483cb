// SPDX-License-Identifier: Apache-2.0

package acme

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	acmez "github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"

	"github.com/weirlb/weir/internal/inputfile"
)

// ALPN is what a validator of tls-alpn-01 offers, and nothing beside it.
const ALPN = "acme-tls/1"

// Path is where all challenges of http-01 are.
const Path = "/.well-known/acme-challenge/"

// Options say who issues, and where what was issued is kept. They are compared by
// value; Logger and OnOrder do not count.
type Options struct {
	Directory string // URL of the authority's directory
	CAFile    string // PEM: who signs the directory's own certificate; empty: the system's authorities
	Email     string // told to the authority; empty: none
	Storage   string // folder, made if it is not there
	HTTP, TLS bool   // the challenges that may be used; at least one
	Key       string // p256, p384, rsa2048 or rsa4096
	// EABKeyID and EABKeyFile bind the account to another one that the authority
	// knows (RFC 8555, section 7.3.4); the file holds the key in base64url.
	EABKeyID, EABKeyFile string
}

// Hooks are told what happens.
type Hooks struct {
	Logger *slog.Logger // nil: nobody
	// OnOrder hears the end of each attempt to get a certificate; err nil: there is
	// one. It must not block. nil: nobody.
	OnOrder func(name string, err error)
}

// Manager keeps certificates for names. It is safe for concurrent use.
type Manager struct {
	// Constant.
	opt    Options
	hooks  Hooks
	cache  *certmagic.Cache
	config *certmagic.Config
	issuer *certmagic.ACMEIssuer
	guard  net.Listener // see newGuard
	ctx    context.Context
	stop   context.CancelFunc
	over   sync.WaitGroup

	names atomic.Pointer[map[string]bool]

	mu     sync.Mutex // guards what follows
	state  map[string]order
	closed bool
}

// order is what came of the last attempt for a name.
type order struct {
	at  time.Time
	err string
}

// Status says how it stands with one name.
type Status struct {
	Name     string
	NotAfter time.Time // zero: there is no certificate yet
	Tried    time.Time // the last attempt to get one, by this process; zero: none
	Err      string    // what it said; empty: it worked
}

// New checks the options and opens the storage. Nothing is asked of the authority
// yet. Close it.
func New(opt Options, hooks Hooks) (*Manager, error) {
	if hooks.Logger == nil {
		hooks.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Manager{opt: opt, hooks: hooks, state: map[string]order{}}
	m.names.Store(&map[string]bool{})
	issuer := certmagic.ACMEIssuer{
		CA: opt.Directory, Email: opt.Email, Agreed: true,
		DisableHTTPChallenge: !opt.HTTP, DisableTLSALPNChallenge: !opt.TLS,
	}
	if err := m.credentials(&issuer); err != nil {
		return nil, err
	}
	if err := checkStorage(opt.Storage); err != nil {
		return nil, fmt.Errorf("acme.storage: %w", err)
	}
	var err error
	if m.guard, err = newGuard(&m.over); err != nil {
		return nil, fmt.Errorf("acme: %w", err)
	}
	at := m.guard.Addr().(*net.TCPAddr)
	issuer.ListenHost, issuer.AltHTTPPort, issuer.AltTLSALPNPort = at.IP.String(), at.Port, at.Port
	m.ctx, m.stop = context.WithCancel(context.Background())
	log := zap.New(core{m.hooks.Logger})
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return m.config, nil },
		Logger:           log,
	})
	m.config = certmagic.New(m.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: opt.Storage}, Logger: log, OnEvent: m.event,
		KeySource: certmagic.StandardKeyGenerator{KeyType: certmagic.KeyType(opt.Key)},
		// Authorities end OCSP (Let's Encrypt has), and browsers do not ask for it.
		OCSP: certmagic.OCSPConfig{DisableStapling: true},
	})
	issuer.Logger = log
	m.issuer = certmagic.NewACMEIssuer(m.config, issuer)
	m.config.Issuers = []certmagic.Issuer{m.issuer}
	return m, nil
}

// Check says what New would say of the options, and keeps nothing open.
func Check(opt Options) error {
	m := &Manager{opt: opt}
	if err := m.credentials(&certmagic.ACMEIssuer{}); err != nil {
		return err
	}
	return nil
}

// credentials reads the files that the options name.
func (m *Manager) credentials(issuer *certmagic.ACMEIssuer) error {
	if m.opt.CAFile != "" {
		text, err := inputfile.Read(m.opt.CAFile, inputfile.Most)
		if err != nil {
			return fmt.Errorf("acme.ca: %w", err)
		}
		issuer.TrustedRoots = x509.NewCertPool()
		if !issuer.TrustedRoots.AppendCertsFromPEM(text) {
			return fmt.Errorf("acme.ca: %s holds no certificate", m.opt.CAFile)
		}
	}
	if m.opt.EABKeyID != "" {
		text, err := inputfile.Read(m.opt.EABKeyFile, 4<<10)
		if err != nil {
			return fmt.Errorf("acme.eab_key_file: %w", err)
		}
		issuer.ExternalAccount = &acmez.EAB{KeyID: m.opt.EABKeyID, MACKey: strings.TrimSpace(string(text))}
	}
	return nil
}

// checkStorage makes the folder and writes into it: to find out at the first
// renewal that this cannot be done would be late.
func checkStorage(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".weir-*")
	if err != nil {
		return err
	}
	_ = f.Close() // empty
	return os.Remove(f.Name())
}

// newGuard holds a port of loopback. certmagic serves a challenge itself where
// nobody listens on the port of it, which would take that port from a listener of
// a reload to come; where somebody listens it leaves the challenge to them. The
// guard is that somebody: it accepts, and closes.
func newGuard(over *sync.WaitGroup) (net.Listener, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	over.Go(func() {
		for {
			c, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Second) // out of descriptors: others know
				continue
			}
			_ = c.Close()
		}
	})
	return ln, nil
}

// Same reports whether another Manager of the options would do the same.
func (m *Manager) Same(opt Options) bool { return m.opt == opt }

// Load takes what the storage has for names, so that they can be served at once.
// It asks nobody.
func (m *Manager) Load(names []string) {
	for _, n := range names {
		if len(m.cache.AllMatchingCertificates(n)) > 0 {
			continue
		}
		if _, err := m.config.CacheManagedCertificate(m.ctx, n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.hooks.Logger.Warn("a stored certificate does not load; another one is ordered", "name", n, "error", err)
		}
	}
}

// Manage says which names are wanted from now on. Missing certificates are
// ordered, and all renewed in time, in the background: attempts that fail are
// repeated after 1 min, and less and less often, at least every 6 h.
func (m *Manager) Manage(names []string) {
	want := make(map[string]bool, len(names))
	for _, n := range names {
		want[n] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	old := *m.names.Swap(&want)
	var fresh []string
	for n := range want {
		if !old[n] {
			fresh = append(fresh, n)
		}
	}
	var gone []certmagic.SubjectIssuer
	for n := range old {
		if !want[n] {
			gone = append(gone, certmagic.SubjectIssuer{Subject: n, IssuerKey: m.issuer.IssuerKey()})
			delete(m.state, n)
		}
	}
	m.cache.RemoveManaged(gone)
	slices.Sort(fresh)
	if len(fresh) > 0 {
		m.over.Go(func() { m.manage(fresh) })
	}
}

// manage orders what there is no certificate of, and has the rest renewed if it
// is due, at once.
func (m *Manager) manage(names []string) {
	missing := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return len(m.cache.AllMatchingCertificates(n)) > 0 })
	if err := m.config.ManageAsync(m.ctx, missing); err != nil && m.ctx.Err() == nil {
		m.hooks.Logger.Warn("certificates are not managed", "names", missing, "error", err)
	}
	if len(missing) == len(names) {
		return
	}
	if err := m.cache.RenewManagedCertificates(m.ctx); err != nil && m.ctx.Err() == nil {
		m.hooks.Logger.Warn("certificates are not renewed", "error", err)
	}
}

// event is told by certmagic what it does.
func (m *Manager) event(_ context.Context, event string, data map[string]any) error {
	name, _ := data["identifier"].(string)
	switch event {
	case "cert_obtained":
		m.note(name, nil)
	case "cert_failed":
		err, _ := data["error"].(error)
		if err == nil {
			err = errors.New("the authority issues none")
		}
		if m.ctx.Err() == nil {
			m.note(name, err)
		}
	}
	return nil
}

func (m *Manager) note(name string, err error) {
	o := order{at: time.Now()}
	if err != nil {
		o.err = err.Error()
		m.hooks.Logger.Error("a certificate is not issued; it is tried again", "name", name, "error", err)
	} else {
		m.hooks.Logger.Info("certificate issued", "name", name, "directory", m.opt.Directory)
	}
	m.mu.Lock()
	m.state[name] = o
	m.mu.Unlock()
	if m.hooks.OnOrder != nil {
		m.hooks.OnOrder(name, err)
	}
}

// Status returns how it stands with each name, sorted.
func (m *Manager) Status() []Status {
	names := *m.names.Load()
	out := make([]Status, 0, len(names))
	m.mu.Lock()
	defer m.mu.Unlock()
	for n := range names {
		s := Status{Name: n, Tried: m.state[n].at, Err: m.state[n].err}
		for _, c := range m.cache.AllMatchingCertificates(n) {
			if c.Leaf != nil && c.Leaf.NotAfter.After(s.NotAfter) {
				s.NotAfter = c.Leaf.NotAfter
			}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Certificate returns what is to be shown to a client for a name in lower case: the
// answer to a challenge if it is a validator, else the certificate; nil where there
// is none.
func (m *Manager) Certificate(h *tls.ClientHelloInfo, name string) *tls.Certificate {
	if !(*m.names.Load())[name] {
		return nil
	}
	if len(h.SupportedProtos) == 1 && h.SupportedProtos[0] == ALPN {
		if !m.opt.TLS {
			return nil
		}
		c, err := m.config.GetCertificate(h)
		if err != nil {
			return nil // no challenge is open; certmagic's log says it at level debug
		}
		return c
	}
	return m.newest(name)
}

func (m *Manager) newest(name string) (best *tls.Certificate) {
	all := m.cache.AllMatchingCertificates(name)
	for i := range all {
		if c := &all[i].Certificate; c.Leaf != nil && (best == nil || c.Leaf.NotAfter.After(best.Leaf.NotAfter)) {
			best = c
		}
	}
	return best
}

// Close ends what is under way. What was issued stays in the storage.
func (m *Manager) Close() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.closed = true
	m.mu.Unlock()
	m.stop()
	_ = m.guard.Close() // nothing depends on it
	m.over.Wait()
	// It may be asking an authority about a renewal, which nothing cuts short.
	stopped := make(chan struct{})
	go func() {
		m.cache.Stop()
		close(stopped)
	}()
	t := time.NewTimer(stopPatience)
	defer t.Stop()
	select {
	case <-stopped:
	case <-t.C:
	}
}

// stopPatience is how long Close waits for what it cannot cut short.
const stopPatience = time.Second
