// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"

	"github.com/weirlb/weir/internal/message"
)

// head gathers what the fields of one head say about framing and the
// connection while they are read, so that nothing is searched for afterwards.
type head struct {
	hosts, lengths, codings, upgrades int

	host, length, coding, upgrade []byte
	hostLine, lengthLine          int // indices into the Fields

	keepAlive                                  []byte
	close, persist, upgradeNamed, named, expec bool
	badExpect                                  bool
}

// parseFields reads field lines from buf[i:] up to and with the empty line.
// n is the offset behind it, 0 when more bytes are needed. start is where the
// head began, for the limit.
func parseFields(buf []byte, i, start int, lim *Limits, f *message.Fields, h *head) (n int, _ *Error) {
	maxEnd, maxFields := start+lim.headerBytes(), lim.fields()
	for count := 0; i < len(buf); {
		if buf[i] == '\r' {
			if i+1 == len(buf) {
				break
			}
			if buf[i+1] != '\n' {
				return 0, errBareCR
			}
			if i+2 > maxEnd {
				return 0, errTooLarge
			}
			return i + 2, nil
		}
		nameStart, kind := i, uint8(0)
		for i < len(buf) {
			k := class[buf[i]]
			if k&tokenChar == 0 {
				break
			}
			kind |= k
			i++
		}
		if i == len(buf) {
			break
		}
		if buf[i] != ':' || i == nameStart {
			return 0, nameFault(buf[nameStart:i], buf[i:])
		}
		nameEnd := i
		valueStart, valueEnd, next, e := parseValue(buf, i+1)
		if e != nil {
			return 0, e
		}
		if next == 0 {
			break
		}
		if next > maxEnd {
			return 0, errTooLarge
		}
		if count++; count > maxFields {
			return 0, errTooMany
		}
		i = next
		id := FieldID(buf[nameStart:nameEnd])
		if kind&oddChar != 0 && id == message.Other {
			if id = lookalikeID(buf[nameStart:nameEnd]); id != message.Other && id != message.Lookalike {
				return 0, errLookalike
			}
		}
		f.AddWire(id, nameStart, nameEnd, valueStart, valueEnd, next)
		if id != message.Other && id <= message.TransferEncoding {
			untab(f, buf[nameEnd+1:valueStart], buf[valueEnd:next])
		}
		if id != message.Other && id <= message.Expect {
			if e := h.note(id, buf[valueStart:valueEnd], f.Len()-1); e != nil {
				return 0, e
			}
		}
	}
	if len(buf) >= maxEnd {
		return 0, errTooLarge
	}
	return 0, nil
}

// parseValue reads a field value that starts at i, behind the colon. next is
// the offset behind its CRLF, 0 when more bytes are needed.
func parseValue(buf []byte, i int) (start, end, next int, _ *Error) {
	for i < len(buf) && (buf[i] == ' ' || buf[i] == '\t') {
		i++
	}
	start = i
	for i = firstControl(buf, i); i < len(buf) && buf[i] == '\t'; {
		i = firstControl(buf, i+1)
	}
	if i == len(buf) {
		return 0, 0, 0, nil
	}
	if buf[i] != '\r' {
		if buf[i] == '\n' {
			return 0, 0, 0, errBareLF
		}
		return 0, 0, 0, errValue
	}
	if i+1 == len(buf) {
		return 0, 0, 0, nil
	}
	if buf[i+1] != '\n' {
		return 0, 0, 0, errBareCR
	}
	end = i
	for end > start && (buf[end-1] == ' ' || buf[end-1] == '\t') {
		end--
	}
	return start, end, i + 2, nil
}

// untab writes the last line of f anew when a tab stands before or behind its
// value. That is allowed (RFC 9110 section 5.5), but not every peer trims it: one
// that does not sees another host or length, or a coding that it does not know,
// where this hop has seen the content end.
func untab(f *message.Fields, before, behind []byte) {
	if bytes.IndexByte(before, '\t') < 0 && bytes.IndexByte(behind, '\t') < 0 {
		return
	}
	line := f.Len() - 1
	value := f.Value(line)
	f.Rewrite(line, func(dst []byte) []byte { return append(dst, value...) })
}

// nameFault tells what is wrong with a line whose name ends at rest[0].
func nameFault(name, rest []byte) *Error {
	switch c := rest[0]; {
	case c == '\n':
		return errBareLF
	case (c == ' ' || c == '\t') && len(name) == 0:
		return errFold
	case c == ' ' || c == '\t':
		return errNameSpace
	case c == ':':
		return errNameEmpty
	default:
		return errName
	}
}

// note records a field that concerns framing or the connection.
func (h *head) note(id message.FieldID, value []byte, line int) *Error {
	switch id {
	case message.Host:
		h.hosts++
		h.host, h.hostLine = value, line
	case message.ContentLength:
		h.lengths++
		h.length, h.lengthLine = value, line
	case message.TransferEncoding:
		h.codings++
		h.coding = value
	case message.Connection:
		return h.connection(value)
	case message.KeepAlive:
		h.keepAlive = value
	case message.Upgrade:
		h.upgrades++
		h.upgrade = value
	case message.Expect:
		h.expec = true
		h.badExpect = h.badExpect || !foldEqual(value, "100-continue")
	}
	return nil
}

// connection reads a list of connection options (RFC 9110 section 7.6.1).
func (h *head) connection(value []byte) *Error {
	for rest, more := value, true; more; {
		var option []byte
		option, rest, more = bytes.Cut(rest, comma)
		option = trimSpace(option)
		switch {
		case len(option) == 0: // an empty list element
		case foldEqual(option, "close"):
			h.close = true
		case foldEqual(option, "keep-alive"):
			h.persist = true
		case foldEqual(option, "upgrade"):
			h.upgradeNamed = true
		case !isToken(option):
			return errConnection
		default:
			h.named = true
		}
	}
	return nil
}

var comma = []byte{','}

// bodyLength reads Content-Length. Digits only; a list is not read as one
// value even where all members agree, because not every parser does.
func (h *head) bodyLength() (int64, *Error) {
	if h.lengths > 1 {
		return 0, errLengthTwice
	}
	return parseLength(h.length)
}

func parseLength(b []byte) (int64, *Error) {
	if len(b) == 0 || len(b) > 19 {
		return 0, errLength
	}
	n := uint64(0)
	for _, c := range b {
		if class[c]&digitChar == 0 {
			return 0, errLength
		}
		n = n*10 + uint64(c-'0')
	}
	if n > 1<<63-1 { // 19 digits do not overflow uint64
		return 0, errLength
	}
	return int64(n), nil
}

// codingFault checks that the message has exactly one coding, chunked, in a
// version that knows it, and no length.
func (h *head) codingFault(minor uint8) *Error {
	switch {
	case minor == 0:
		return errCodingOld
	case h.lengths > 0:
		return errBoth
	case h.codings > 1:
		return errCodingTwice
	case !foldEqual(h.coding, "chunked"):
		return errCoding
	}
	return nil
}

// websocket reports that the head asks for, or agrees to, exactly a WebSocket.
func (h *head) websocket() bool {
	return h.upgradeNamed && h.upgrades == 1 && foldEqual(h.upgrade, "websocket")
}
