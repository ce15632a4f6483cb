// SPDX-License-Identifier: Apache-2.0

package upstream

import "crypto/tls"

// settings are Options as connections read them: immutable.
type settings struct {
	Options
	tls *tls.Config // nil: plain
	// plainTLS is tls without HTTP/2, where it is offered; nil: it is not.
	plainTLS *tls.Config
	epoch    uint32 // of what connections are made with; those of another one are not kept
}

// newSettings fills in the defaults. host is what the address names.
func newSettings(opt Options, host string) *settings {
	if opt.UserTimeout == 0 {
		opt.UserTimeout = DefaultUserTimeout
	}
	if opt.Probe == 0 {
		opt.Probe = DefaultProbe
	}
	if opt.MaxStreams <= 0 {
		opt.MaxStreams = DefaultStreams
	}
	s := &settings{Options: opt}
	if opt.TLS == nil {
		return s
	}
	s.tls = opt.TLS.Clone()
	switch opt.Protocol {
	case HTTP2:
		s.tls.NextProtos = []string{"h2"}
	case HTTP2Offered:
		s.tls.NextProtos = []string{"h2", "http/1.1"}
	}
	if s.tls.ServerName == "" {
		s.tls.ServerName = host
	}
	if s.tls.MinVersion == 0 {
		s.tls.MinVersion = tls.VersionTLS12
	}
	if s.tls.ClientSessionCache == nil {
		s.tls.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	}
	if opt.Protocol == HTTP2Offered {
		s.plainTLS = s.tls.Clone()
		s.plainTLS.NextProtos = []string{"http/1.1"}
	}
	return s
}

// Reconfigure changes how the backend is connected to. Address, Resolver and
// Relieve stay as they were. Connections that are open go on; with anew (what they were made
// with has changed: TLS, source addresses) none of them serves another request.
func (t *Target) Reconfigure(opt Options, anew bool) {
	t.mu.Lock()
	old := t.set.Load()
	opt.Address, opt.Resolver, opt.Relieve, opt.HTTP2 = old.Address, old.Resolver, old.Relieve, old.HTTP2
	next := newSettings(opt, t.server)
	next.epoch = old.epoch
	anew = anew || opt.Protocol != old.Protocol
	if anew {
		next.epoch++
	}
	t.set.Store(next)
	excess := len(t.idle) > opt.MaxIdle
	t.mu.Unlock()
	if anew || excess {
		t.CloseIdle()
	}
}
