// SPDX-License-Identifier: Apache-2.0

package logline

import (
	"fmt"
	"strings"
)

// The forms with a name of their own. Common is that of the NCSA server, with
// the start of the request in UTC; Combined adds what Apache added.
const (
	Common   = `$client - - [$time_local] "$request" $status $bytes_out`
	Combined = Common + ` "$referer" "$user_agent"`
)

// Limits of a format.
const (
	maxFormat = 4096
	maxFields = 80
)

// Bytes says of each byte whether it stands for itself.
type Bytes [256]bool

// Piece is a part of a line: text, and behind it a value.
type Piece struct {
	Text   string
	Field  Field  // None: there is only text
	Header string // of Field Header: its name, in lower case
	Plain  *Bytes // the bytes of the value that need no escape
}

// Template is a format, ready to be filled in. It does not change.
type Template struct {
	Pieces []Piece
}

// Has reports whether the line shows the field.
func (t *Template) Has(f Field) bool {
	for i := range t.Pieces {
		if t.Pieces[i].Field == f {
			return true
		}
	}
	return false
}

// Error says why a format is none.
type Error struct {
	Name string // the unknown name behind a dollar; empty when it is something else
	What string
	Fix  string // empty for an unknown name
}

// Error implements error.
func (e *Error) Error() string {
	if e.Fix == "" {
		return e.What
	}
	return e.What + ": " + e.Fix
}

// Parse reads a format. The error, if there is one, is an *Error.
func Parse(format string) (*Template, error) {
	t, err := split(format)
	if err != nil {
		return nil, err
	}
	t.decide()
	return t, nil
}

func split(format string) (*Template, *Error) {
	if len(format) > maxFormat {
		return nil, &Error{What: fmt.Sprintf("the format has %d bytes", len(format)), Fix: fmt.Sprintf("at most %d are read", maxFormat)}
	}
	t := &Template{}
	var text strings.Builder
	count := 0
	for i := 0; i < len(format); {
		c := format[i]
		switch {
		case c != '$':
			if c < ' ' && c != '\t' || c == 0x7f {
				return nil, &Error{What: "the format has a control character", Fix: "each request has one line, which weir ends itself"}
			}
			text.WriteByte(c)
			i++
			continue
		case strings.HasPrefix(format[i:], "$$"):
			text.WriteByte('$')
			i += 2
			continue
		}
		name, end := nameAt(format, i+1)
		if name == "" {
			return nil, &Error{What: "a dollar is followed by no name", Fix: "write $$ for a dollar"}
		}
		f, header := find(name)
		switch {
		case f == None:
			return nil, &Error{Name: name, What: "$" + name + " is no value of a request"}
		case f == Header && Secret(header):
			return nil, &Error{What: "$" + name + " would write credentials into the log", Fix: "remove it"}
		}
		if count++; count > maxFields {
			return nil, &Error{What: fmt.Sprintf("the format has more than %d values", maxFields), Fix: "leave some out"}
		}
		t.Pieces = append(t.Pieces, Piece{Text: text.String(), Field: f, Header: header})
		text.Reset()
		i = end
	}
	if count == 0 {
		return nil, &Error{What: "the format has no value of a request in it", Fix: `write names with a dollar, as in $client "$request" $status`}
	}
	if text.Len() > 0 {
		t.Pieces = append(t.Pieces, Piece{Text: text.String()})
	}
	if strings.Count(format, `"`)%2 != 0 {
		return nil, &Error{What: "the format has a double quote that is not closed", Fix: "add the other one"}
	}
	return t, nil
}

// nameAt reads the name behind a dollar, with or without braces.
func nameAt(s string, i int) (name string, end int) {
	start, closing := i, false
	if i < len(s) && s[i] == '{' {
		start, closing = i+1, true
	}
	end = start
	for end < len(s) && nameByte(s[end]) {
		end++
	}
	name = s[start:end]
	if closing {
		if end >= len(s) || s[end] != '}' {
			return "", end
		}
		end++
	}
	return name, end
}

func nameByte(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
}

// decide gives each value the bytes that need no escape where it stands.
func (t *Template) decide() {
	bare := base()
	bare[' '] = false
	for i := 0; i < len(t.Pieces); {
		if !t.quotedAt(i) {
			if next := t.after(i); next != "" {
				bare.forbid(next[0])
			}
			if t.Pieces[i].Field != None {
				t.Pieces[i].Plain = bare // shared: each sees what the others add
			}
			i++
			continue
		}
		// The values that share these quotes.
		end := i + 1
		for end < len(t.Pieces) && t.Pieces[end].Field != None && !strings.Contains(t.Pieces[end].Text, `"`) {
			end++
		}
		inside := base()
		for j := i; j < end; j++ {
			if next := t.after(j); next != "" && j < end-1 {
				inside.forbid(next[0])
			}
			t.Pieces[j].Plain = inside
		}
		i = end
	}
}

// after is the text behind the value of piece i.
func (t *Template) after(i int) string {
	if i+1 < len(t.Pieces) {
		return t.Pieces[i+1].Text
	}
	return ""
}

// quotedAt reports whether the value of piece i stands between double quotes.
func (t *Template) quotedAt(i int) bool {
	n := 0
	for j := 0; j <= i; j++ {
		n += strings.Count(t.Pieces[j].Text, `"`)
	}
	return n%2 == 1 && t.Pieces[i].Field != None
}

func base() *Bytes {
	var b Bytes
	for c := 0x20; c < 0x7f; c++ {
		b[c] = c != '"' && c != '\\'
	}
	return &b
}

// forbid takes a byte away, unless escapes are made of it.
func (b *Bytes) forbid(c byte) {
	letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
	if !letter {
		b[c] = false
	}
}
