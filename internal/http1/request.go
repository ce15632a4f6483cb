// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"encoding/binary"

	"github.com/weirlb/weir/internal/message"
)

// ParseRequest reads one request head from the start of buf into r. n is the
// number of bytes it takes, with an empty line skipped before it; n == 0 with a
// nil error means that more bytes are needed. The error is an *Error. r borrows
// from buf. Parsing the same bytes again with more behind them gives the same
// result, and no prefix of a good head is an error.
func ParseRequest(buf []byte, lim *Limits, r *message.Request) (n int, err error) {
	n, e := parseRequest(buf, lim, r)
	if e != nil {
		return 0, e
	}
	return n, nil
}

func parseRequest(buf []byte, lim *Limits, r *message.Request) (int, *Error) {
	fields := r.Fields
	*r = message.Request{Fields: fields, Scratch: r.Scratch}
	r.Fields.Reset(buf)
	start := 0
	if len(buf) > 0 && buf[0] == '\r' {
		if len(buf) == 1 {
			return 0, nil
		}
		if buf[1] != '\n' {
			return 0, errBareCR
		}
		start = 2
	}
	i, e := parseRequestLine(buf, start, lim, r)
	if e != nil {
		return 0, e
	}
	if i == 0 {
		if len(buf)-start >= lim.headerBytes() {
			return 0, errTooLarge
		}
		return 0, nil
	}
	var h head
	n, e := parseFields(buf, i, start, lim, &r.Fields, &h)
	if e != nil || n == 0 {
		return 0, e
	}
	if e := parseTarget(r); e != nil {
		return 0, e
	}
	if e := finishRequest(r, &h); e != nil {
		return 0, e
	}
	return n, nil
}

// Versions as little-endian words.
var (
	http11 = binary.LittleEndian.Uint64([]byte("HTTP/1.1"))
	http10 = binary.LittleEndian.Uint64([]byte("HTTP/1.0"))
)

// parseRequestLine sets Method, Target and the version; n is the offset behind
// the line's CRLF, 0 when more bytes are needed.
func parseRequestLine(buf []byte, i int, lim *Limits, r *message.Request) (n int, _ *Error) {
	start := i
	for i < len(buf) && class[buf[i]]&tokenChar != 0 {
		i++
	}
	if i-start > maxMethod {
		return 0, errMethod
	}
	if i == len(buf) {
		return 0, nil
	}
	if buf[i] != ' ' || i == start {
		if buf[i] == '\n' {
			return 0, errBareLF
		}
		return 0, errMethod
	}
	r.Method = buf[start:i:i]
	if !capitals(r.Method) && isStandard(r.Method) {
		return 0, errMethodCase
	}

	i++
	start = i
	for i < len(buf) && class[buf[i]]&targetChar != 0 {
		i++
	}
	if i-start > lim.target() {
		return 0, errTargetLong
	}
	if i == len(buf) {
		return 0, nil
	}
	if buf[i] != ' ' || i == start {
		return 0, targetFault(buf[i])
	}
	r.Target = buf[start:i:i]

	i++
	if len(buf)-i < 10 {
		return 0, partialVersion(buf[i:])
	}
	switch binary.LittleEndian.Uint64(buf[i:]) {
	case http11:
		r.Major, r.Minor = 1, 1
	case http10:
		r.Major = 1
	default:
		return 0, versionFault(buf[i:])
	}
	if buf[i+8] != '\r' || buf[i+9] != '\n' {
		return 0, lineEndFault(buf[i+8:])
	}
	return i + 10, nil
}

// capitals reports whether m holds no small letter.
func capitals(m []byte) bool {
	for _, c := range m {
		if 'a' <= c && c <= 'z' {
			return false
		}
	}
	return true
}

