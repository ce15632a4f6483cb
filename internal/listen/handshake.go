// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// Handshake says how a TLS handshake with a client ended.
type Handshake uint8

// The ends of handshakes. The first two are good ones.
const (
	HandshakeFull          Handshake = iota // everything was agreed anew
	HandshakeResumed                        // a session went on
	HandshakeSlow                           // not complete within Options.HandshakeTimeout
	HandshakeClosed                         // the client went away, as port scans and checks of TCP do
	HandshakePlainHTTP                      // HTTP was sent
	HandshakeNotTLS                         // something else was sent that is no TLS
	HandshakeVersion                        // no version in common
	HandshakeCipher                         // no cipher suite, curve or signature in common
	HandshakeALPN                           // no protocol in common
	HandshakeNoCert                         // there is no certificate for the name
	HandshakeNoClientCert                   // the client showed no certificate, and must
	HandshakeBadClientCert                  // it showed one that does not verify
	HandshakeRevoked                        // it showed one that was revoked, or whose issuer's list is out of date
	HandshakeRefused                        // the client did not want to go on: it said so by an alert
	HandshakeOther
	handshakes
)

var handshakeNames = [handshakes]string{
	"full", "resumed", "timeout", "closed", "plain_http", "not_tls", "version", "cipher", "alpn", "no_certificate",
	"client_cert_missing", "client_cert_invalid", "client_cert_revoked", "client_alert", "other",
}

// String returns a word for metrics.
func (h Handshake) String() string { return handshakeNames[h] }

// Handshakes returns how many handshakes have ended each way, by Handshake.
func (l *Listener) Handshakes() [handshakes]int64 {
	var out [handshakes]int64
	for i := range out {
		out[i] = l.shaken[i].Load()
	}
	return out
}

// Handshaking returns the number of handshakes under way.
func (l *Listener) Handshaking() int64 { return l.shaking.Load() }

// errNoCertificate is said to crypto/tls where no certificate can be shown.
var errNoCertificate = errors.New("there is no certificate for the name")

// endings are what crypto/tls says without a type: the beginnings of its messages,
// behind "tls: ".
var endings = []struct {
	text string
	end  Handshake
}{
	{"client offered only unsupported versions", HandshakeVersion},
	{"no cipher suite supported", HandshakeCipher},
	{"no key exchanges supported", HandshakeCipher},
	{"no supported elliptic curves", HandshakeCipher},
	{"peer doesn't support any of the certificate's signature algorithms", HandshakeCipher},
	{"client requested unsupported application protocols", HandshakeALPN},
	{"client didn't provide a certificate", HandshakeNoClientCert},
	{"client certificate used with", HandshakeBadClientCert},
	{"invalid signature by the client certificate", HandshakeBadClientCert},
	{"failed to parse client certificate", HandshakeBadClientCert},
	{"client sent certificate containing", HandshakeBadClientCert},
	{"client certificate contains", HandshakeBadClientCert},
}

// endOf says how a handshake ended by its error.
func endOf(err error) Handshake {
	var record tls.RecordHeaderError
	var verify *tls.CertificateVerificationError
	var alert *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return HandshakeSlow
	case errors.As(err, &record):
		if isHTTP(record) {
			return HandshakePlainHTTP
		}
		return HandshakeNotTLS
	case errors.Is(err, errRevoked), errors.Is(err, errStaleCRL):
		return HandshakeRevoked
	case errors.As(err, &verify):
		return HandshakeBadClientCert
	case errors.Is(err, errNoCertificate):
		return HandshakeNoCert
	case errors.As(err, &alert) && alert.Op == "remote error":
		return HandshakeRefused
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return HandshakeClosed
	}
	text := strings.TrimPrefix(err.Error(), "tls: ")
	for _, e := range endings {
		if strings.HasPrefix(text, e.text) {
			return e.end
		}
	}
	return HandshakeOther
}

// handshakeBy is when a connection that was accepted just now must have done with
// what comes before its own bytes; 0: never.
func (s *settings) handshakeBy() balance.Instant {
	if s.opt.HandshakeTimeout <= 0 {
		return 0
	}
	return clock.Now().Add(s.opt.HandshakeTimeout)
}

// handshake runs the handshake of TLS. by is when it must be complete, where that
// counts from an earlier moment; 0: from this one.
func (l *Listener) handshake(set *settings, c *netconn.Conn, info *Info, by balance.Instant) error {
	if by == 0 {
		by = set.handshakeBy()
	}
	began := clock.Now()
	l.shaking.Add(1)
	err := c.HandshakeTurns(by, l.crypto)
	l.shaking.Add(-1)
	if err != nil {
		l.shaken[endOf(err)].Add(1)
		return err
	}
	st := c.TLS().ConnectionState()
	end := HandshakeFull
	if st.DidResume {
		end = HandshakeResumed
	}
	l.shaken[end].Add(1)
	if set.opt.OnShaken != nil {
		set.opt.OnShaken(st.DidResume, clock.Now().Sub(began))
	}
	info.TLS, info.SNI, info.ALPN, info.TLSVersion = true, st.ServerName, st.NegotiatedProtocol, st.Version
	info.Suite, info.Resumed, info.ClientCerts = st.CipherSuite, st.DidResume, st.PeerCertificates
	return nil
}

// plainAnswer is what somebody gets who speaks HTTP where TLS is expected: they
// would look for the mistake everywhere else if the connection just closed.
const plainAnswer = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: 43\r\n\r\n" +
	"weir: 400 HTTP was sent where TLS is spoken"

// answerPlain sends it if that is why the handshake failed. Nothing has been
// sent on the connection before, so the write cannot block.
func answerPlain(nc net.Conn, err error) {
	var r tls.RecordHeaderError
	if errors.As(err, &r) && isHTTP(r) {
		_, _ = io.WriteString(nc, plainAnswer) // it may have gone: then nobody misses it
	}
}

// isHTTP reports whether what came instead of a record is the start of a request.
func isHTTP(r tls.RecordHeaderError) bool {
	switch string(r.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH", "PRI *":
		return true
	default:
		return false
	}
}
