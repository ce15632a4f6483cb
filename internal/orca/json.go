// SPDX-License-Identifier: Apache-2.0

package orca

import "bytes"

// parseJSON reads a report in protobuf's JSON mapping: an object whose keys are
// in snake or camel case, with numbers as such or in strings. What is not known
// is passed over, but must be JSON.
func parseJSON(b []byte) (Report, bool) {
	s := scanner{b: b}
	var r Report
	var seen [3]bool
	if !s.next('{') {
		return Report{}, false
	}
	for empty := s.next('}'); !empty; {
		name, ok := s.text()
		if !ok || !s.next(':') {
			return Report{}, false
		}
		to := r.metric(name)
		switch {
		case to == nil:
			ok = s.skip(1)
		case !first(&r, to, &seen):
			ok = false
		default:
			*to, ok = s.number()
		}
		if !ok {
			return Report{}, false
		}
		if s.next('}') {
			break
		}
		if !s.next(',') {
			return Report{}, false
		}
	}
	s.space()
	if len(s.b) > 0 {
		return Report{}, false
	}
	return r, true
}

// maxDepth bounds how deep values may be nested; a report has two levels.
const maxDepth = 8

// scanner goes through JSON text (RFC 8259).
type scanner struct{ b []byte }

func (s *scanner) space() { s.b = bytes.TrimLeft(s.b, " \t\r\n") }

// next passes one structural character, if it is there.
func (s *scanner) next(c byte) bool {
	s.space()
	if len(s.b) == 0 || s.b[0] != c {
		return false
	}
	s.b = s.b[1:]
	return true
}

// text returns a string as it is written, escapes included.
func (s *scanner) text() ([]byte, bool) {
	if !s.next('"') {
		return nil, false
	}
	for i := 0; i < len(s.b); i++ {
		switch c := s.b[i]; {
		case c == '"':
			t := s.b[:i]
			s.b = s.b[i+1:]
			return t, true
		case c < ' ':
			return nil, false
		case c == '\\':
			n := escapeLen(s.b[i:])
			if n == 0 {
				return nil, false
			}
			i += n - 1
		}
	}
	return nil, false
}

// escapeLen returns the length of an escape, 0 when it is none.
func escapeLen(b []byte) int {
	switch {
	case len(b) > 1 && bytes.IndexByte([]byte(`"\/bfnrt`), b[1]) >= 0:
		return 2
	case len(b) > 5 && b[1] == 'u' && len(bytes.Trim(b[2:6], "0123456789abcdefABCDEF")) == 0:
		return 6
	}
	return 0
}

// number returns the value of a number, of a string that holds one, or of null,
// which is 0.
func (s *scanner) number() (float64, bool) {
	s.space()
	if len(s.b) > 0 && s.b[0] == '"' {
		t, ok := s.text()
		if !ok {
			return 0, false
		}
		return number(t)
	}
	if s.word("null") {
		return 0, true
	}
	n := numberLen(s.b)
	v, ok := number(s.b[:n])
	s.b = s.b[n:]
	return v, ok
}

func (s *scanner) word(w string) bool {
	if len(s.b) < len(w) || string(s.b[:len(w)]) != w {
		return false
	}
	s.b = s.b[len(w):]
	return true
}

// skip passes over one value of any kind.
func (s *scanner) skip(depth int) bool {
	s.space()
	switch {
	case len(s.b) == 0 || depth > maxDepth:
		return false
	case s.b[0] == '"':
		_, ok := s.text()
		return ok
	case s.b[0] == '{':
		return s.skipAll('}', true, depth)
	case s.b[0] == '[':
		return s.skipAll(']', false, depth)
	case s.word("true"), s.word("false"), s.word("null"):
		return true
	}
	n := numberLen(s.b)
	s.b = s.b[n:]
	return n > 0
}

// skipAll passes over an object or a list.
func (s *scanner) skipAll(end byte, keys bool, depth int) bool {
	s.b = s.b[1:]
	if s.next(end) {
		return true
	}
	for {
		if keys {
			if _, ok := s.text(); !ok || !s.next(':') {
				return false
			}
		}
		if !s.skip(depth + 1) {
			return false
		}
		if s.next(end) {
			return true
		}
		if !s.next(',') {
			return false
		}
	}
}
