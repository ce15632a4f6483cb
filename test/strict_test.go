// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// judge reads what a proxy put on the wire the way the strictest receiver
// would, and returns why it is unsafe, or "". It shares no code with weir. It
// is deliberately naive: one pass, no tolerance. complete says that the text
// must end on a message boundary.
func judge(wire []byte, request, toHEAD, complete bool) (messages int, unsafe string) {
	for len(wire) > 0 {
		n, why := judgeOne(wire, request, toHEAD)
		if why != "" {
			return messages, why
		}
		if n < 0 {
			if complete {
				return messages, "ends in the middle of a message"
			}
			return messages, ""
		}
		messages++
		wire = wire[n:]
	}
	return messages, ""
}

// judgeOne returns the length of the first message, -1 when it is cut off.
func judgeOne(wire []byte, request, toHEAD bool) (int, string) {
	end := bytes.Index(wire, []byte("\r\n\r\n"))
	if end < 0 {
		return -1, ""
	}
	lines := strings.Split(string(wire[:end]), "\r\n")
	for _, l := range lines {
		for _, c := range []byte(l) {
			if c < 0x20 && c != '\t' || c == 0x7f {
				return 0, fmt.Sprintf("control byte %#x in %q", c, l)
			}
		}
	}
	status := 0
	if request {
		if f := strings.Split(lines[0], " "); len(f) != 3 || !isToken(f[0]) || f[1] == "" || f[2] != "HTTP/1.1" {
			return 0, fmt.Sprintf("request line %q", lines[0])
		}
	} else {
		if len(lines[0]) < 12 || !strings.HasPrefix(lines[0], "HTTP/1.1 ") {
			return 0, fmt.Sprintf("status line %q", lines[0])
		}
		status, _ = strconv.Atoi(lines[0][9:12])
		if status < 100 || status > 599 {
			return 0, fmt.Sprintf("status line %q", lines[0])
		}
	}
	length, chunked, hosts, close := -1, false, 0, false
	for _, l := range lines[1:] {
		name, value, ok := strings.Cut(l, ":")
		if !ok || !isToken(name) {
			return 0, fmt.Sprintf("field line %q", l)
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "content-length":
			n, err := strconv.ParseUint(value, 10, 62)
			if err != nil || strconv.FormatUint(n, 10) != value || length >= 0 {
				return 0, fmt.Sprintf("length %q", l)
			}
			length = int(n)
		case "transfer-encoding":
			if !strings.EqualFold(value, "chunked") || chunked {
				return 0, fmt.Sprintf("coding %q", l)
			}
			chunked = true
		case "host":
			hosts++
		case "connection":
			close = close || strings.EqualFold(value, "close")
		}
		if n := strings.ReplaceAll(strings.ToLower(name), "_", "-"); n != strings.ToLower(name) && (n == "content-length" || n == "transfer-encoding" || n == "host") {
			return 0, fmt.Sprintf("look-alike %q", l)
		}
	}
	if length >= 0 && chunked {
		return 0, "two framings"
	}
	if request && hosts != 1 {
		return 0, fmt.Sprintf("%d Host fields", hosts)
	}
	body := wire[end+4:]
	switch {
	case !request && (toHEAD || status < 200 || status == 204 || status == 304):
		return end + 4, ""
	case chunked:
		n, why := judgeChunks(body)
		if n < 0 || why != "" {
			return n, why
		}
		return end + 4 + n, ""
	case length >= 0:
		if len(body) < length {
			return -1, ""
		}
		return end + 4 + length, ""
	case request:
		return end + 4, ""
	default:
		if !close {
			return 0, "an answer that ends with the connection does not say so"
		}
		return len(wire), ""
	}
}

// judgeChunks returns the length of a chunked body, -1 when it is cut off.
func judgeChunks(b []byte) (int, string) {
	at := 0
	for {
		eol := bytes.Index(b[at:], []byte("\r\n"))
		if eol < 0 {
			return -1, ""
		}
		size := string(b[at : at+eol])
		n, err := strconv.ParseUint(size, 16, 62)
		if err != nil || strings.ContainsAny(size, "+-_xX") {
			return 0, fmt.Sprintf("chunk size %q", size)
		}
		at += eol + 2
		if n == 0 {
			break
		}
		if uint64(len(b)-at) < n+2 {
			return -1, ""
		}
		at += int(n)
		if string(b[at:at+2]) != "\r\n" {
			return 0, "chunk without CRLF behind it"
		}
		at += 2
	}
	for { // trailers
		eol := bytes.Index(b[at:], []byte("\r\n"))
		if eol < 0 {
			return -1, ""
		}
		line := string(b[at : at+eol])
		at += eol + 2
		if line == "" {
			return at, ""
		}
		name, _, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) {
			return 0, fmt.Sprintf("trailer %q", line)
		}
		switch strings.ToLower(name) {
		case "content-length", "transfer-encoding", "host", "authorization", "x-forwarded-for":
			return 0, fmt.Sprintf("trailer %q", line)
		}
	}
}

func isToken(s string) bool {
	for _, c := range []byte(s) {
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}
