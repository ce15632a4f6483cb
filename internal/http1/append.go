// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"strconv"

	"github.com/weirlb/weir/internal/message"
)

// AppendRequest appends the head of r as this hop sends it: the request line
// with Routed (Path when it is empty) and the query untouched, the remaining
// fields in the order and case in which they came, and what framing needs
// beyond them. Host is added in front when no Host field remains. Connection,
// Keep-Alive, Proxy-Connection and, but for a WebSocket, Upgrade belong to the
// hop: they are removed from r.Fields and written anew.
func AppendRequest(dst []byte, r *message.Request) []byte {
	dst = append(dst, r.Method...)
	dst = append(dst, ' ')
	switch {
	case r.Path == nil && len(r.Routed) == 0:
		dst = append(dst, r.Authority...) // CONNECT
	case len(r.Routed) > 0:
		dst = append(dst, r.Routed...)
	default:
		dst = append(dst, r.Path...)
	}
	if r.Query != nil {
		dst = append(dst, '?')
		dst = append(dst, r.Query...)
	}
	dst = append(dst, " HTTP/1.1\r\n"...)
	seen := settleFraming(&r.Fields, r.Body, r.ContentLength, r.WebSocket)
	if seen&seenHost == 0 {
		dst = append(dst, "Host: "...)
		dst = append(dst, r.Authority...)
		dst = append(dst, '\r', '\n')
	}
	dst = r.Fields.AppendWire(dst)
	dst = appendFraming(dst, seen, r.Body, r.ContentLength)
	switch {
	case r.WebSocket:
		dst = appendUpgrade(dst, seen)
	case seen&seenTE != 0:
		dst = append(dst, "Connection: TE\r\n"...) // RFC 9110 section 10.1.4
	}
	return append(dst, '\r', '\n')
}

// AppendResponse appends the head of r as it goes to an HTTP/1.1 peer whose
// request was no HEAD; fields are treated as by AppendRequest.
func AppendResponse(dst []byte, r *message.Response) []byte {
	dst = appendStatusLine(dst, r)
	body := r.Body
	if bodyless(r.Status) {
		body = message.NoBody
	}
	seen := settleFraming(&r.Fields, body, r.ContentLength, r.Status == 101)
	dst = r.Fields.AppendWire(dst)
	dst = appendFraming(dst, seen, body, r.ContentLength)
	switch {
	case r.Status == 101:
		dst = appendUpgrade(dst, seen)
	case r.Close:
		dst = append(dst, "Connection: close\r\n"...)
	}
	return append(dst, '\r', '\n')
}

// What settleFraming found among the fields that stay.
const (
	seenHost = 1 << iota
	seenLength
	seenCoding
	seenUpgrade
	seenDate
	seenTE
)

// settleFraming removes the fields that belong to one hop and those that
// contradict the framing, and reports which are there.
func settleFraming(f *message.Fields, body message.Body, length int64, upgrade bool) (seen uint8) {
	for i := range f.Len() {
		id := f.ID(i)
		if id == message.Other || id > message.Upgrade && id != message.Date || f.Removed(i) {
			continue
		}
		keep := true
		switch id {
		case message.Host:
			seen |= seenHost
		case message.Date:
			seen |= seenDate
		case message.TE:
			seen |= seenTE
		case message.Connection, message.KeepAlive, message.ProxyConnection:
			keep = false
		case message.Upgrade:
			if keep = upgrade; keep {
				seen |= seenUpgrade
			}
		case message.TransferEncoding:
			if keep = body == message.Chunked && seen&seenCoding == 0; keep {
				seen |= seenCoding
			}
		case message.ContentLength:
			n, e := parseLength(f.Value(i))
			switch body {
			case message.Sized:
				keep = e == nil && n == length && seen&seenLength == 0
			case message.NoBody: // HEAD and 304 announce what a GET would get
				keep = e == nil && seen&seenLength == 0
			default:
				keep = false
			}
			if keep {
				seen |= seenLength
			}
		}
		if !keep {
			f.Remove(i)
		}
	}
	return seen
}

func appendFraming(dst []byte, seen uint8, body message.Body, length int64) []byte {
	switch {
	case body == message.Sized && seen&seenLength == 0:
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, length, 10)
		dst = append(dst, '\r', '\n')
	case (body == message.Chunked || body == message.Streamed) && seen&seenCoding == 0:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	return dst
}

func appendUpgrade(dst []byte, seen uint8) []byte {
	if seen&seenUpgrade == 0 {
		dst = append(dst, "Upgrade: websocket\r\n"...)
	}
	return append(dst, "Connection: Upgrade\r\n"...)
}

func appendLengthField(f *message.Fields, n int64) {
	var digits [20]byte
	f.AddBytes(message.ContentLength, "Content-Length", strconv.AppendInt(digits[:0], n, 10))
}

// bodyless reports the statuses whose messages end with their head.
func bodyless(status int) bool { return status < 200 || status == 204 || status == 304 }

func appendStatusLine(dst []byte, r *message.Response) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = append(dst, byte('0'+r.Status/100%10), byte('0'+r.Status/10%10), byte('0'+r.Status%10), ' ')
	if len(r.Reason) > 0 {
		dst = append(dst, r.Reason...)
	} else {
		dst = append(dst, reasonPhrase(r.Status)...)
	}
	return append(dst, '\r', '\n')
}

// reasonPhrase returns the phrase of the codes that weir answers with itself;
// others are passed on as the backend wrote them.
func reasonPhrase(status int) string {
	switch status {
	case 100:
		return "Continue"
	case 101:
		return "Switching Protocols"
	case 103:
		return "Early Hints"
	case 200:
		return "OK"
	case 204:
		return "No Content"
	case 301:
		return "Moved Permanently"
	case 302:
		return "Found"
	case 304:
		return "Not Modified"
	case 307:
		return "Temporary Redirect"
	case 308:
		return "Permanent Redirect"
	case 400:
		return "Bad Request"
	case 403:
		return "Forbidden"
	case 404:
		return "Not Found"
	case 405:
		return "Method Not Allowed"
	case 408:
		return "Request Timeout"
	case 413:
		return "Content Too Large"
	case 414:
		return "URI Too Long"
	case 417:
		return "Expectation Failed"
	case 421:
		return "Misdirected Request"
	case 429:
		return "Too Many Requests"
	case 431:
		return "Request Header Fields Too Large"
	case 500:
		return "Internal Server Error"
	case 502:
		return "Bad Gateway"
	case 503:
		return "Service Unavailable"
	case 504:
		return "Gateway Timeout"
	case 505:
		return "HTTP Version Not Supported"
	default:
		return ""
	}
}
