// SPDX-License-Identifier: Apache-2.0

package route

import (
	"bytes"

	"github.com/weirlb/weir/internal/message"
)

// Error says why a request cannot be routed at all. It is never returned for a
// request that merely matches no rule.
type Error struct {
	Reason message.Reason // BadRequest
	Detail string         // for the log, never for the client
}

// Error returns the detail.
func (e *Error) Error() string { return e.Detail }

// The errors of paths, shared so that a hostile client costs no allocation.
var (
	errNotAbsolute = &Error{message.BadRequest, "the path does not start with a slash"}
	errEscape      = &Error{message.BadRequest, "invalid percent escape in the path"}
	errSlash       = &Error{message.BadRequest, "encoded slash in the path"}
	errBackslash   = &Error{message.BadRequest, "backslash in the path"}
	errNUL         = &Error{message.BadRequest, "NUL in the path"}
)

// NormalizePath returns the normal form of a path (RFC 3986 section 6.2.2):
//
//   - escapes of unreserved characters are decoded (`%7E` becomes `~`), the
//     hex digits of all other escapes are in upper case;
//   - runs of slashes become one slash;
//   - then `.` and `..` segments are resolved (section 5.2.4); `..` at the root
//     stays at the root.
//
// An encoded slash, a backslash (literal or encoded), an encoded or literal NUL,
// an escape that is not two hex digits and a path that does not start with `/`
// have no normal form: the error is an *Error. An empty path is "/".
//
// The result is never longer than the path, and normalising it again changes
// nothing. When the path is normal already it is returned itself, changed is
// false and dst is not used; otherwise the result is appended to dst[:0].
func NormalizePath(dst, path []byte) (out []byte, changed bool, err error) {
	if isPlain(path) {
		return path, false, nil
	}
	out, e := rewrite(dst[:0], path, false)
	if e != nil {
		return nil, false, e
	}
	if bytes.Equal(out, path) {
		return path, false, nil
	}
	return out, true, nil
}

// isPlain reports whether the path is certainly normal: no escapes, nothing to
// resolve. This is the usual case and the only one that is fast.
func isPlain(path []byte) bool {
	if len(path) == 0 || path[0] != '/' {
		return false
	}
	prev := byte(0)
	for _, c := range path {
		switch c {
		case '%', '\\', 0:
			return false
		case '/', '.':
			// `//` and `/.` need a closer look; the latter may be `/.well-known`.
			if prev == '/' {
				return false
			}
		}
		prev = c
	}
	return true
}

var rootPath = []byte("/")

// rewrite appends the normal form of path to dst, which is empty. With lenient
// it reads the path as the most careless backend would: encoded slashes and
// backslashes are separators, bad escapes are text.
func rewrite(dst, path []byte, lenient bool) ([]byte, *Error) {
	if len(path) == 0 {
		return append(dst, rootPath...), nil
	}
	if path[0] != '/' && !lenient {
		return nil, errNotAbsolute
	}
	out := append(dst, '/')
	seg := 1 // where the current segment starts in out
	for i := 0; i < len(path); {
		c, size, escaped, e := char(path[i:], lenient)
		if e != nil {
			return nil, e
		}
		i += size
		switch {
		case escaped:
			out = append(out, '%', upper(path[i-2]), upper(path[i-1]))
		case c == '/':
			out = endSegment(out, seg)
			if out[len(out)-1] != '/' {
				out = append(out, '/')
			}
			seg = len(out)
		default:
			out = append(out, c)
		}
	}
	return endSegment(out, seg), nil
}

// char reads one character of a path: its byte, how many bytes of the path it
// takes, and whether it must stay an escape.
func char(p []byte, lenient bool) (c byte, size int, escaped bool, err *Error) {
	c = p[0]
	switch {
	case c == '\\' && lenient:
		return '/', 1, false, nil
	case c == '\\':
		return 0, 0, false, errBackslash
	case c == 0 && !lenient:
		return 0, 0, false, errNUL
	case c != '%':
		return c, 1, false, nil
	}
	if len(p) < 3 || !isHex(p[1]) || !isHex(p[2]) {
		if lenient {
			return '%', 1, false, nil
		}
		return 0, 0, false, errEscape
	}
	c = unhex(p[1])<<4 | unhex(p[2])
	switch {
	case unreserved(c):
		return c, 3, false, nil
	case lenient && (c == '/' || c == '\\'):
		return '/', 3, false, nil
	case lenient:
		return c, 3, true, nil
	case c == '/':
		return 0, 0, false, errSlash
	case c == '\\':
		return 0, 0, false, errBackslash
	case c == 0:
		return 0, 0, false, errNUL
	default:
		return c, 3, true, nil
	}
}

// endSegment resolves the segment out[seg:] when it is a dot segment. out is
// everything so far and starts with a slash.
func endSegment(out []byte, seg int) []byte {
	switch string(out[seg:]) {
	case ".":
		return out[:seg]
	case "..":
		out = out[:seg]
		if len(out) == 1 {
			return out // `..` at the root stays there
		}
		// out ends in the slash behind the segment to drop.
		return out[:bytes.LastIndexByte(out[:len(out)-1], '/')+1]
	default:
		return out
	}
}

// unreserved is RFC 3986 section 2.3.
func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '.' || c == '_' || c == '~'
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	default:
		return c - 'a' + 10
	}
}

func upper(c byte) byte {
	if 'a' <= c && c <= 'z' {
		return c &^ 0x20
	}
	return c
}
