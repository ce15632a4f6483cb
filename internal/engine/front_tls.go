// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/tls"
	"slices"
	"strconv"
	"strings"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/route"
)

// clientInfo is what exchanges know of a connection.
func clientInfo(info *listen.Info) *l7.ClientInfo {
	ci := &l7.ClientInfo{Peer: info.Remote, Local: info.Local, TLS: info.TLS}
	if p := info.Proxied; p != nil {
		ci.Proxied = &l7.Proxied{Peer: p.Peer, TLVs: p.TLVs, Checksum: p.Checksum}
	}
	if info.TLS {
		ci.Secure = l7.NewSecure(observe.Session{
			Version: info.TLSVersion, Suite: info.Suite, Resumed: info.Resumed, Name: strings.ToLower(info.SNI),
		}, info.ClientCerts)
		ci.Secure.ALPN = info.ALPN
	}
	return ci
}

// clientAuth translates what a plan asks of clients.
func clientAuth(t *config.ListenerTLS) listen.ClientAuth {
	out := listen.ClientAuth{CAFile: t.ClientAuth.CA, CRLFile: t.ClientAuth.CRL, Names: t.ClientAuth.SNI}
	switch t.ClientAuth.Mode {
	case "optional":
		out.Mode = tls.VerifyClientCertIfGiven
	case "required":
		out.Mode = tls.RequireAndVerifyClientCert
	}
	return out
}

// clientAuthNames are those whose clients are asked, where not all are.
func clientAuthNames(t *config.ListenerTLS) route.NameSet {
	if t == nil || t.ClientAuth.Mode == "off" {
		return nil
	}
	return route.NewNameSet(t.ClientAuth.SNI)
}

// certFields translates how a plan tells backends whose certificate it was.
func certFields(t *config.ListenerTLS) (out l7.CertFields) {
	if t == nil || t.ClientAuth.Mode == "off" {
		return 0
	}
	for _, f := range t.ClientAuth.Forward {
		switch f {
		case "xfcc":
			out |= l7.CertXFCC
		case "client_cert":
			out |= l7.CertClient
		case "client_cert_chain":
			out |= l7.CertClientAll
		}
	}
	return out
}

// hsts is the value of Strict-Transport-Security (RFC 6797, section 6.1); empty:
// there is none.
func hsts(t *config.ListenerTLS) string {
	if t == nil || t.HSTS == nil {
		return ""
	}
	v := "max-age=" + strconv.FormatInt(int64(t.HSTS.MaxAge.Seconds()), 10)
	if t.HSTS.Subdomains {
		v += "; includeSubDomains"
	}
	if t.HSTS.Preload {
		v += "; preload"
	}
	return v
}

// handshakes are the listener's counts by the words of metrics.
func (l *liveListener) handshakes() (out []observe.HandshakeCount) {
	for i, n := range l.ln.Handshakes() {
		out = append(out, observe.HandshakeCount{Outcome: listen.Handshake(i).String(), N: uint64(n)})
	}
	return out
}

// certificates are those of files, and those that are obtained.
func (l *liveListener) certificates() (out []observe.CertificateGauge) {
	for _, c := range l.ln.Certificates() {
		out = append(out, observe.CertificateGauge{Name: c.Name, NotAfter: c.NotAfter})
	}
	if l.issued == nil || l.cfg.TLS == nil {
		return out
	}
	for _, s := range l.issued.Status() {
		if slices.Contains(l.cfg.TLS.ACME, s.Name) {
			out = append(out, observe.CertificateGauge{Name: s.Name, NotAfter: s.NotAfter, Issued: true, Err: s.Err})
		}
	}
	return out
}
