// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"syscall"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/pool"
)

// DialErrorKind says why there is no connection. No byte of a request was sent
// in any case.
type DialErrorKind uint8

// The kinds.
const (
	Refused     DialErrorKind = iota // somebody answered: nothing listens, or it resets
	Unreachable                      // no route, host down, forbidden on the way
	Timeout                          // no answer within the connect timeout or the deadline
	TLS                              // handshake failed, timed out, or the certificate is not good
	NotHTTP                          // it does not speak what it is spoken to in
	DNS                              // the name has no address and never had
	LocalPorts                       // no local port or address left
	LocalFiles                       // no descriptor left
	LocalMemory                      // no kernel memory left
	Limit                            // Options.MaxConns reached
	DrainOver                        // the backend's drain reached its deadline meanwhile
	Canceled                         // abort was closed
)

// String returns a word for logs, the same as message.Reason where one exists.
func (k DialErrorKind) String() string {
	switch k {
	case Refused:
		return "connect_refused"
	case Unreachable:
		return "unreachable"
	case Timeout:
		return "connect_timeout"
	case TLS:
		return "tls_failed"
	case NotHTTP:
		return "bad_response"
	case DNS:
		return "dns_failed"
	case LocalPorts:
		return "local_ports"
	case LocalFiles:
		return "local_files"
	case LocalMemory:
		return "local_memory"
	case Limit:
		return "conn_limit"
	case DrainOver:
		return "drain_cut"
	default:
		return "canceled"
	}
}

// outcomes are what a log calls each kind, and what a pool makes of it.
var outcomes = [...]struct {
	reason message.Reason
	kind   pool.OutcomeKind
}{
	Refused:     {message.ConnectRefused, pool.ConnectRefused},
	Unreachable: {message.Unreachable, pool.ConnectUnreachable},
	Timeout:     {message.ConnectTimeout, pool.ConnectTimeout},
	TLS:         {message.TLSFailed, pool.TLSFailed},
	NotHTTP:     {message.BadResponse, pool.Malformed},
	DNS:         {message.DNSFailed, pool.LocalFault},
	LocalPorts:  {message.LocalPorts, pool.LocalFault},
	LocalFiles:  {message.LocalFiles, pool.LocalFault},
	LocalMemory: {message.LocalMemory, pool.LocalFault},
	Limit:       {message.ConnLimit, pool.LocalFault},
	DrainOver:   {message.DrainCut, pool.Reset},
	Canceled:    {message.DrainCut, pool.Canceled},
}

// OutcomeOf says what a log calls an error of Dial, and what a pool makes of it: one
// that is no *DialError is an unreachable backend. Of Canceled, whose cause the
// caller alone knows, it takes the end of the process for granted.
func OutcomeOf(err error) (message.Reason, pool.OutcomeKind) {
	var d *DialError
	if !errors.As(err, &d) || int(d.Kind) >= len(outcomes) {
		return outcomes[Unreachable].reason, outcomes[Unreachable].kind
	}
	o := outcomes[d.Kind]
	return o.reason, o.kind
}

// Local reports that the fault is this machine's or the caller's: it says
// nothing about the backend (S9).
func (k DialErrorKind) Local() bool { return k >= DNS }

// DialError is the error of Dial.
type DialError struct {
	Kind DialErrorKind
	Addr string // what was tried last
	Err  error
}

// Error implements error.
func (e *DialError) Error() string {
	return "dial " + e.Addr + ": " + e.Kind.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// kindOf classifies an error of connecting.
func kindOf(err error) DialErrorKind {
	var dns *net.DNSError
	var ne net.Error
	switch {
	case errors.As(err, &dns):
		return DNS
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EADDRINUSE):
		return LocalPorts
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return LocalFiles
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ENOBUFS):
		return LocalMemory
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTDOWN),
		errors.Is(err, syscall.ENETDOWN), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return Unreachable
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return Timeout
	default: // ECONNREFUSED, ECONNRESET; a unix path that is not there
		return Refused
	}
}

// certificateFault says whether a handshake failed for the certificate's sake;
// for the error's text only.
func certificateFault(err error) bool {
	var v *tls.CertificateVerificationError
	return errors.As(err, &v)
}