// isStandard reports whether m is a method of RFC 9110 or PATCH in any case.
// Methods are case-sensitive, so gET is none of them; but a receiver that is
// less exact would take it for GET, and such a request has two readings.
func isStandard(m []byte) bool {
	for _, s := range [...]string{"get", "head", "post", "put", "delete", "connect", "options", "trace", "patch"} {
		if foldEqual(m, s) {
			return true
		}
	}
	return false
}

func targetFault(c byte) *Error {
	switch c {
	case '#':
		return errFragment
	case '\r':
		return errVersionOld
	case '\n':
		return errBareLF
	default:
		return errTarget
	}
}

// partialVersion judges fewer bytes than a version with its CRLF has, so that a
// client that ends its lines wrongly is told at once.
func partialVersion(b []byte) *Error {
	const want = "HTTP/"
	for i := range min(len(b), len(want)) {
		if b[i] != want[i] {
			return errVersion
		}
	}
	if len(b) < 9 {
		return nil
	}
	if v := binary.LittleEndian.Uint64(b); v != http11 && v != http10 {
		return versionFault(b)
	}
	if b[8] != '\r' {
		return lineEndFault(b[8:])
	}
	return nil
}

func lineEndFault(b []byte) *Error {
	switch b[0] {
	case '\n':
		return errBareLF
	case '\r':
		return errBareCR
	default:
		return errVersion
	}
}

// versionFault tells versions that exist elsewhere from garbage. b holds at
// least 9 bytes.
func versionFault(b []byte) *Error {
	if string(b[:5]) == "HTTP/" && class[b[5]]&class[b[7]]&digitChar != 0 && b[6] == '.' && b[8] == '\r' {
		return errVersionUnk
	}
	return errVersion
}

// finishRequest derives what the whole head says.
func finishRequest(r *message.Request, h *head) *Error {
	if e := requestHost(r, h); e != nil {
		return e
	}
	switch {
	case h.codings > 0:
		if e := h.codingFault(r.Minor); e != nil {
			return e
		}
		r.Body = message.Chunked
	case h.lengths > 0:
		n, e := h.bodyLength()
		if e != nil {
			return e
		}
		r.Body, r.ContentLength = message.Sized, n
		if len(h.length) > 1 && h.length[0] == '0' {
			r.Fields.Remove(h.lengthLine)
			appendLengthField(&r.Fields, n)
		}
	}
	content := r.Body == message.Chunked || r.ContentLength > 0
	if content && string(r.Method) == "TRACE" {
		return errTraceBody
	}
	if h.expec {
		if e := expectation(r, h, content); e != nil {
			return e
		}
	}
	r.ConnectionNamed = h.named
	r.Close = h.close
	if r.Minor == 0 {
		r.KeepAliveAsked = h.persist && !h.close
		r.Close = !r.KeepAliveAsked
	}
	r.WebSocket = h.upgrades > 0 && r.Minor == 1 && !content && h.websocket() && string(r.Method) == "GET"
	return nil
}

// expectation applies RFC 9110 section 10.1.1. An expectation that means
// nothing here must not reach a backend either.
func expectation(r *message.Request, h *head, content bool) *Error {
	switch {
	case r.Minor == 0:
		r.Fields.RemoveID(message.Expect)
	case h.badExpect:
		return errExpect
	case !content:
		r.Fields.RemoveID(message.Expect)
	default:
		r.ExpectContinue = true
	}
	return nil
}

// requestHost checks the Host field and settles the authority.
func requestHost(r *message.Request, h *head) *Error {
	if h.hosts != 1 {
		if h.hosts > 1 {
			return errHostTwice
		}
		if r.Minor != 0 {
			return errHostMissing
		}
		return nil
	}
	if authorityFault(h.host, false) != nil {
		return errHost
	}
	switch {
	case r.Authority == nil:
		r.Authority = h.host
	case r.Path != nil && string(r.Authority) != string(h.host): // absolute-form
		r.Fields.Remove(h.hostLine)
		r.Fields.AddBytes(message.Host, "Host", r.Authority)
	}
	return nil
}
