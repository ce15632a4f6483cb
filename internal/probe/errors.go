// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/http1"
)

// dialFailed turns the error of a connection attempt into a verdict.
func dialFailed(err error, to netip.AddrPort, timeout time.Duration) verdict {
	is := func(all ...error) bool {
		for _, e := range all {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
	switch {
	case is(syscall.ECONNREFUSED):
		return failed(health.CauseRefused, fmt.Sprintf("nothing listens on %v", to))
	case is(syscall.EADDRNOTAVAIL, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EPERM, syscall.EACCES):
		// Ours, not the backend's: ports, descriptors, memory, a firewall rule.
		return localFault(err)
	case is(syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENETDOWN, syscall.EHOSTDOWN):
		return failed(health.CauseNoRoute, fmt.Sprintf("%v: %s", to, rootText(err)))
	case isTimeout(err) || is(syscall.ETIMEDOUT):
		return failed(health.CauseTimeout, fmt.Sprintf("no connection to %v within %v", to, timeout))
	default:
		return failed(health.CauseReset, fmt.Sprintf("%v: %s", to, rootText(err)))
	}
}

// localFault is the verdict of a probe that weir itself could not make.
func localFault(err error) verdict {
	return verdict{outcome: health.NoAnswer, text: oneLine("local: " + rootText(err)), retry: true}
}

// lost turns the error of a connection that stood into a verdict.
func (p *Prober) lost(err error, j *job, what string) verdict {
	if isTimeout(err) || errors.Is(err, syscall.ETIMEDOUT) {
		return failed(health.CauseTimeout, fmt.Sprintf("%s within %v", what, j.timeout))
	}
	if cause, text, ok := closedBy(err); ok {
		return failed(cause, what+": "+text)
	}
	if j.target.TLS != nil {
		return failed(health.CauseTLS, what+": "+strings.TrimPrefix(rootText(err), "tls: "))
	}
	return failed(health.CauseReset, what+": "+rootText(err))
}

// closedBy recognises a connection that the backend ended.
func closedBy(err error) (health.ProbeCause, string, bool) {
	switch {
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNABORTED):
		return health.CauseReset, "connection reset", true
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return health.CauseReset, "connection closed", true
	}
	return health.CauseNone, "", false
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool } // net.Error, and os's errors
	return errors.As(err, &t) && t.Timeout()
}

// detail returns what exactly the parser did not like.
func detail(err error) string {
	var e *http1.Error
	if errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}

// rootText returns the innermost error's text: "dial tcp 10.0.0.1:80: connect:"
// before it repeats what is known.
func rootText(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// oneLine makes text fit for one line of a log or page: certificates, for one,
// put the peer's words into errors.
func oneLine(s string) string {
	const most = 300
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
