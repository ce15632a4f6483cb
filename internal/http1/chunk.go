// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"

	"github.com/weirlb/weir/internal/message"
)

type chunkState uint8

// States of a ChunkReader, in the order of the grammar (RFC 9112 section 7.1).
const (
	sizeFirst   chunkState = iota // first digit of a chunk size
	sizeMore                      // further digits, ";" or CR
	extFirst                      // first character of an extension's name
	extName                       // the rest of it
	extValFirst                   // behind "="
	extVal                        // a token
	extQuoted                     // inside a quoted string
	extEscape                     // behind its backslash
	extClosed                     // behind its closing quote
	sizeLF                        // LF of the size line
	chunkData                     // content
	dataCR                        // CR behind content
	dataLF                        // its LF
	trailerNext                   // start of the trailer section
	trailerLine                   // inside it
	lastLF                        // LF of the empty line that ends it
	chunksDone
)

// ChunkReader takes the chunked coding off a body (RFC 9112 section 7.1), fed
// with pieces of any length. Extensions are checked, bounded and dropped.
// The zero value is ready for use; it is not safe for concurrent use.
type ChunkReader struct {
	state   chunkState
	digits  int   // of the current size
	line    int   // bytes of the current size line
	ext     int   // bytes of extensions so far
	left    int64 // content of the current chunk
	trailer []byte
	fields  message.Fields
}

// Reset makes the reader ready for another body; its memory is kept.
func (c *ChunkReader) Reset() {
	c.fields.Reset(nil)
	*c = ChunkReader{trailer: c.trailer[:0], fields: c.fields}
}

// Done reports that the last chunk and the trailer section have been read.
func (c *ChunkReader) Done() bool { return c.state == chunksDone }

// Trailers returns the trailer fields, complete once Done. Fields that concern
// framing, routing, identity or authentication are left out (RFC 9110 section
// 6.5.1). They are valid until Reset.
func (c *ChunkReader) Trailers() *message.Fields { return &c.fields }

// Next consumes n bytes of buf and returns the content found in them, a part of
// buf, at most one chunk's. Less than all of buf is consumed only when content
// was found or the body ended. The error is an *Error of reason bad_request.
func (c *ChunkReader) Next(buf []byte) (data []byte, n int, err error) {
	data, n, e := c.next(buf)
	if e != nil {
		return nil, n, e
	}
	return data, n, nil
}

func (c *ChunkReader) next(buf []byte) (data []byte, n int, _ *Error) {
	for n < len(buf) {
		switch c.state {
		case chunkData:
			k := int(min(c.left, int64(len(buf)-n)))
			data = buf[n : n+k]
			if c.left -= int64(k); c.left == 0 {
				c.state = dataCR
			}
			return data, n + k, nil
		case trailerLine:
			k, e := c.trailerBytes(buf[n:])
			if e != nil {
				return nil, n, e
			}
			n += k
		case chunksDone:
			return nil, n, nil
		default:
			if e := c.step(buf[n]); e != nil {
				return nil, n, e
			}
			if c.state != trailerLine { // its first byte is taken again
				n++
			}
		}
	}
	return nil, n, nil
}

// step takes one byte of a size line or of the ends of lines.
func (c *ChunkReader) step(b byte) *Error {
	switch c.state {
	case sizeFirst, sizeMore:
		return c.size(b)
	case sizeLF:
		if b != '\n' {
			return errBareCR
		}
		c.line = 0
		if c.state = chunkData; c.left == 0 {
			c.state = trailerNext
		}
	case dataCR:
		if b != '\r' {
			return errChunkEnd
		}
		c.state = dataLF
	case dataLF:
		if b != '\n' {
			return errChunkEnd
		}
		c.state, c.digits, c.left = sizeFirst, 0, 0
	case trailerNext:
		if b == '\r' {
			c.state = lastLF
		} else {
			c.state = trailerLine
		}
	case lastLF:
		if b != '\n' {
			return errBareCR
		}
		c.state = chunksDone
	default:
		return c.extension(b)
	}
	return nil
}

