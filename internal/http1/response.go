// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"encoding/binary"

	"github.com/weirlb/weir/internal/message"
)

// ParseResponse reads one response head, interim or final, from the start of
// buf into r; toHEAD says that it answers a HEAD request. Otherwise it is like
// ParseRequest; faults are of reason bad_response.
func ParseResponse(buf []byte, lim *Limits, r *message.Response, toHEAD bool) (n int, err error) {
	n, e := parseResponse(buf, lim, r, toHEAD)
	if e != nil {
		return 0, e.fromBackend()
	}
	return n, nil
}

func parseResponse(buf []byte, lim *Limits, r *message.Response, toHEAD bool) (int, *Error) {
	fields := r.Fields
	*r = message.Response{Fields: fields}
	r.Fields.Reset(buf)
	i, e := parseStatusLine(buf, r)
	if e != nil {
		return 0, e
	}
	if i == 0 {
		if len(buf) >= lim.headerBytes() {
			return 0, errTooLarge
		}
		return 0, nil
	}
	var h head
	n, e := parseFields(buf, i, 0, lim, &r.Fields, &h)
	if e != nil || n == 0 {
		return 0, e
	}
	if e := finishResponse(r, &h, toHEAD); e != nil {
		return 0, e
	}
	return n, nil
}

// parseStatusLine reads HTTP-version SP 3DIGIT [ SP reason ] CRLF.
func parseStatusLine(buf []byte, r *message.Response) (n int, _ *Error) {
	const want = "HTTP/1."
	if len(buf) < 13 { // the shortest line without its LF
		for i := range min(len(buf), len(want)) {
			if buf[i] != want[i] {
				return 0, errStatusLine
			}
		}
		return 0, nil
	}
	switch binary.LittleEndian.Uint64(buf) {
	case http11:
		r.Major, r.Minor = 1, 1
	case http10:
		r.Major = 1
	default:
		return 0, errStatusLine
	}
	if buf[8] != ' ' || class[buf[9]]&class[buf[10]]&class[buf[11]]&digitChar == 0 || buf[9] == '0' {
		return 0, errStatusLine
	}
	r.Status = int(buf[9]-'0')*100 + int(buf[10]-'0')*10 + int(buf[11]-'0')
	i := 12
	if buf[i] == ' ' {
		i++
	} else if buf[i] != '\r' {
		return 0, statusFault(buf[i])
	}
	start := i
	for i = firstControl(buf, i); i < len(buf) && buf[i] == '\t'; {
		i = firstControl(buf, i+1)
	}
	if i == len(buf) {
		return 0, nil
	}
	if buf[i] != '\r' {
		return 0, statusFault(buf[i])
	}
	if i+1 == len(buf) {
		return 0, nil
	}
	if buf[i+1] != '\n' {
		return 0, errBareCR
	}
	r.Reason = buf[start:i:i]
	return i + 2, nil
}

func statusFault(c byte) *Error {
	if c == '\n' {
		return errBareLF
	}
	return errStatusLine
}

// finishResponse derives framing by RFC 9112 section 6.3.
func finishResponse(r *message.Response, h *head, toHEAD bool) *Error {
	r.ContentLength = -1
	r.ConnectionNamed = h.named
	r.Close = h.close || r.Minor == 0 && !h.persist
	r.KeepAlive = keepAliveTimeout(h.keepAlive)
	if h.codings > 0 {
		if e := h.codingFault(r.Minor); e != nil {
			return e
		}
	}
	if h.lengths > 0 {
		n, e := h.bodyLength()
		if e != nil {
			return e
		}
		r.ContentLength = n
		if len(h.length) > 1 && h.length[0] == '0' {
			r.Fields.Remove(h.lengthLine)
			appendLengthField(&r.Fields, n)
		}
	}
	switch {
	case r.Status < 200 || r.Status == 204:
		if h.codings > 0 || r.ContentLength > 0 {
			r.Close = true // announced content may follow and must not be read as an answer
		}
		dropFraming(r, h)
		r.ContentLength = -1
		if r.Status == 101 {
			if !h.upgradeNamed || h.upgrades == 0 || r.Minor == 0 {
				return errSwitch
			}
			r.WebSocket = h.websocket()
		}
	case r.Status == 304 || toHEAD:
		if h.codings > 0 {
			r.Fields.RemoveID(message.TransferEncoding)
		}
	case h.codings > 0:
		r.Body = message.Chunked
	case h.lengths > 0:
		r.Body = message.Sized
	default:
		r.Body, r.Close = message.UntilClose, true
	}
	return nil
}

func dropFraming(r *message.Response, h *head) {
	if h.codings > 0 {
		r.Fields.RemoveID(message.TransferEncoding)
	}
	if h.lengths > 0 {
		r.Fields.RemoveID(message.ContentLength)
	}
}

// keepAliveTimeout reads timeout=N of a Keep-Alive field. It is advice: what
// cannot be read is 0.
func keepAliveTimeout(value []byte) int64 {
	for rest, more := value, len(value) > 0; more; {
		var param []byte
		param, rest, more = bytes.Cut(rest, comma)
		name, v, ok := bytes.Cut(param, []byte{'='})
		v = trimSpace(v)
		if !ok || !foldEqual(trimSpace(name), "timeout") || len(v) > 9 {
			continue
		}
		if n, e := parseLength(v); e == nil {
			return n
		}
	}
	return 0
}
