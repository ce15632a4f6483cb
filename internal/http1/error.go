// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"os"

	"github.com/weirlb/weir/internal/message"
)

// Error is a message that the codec refuses, or a peer that was too slow. It is
// immutable once returned.
type Error struct {
	Reason message.Reason // one word for logs, metrics and the status code
	Detail string         // what exactly, for the log and the answer's body
	Code   int            // status code where it is not the Reason's own; 0 otherwise
	Silent bool           // nothing was received, so nothing is answered
	Err    error          // the cause, where there is one
}

// Error implements error.
func (e *Error) Error() string {
	s := "http1: " + e.Reason.String() + ": " + e.Detail
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Status is the status code to answer with.
func (e *Error) Status() int {
	if e.Code != 0 {
		return e.Code
	}
	return e.Reason.Status()
}

// Timeout reports that the peer was too slow (net.Error's meaning).
func (e *Error) Timeout() bool {
	switch e.Reason {
	case message.HeaderTimeout, message.BodyTimeout, message.WriteTimeout:
		return true
	}
	return false
}

func bad(detail string) *Error { return &Error{Reason: message.BadRequest, Detail: detail} }

// What the parsers refuse. They are shared values: refusing costs no
// allocation on the serving side.
var (
	errBareLF      = bad("line feed without carriage return")
	errBareCR      = bad("carriage return without line feed")
	errFold        = bad("folded field line")
	errNameEmpty   = bad("empty field name")
	errNameSpace   = bad("white space before the colon of a field")
	errName        = bad("invalid character in a field name")
	errValue       = bad("control character in a field value")
	errLookalike   = bad("field name that looks like a framing field")
	errTooLarge    = &Error{Reason: message.HeaderTooLarge, Detail: "head exceeds the limit"}
	errTooMany     = &Error{Reason: message.HeaderTooLarge, Detail: "too many fields"}
	errMethod      = bad("invalid method")
	errMethodCase  = bad("standard method not in capitals")
	errTarget      = bad("invalid request-target")
	errTargetLong  = &Error{Reason: message.URITooLong, Detail: "request-target exceeds the limit"}
	errFragment    = bad("fragment in the request-target")
	errTargetForm  = bad("request-target form does not fit the method")
	errUserinfo    = bad("userinfo in an authority")
	errAuthority   = bad("invalid host or port in an authority")
	errVersion     = bad("invalid HTTP-version")
	errVersionOld  = bad("request line without HTTP-version")
	errVersionUnk  = &Error{Reason: message.BadRequest, Detail: "HTTP-version not supported", Code: 505}
	errHostMissing = bad("no Host field")
	errHostTwice   = bad("repeated Host field")
	errHost        = bad("invalid Host field")
	errLength      = bad("invalid Content-Length")
	errLengthTwice = bad("repeated Content-Length")
	errBoth        = bad("both Content-Length and Transfer-Encoding")
	errCoding      = bad("Transfer-Encoding is not exactly chunked")
	errCodingTwice = bad("repeated Transfer-Encoding")
	errCodingOld   = bad("Transfer-Encoding in HTTP/1.0")
	errConnection  = bad("invalid Connection field")
	errTraceBody   = bad("TRACE with content")
	errExpect      = &Error{Reason: message.BadRequest, Detail: "unknown expectation", Code: 417}
	errStatusLine  = bad("invalid status line")
	errSwitch      = bad("101 without an Upgrade field")
	errChunkSize   = bad("invalid chunk size")
	errChunkLong   = bad("chunk size line exceeds the limit")
	errChunkExt    = bad("invalid chunk extension")
	errChunkEnd    = bad("chunk does not end with CRLF")
)

// fromBackend is the same fault seen in a response.
func (e *Error) fromBackend() *Error {
	return &Error{Reason: message.BadResponse, Detail: e.Detail, Err: e.Err}
}

// isTimeout reports a deadline of the connection.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