// size takes a byte of the hexadecimal size or the one that ends it.
func (c *ChunkReader) size(b byte) *Error {
	if class[b]&hexChar != 0 {
		v := int64(b & 0x0f)
		if b > '9' {
			v += 9
		}
		if c.digits++; c.digits > 16 || c.left > maxChunk>>4 {
			return errChunkSize
		}
		c.left = c.left<<4 | v
		c.state = sizeMore
		return nil
	}
	switch {
	case b == '\n':
		return errBareLF
	case c.state == sizeFirst:
		return errChunkSize
	case b == '\r':
		c.state = sizeLF
	case b == ';':
		c.state, c.line = extFirst, c.digits+1
	default:
		return errChunkSize
	}
	return nil
}

// extension takes a byte of
//
//	*( ";" token [ "=" ( token / quoted-string ) ] ) CR
func (c *ChunkReader) extension(b byte) *Error {
	c.line++
	if c.ext++; c.line > maxChunkLine || c.ext > maxExtensions {
		return errChunkLong
	}
	token := class[b]&tokenChar != 0
	control := b < ' ' && b != '\t' || b == 0x7f
	switch {
	case b == '\n':
		return errBareLF
	case c.state == extFirst && token:
		c.state = extName
	case c.state == extName && token, c.state == extVal && token:
	case c.state == extName && b == '=':
		c.state = extValFirst
	case c.state == extValFirst && token:
		c.state = extVal
	case c.state == extValFirst && b == '"':
		c.state = extQuoted
	case c.state == extQuoted && b == '"':
		c.state = extClosed
	case c.state == extQuoted && b == '\\':
		c.state = extEscape
	case c.state == extQuoted && !control:
	case c.state == extEscape && !control:
		c.state = extQuoted
	case b == ';' && c.extensionMayEnd():
		c.state = extFirst
	case b == '\r' && c.extensionMayEnd():
		c.state = sizeLF
	default:
		return errChunkExt
	}
	return nil
}

func (c *ChunkReader) extensionMayEnd() bool {
	return c.state == extName || c.state == extVal || c.state == extClosed
}

// trailerBytes gathers trailer lines until the empty one and then reads them
// all. It consumes to the end of the line or of the bytes there are.
func (c *ChunkReader) trailerBytes(buf []byte) (n int, _ *Error) {
	n = len(buf)
	lf := bytes.IndexByte(buf, '\n')
	if lf >= 0 {
		n = lf + 1
	}
	if len(c.trailer)+n > maxTrailers {
		return 0, errTooLarge
	}
	c.trailer = append(c.trailer, buf[:n]...)
	if lf < 0 {
		return n, nil
	}
	if len(c.trailer) < 2 || c.trailer[len(c.trailer)-2] != '\r' {
		return 0, errBareLF
	}
	if !bytes.HasSuffix(c.trailer, []byte("\r\n\r\n")) {
		return n, nil
	}
	return n, c.finishTrailers()
}

func (c *ChunkReader) finishTrailers() *Error {
	c.fields.Reset(c.trailer)
	lim := Limits{MaxHeaderBytes: maxTrailers}
	var h head
	end, e := parseFields(c.trailer, 0, 0, &lim, &c.fields, &h)
	if e != nil {
		return e
	}
	if end != len(c.trailer) {
		return errBareCR
	}
	FilterTrailers(&c.fields)
	c.state = chunksDone
	return nil
}

// notInTrailer names fields without an id of their own that change how the
// message is understood. (All fields with an id do, but for load reports.)
func notInTrailer(name []byte) bool {
	switch len(name) {
	case 5:
		return nameEqual(name, "range")
	case 13:
		return nameEqual(name, "content-range") || nameEqual(name, "cache-control")
	case 16:
		return nameEqual(name, "content-encoding") || nameEqual(name, "www-authenticate")
	}
	return false
}

// lastChunk ends a chunked body without trailers.
const lastChunk = "0\r\n\r\n"

// appendChunk appends p as one chunk; nothing for an empty p, which would read
// as the end.
func appendChunk(dst, p []byte) []byte {
	if len(p) == 0 {
		return dst
	}
	dst = appendChunkSize(dst, len(p))
	dst = append(dst, p...)
	return append(dst, '\r', '\n')
}

func appendChunkSize(dst []byte, n int) []byte {
	const digits = "0123456789abcdef"
	shift := 0
	for n>>shift > 15 {
		shift += 4
	}
	for ; shift >= 0; shift -= 4 {
		dst = append(dst, digits[n>>shift&15])
	}
	return append(dst, '\r', '\n')
}
