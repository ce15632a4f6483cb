// SPDX-License-Identifier: Apache-2.0

package weirtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Patience bounds every wait of a Conn, so that a test fails instead of
// hanging.
const Patience = 10 * time.Second

// Message is a message as it came off the wire.
type Message struct {
	Start   string   // request line or status line
	Lines   []string // field lines as they came, without CRLF
	Body    string   // content without framing
	Trailer []string // trailer lines
	Torn    bool     // the connection ended or was reset within the message
	Err     error    // how, when Torn
}

// Head returns the head's bytes, with its CRLFs.
func (m *Message) Head() string {
	return m.Start + "\r\n" + strings.Join(append(m.Lines[:len(m.Lines):len(m.Lines)], "", ""), "\r\n")
}

// Get returns the value of the first field with the name, in any case.
func (m *Message) Get(name string) string {
	if v := m.Values(name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Values returns the values of all fields with the name, in order.
func (m *Message) Values(name string) (values []string) {
	for _, l := range m.Lines {
		if n, v, ok := strings.Cut(l, ":"); ok && strings.EqualFold(n, name) {
			values = append(values, strings.TrimSpace(v))
		}
	}
	return values
}

// Has reports whether a field with the name is there.
func (m *Message) Has(name string) bool { return len(m.Values(name)) > 0 }

// Method returns a request's method.
func (m *Message) Method() string { w, _, _ := strings.Cut(m.Start, " "); return w }

// Target returns a request's target.
func (m *Message) Target() string {
	if w := strings.Split(m.Start, " "); len(w) > 1 {
		return w[1]
	}
	return ""
}

// Status returns an answer's status code, 0 when there is none.
func (m *Message) Status() int {
	if w := strings.Split(m.Start, " "); len(w) > 1 {
		if n, err := strconv.Atoi(w[1]); err == nil {
			return n
		}
	}
	return 0
}

// Conn is one end of a connection. Its methods fail the test rather than return
// errors, except where an error is what a test waits for. One goroutine reads
// and one writes.
type Conn struct {
	net.Conn
	N int // number of the connection on its backend, from 0

	tb      testing.TB
	br      *bufio.Reader
	backend *Backend // nil on the client's side
}

// Dial connects to addr. The connection is closed with the test.
func Dial(tb testing.TB, addr string) *Conn {
	tb.Helper()
	c, err := net.DialTimeout("tcp", addr, Patience)
	if err != nil {
		tb.Fatalf("dial %s: %v", addr, err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return Wrap(tb, c)
}

// Wrap makes a Conn of a connection that somebody else closes.
func Wrap(tb testing.TB, c net.Conn) *Conn {
	return &Conn{Conn: c, tb: tb, br: bufio.NewReader(c)}
}

// Send writes bytes as they are.
func (c *Conn) Send(text string) {
	c.tb.Helper()
	_ = c.SetWriteDeadline(time.Now().Add(Patience))
	if _, err := io.WriteString(c.Conn, text); err != nil {
		c.tb.Errorf("send: %v", err)
	}
}

// Try writes bytes and returns what became of it, for peers that may be gone.
func (c *Conn) Try(text string) error {
	_ = c.SetWriteDeadline(time.Now().Add(Patience))
	_, err := io.WriteString(c.Conn, text)
	return err
}

// Sendf is Send with formatting.
func (c *Conn) Sendf(format string, args ...any) {
	c.tb.Helper()
	c.Send(fmt.Sprintf(format, args...))
}

// Reset closes so that the peer sees RST.
func (c *Conn) Reset() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// CloseWrite ends the sending half.
func (c *Conn) CloseWrite() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

// ReadHead reads a head and leaves its content unread; nil when the connection
// ended or was reset before a byte of one.
func (c *Conn) ReadHead() *Message {
	_ = c.SetReadDeadline(time.Now().Add(Patience))
	m := &Message{}
	var err error
	if m.Start, err = c.line(); err != nil {
		if m.Start == "" {
			return nil
		}
		m.Torn, m.Err = true, err
		return m
	}
	m.Lines, m.Err = c.lines()
	m.Torn = m.Err != nil
	return m
}

// Request reads a request with its content; nil when none came.
func (c *Conn) Request() *Message {
	m := c.ReadHead()
	if m != nil && !m.Torn {
		c.content(m, false)
	}
	return m
}

// Content reads the content of a request whose head was read.
func (c *Conn) Content(m *Message) { c.content(m, false) }

// Answer reads the next answer, 1xx included, with its content; nil when none
// came. method is that of the request.
func (c *Conn) Answer(method string) *Message {
	m := c.ReadHead()
	if m == nil || m.Torn {
		return m
	}
	if s := m.Status(); method != "HEAD" && s >= 200 && s != 204 && s != 304 {
		c.content(m, true)
	}
	return m
}

// Final reads answers until one is final.
func (c *Conn) Final(method string) *Message {
	for {
		m := c.Answer(method)
		if m == nil || m.Status() >= 200 || m.Status() == 101 {
			return m
		}
	}
}

// content reads what follows a head.
func (c *Conn) content(m *Message, untilClose bool) {
	_ = c.SetReadDeadline(time.Now().Add(Patience))
	switch {
	case strings.EqualFold(m.Get("Transfer-Encoding"), "chunked"):
		m.Body, m.Trailer, m.Err = c.chunks()
	case m.Has("Content-Length"):
		var n int
		if n, m.Err = strconv.Atoi(m.Get("Content-Length")); m.Err == nil {
			m.Body, m.Err = c.bytes(n)
		}
	case untilClose:
		b, err := io.ReadAll(c.br)
		m.Body, m.Err = string(b), err
	}
	m.Torn = m.Err != nil
}

func (c *Conn) chunks() (body string, trailer []string, err error) {
	for {
		l, err := c.line()
		if err != nil {
			return body, nil, err
		}
		size, _, _ := strings.Cut(l, ";")
		n, err := strconv.ParseInt(size, 16, 32)
		if err != nil {
			return body, nil, err
		}
		if n == 0 {
			trailer, err = c.lines()
			return body, trailer, err
		}
		piece, err := c.bytes(int(n))
		body += piece
		if err != nil {
			return body, nil, err
		}
		if end, err := c.line(); err != nil || end != "" {
			return body, nil, errors.Join(err, fmt.Errorf("chunk ends with %q", end))
		}
	}
}

// Chunk reads one chunk of an answer; "" for the last one, whose trailers are
// left unread.
func (c *Conn) Chunk() (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(Patience))
	l, err := c.line()
	if err != nil {
		return "", err
	}
	n, err := strconv.ParseInt(l, 16, 32)
	if err != nil || n == 0 {
		return "", err
	}
	p, err := c.bytes(int(n))
	if err == nil {
		_, err = c.line()
	}
	return p, err
}

// Bytes reads exactly n bytes, or less with an error.
func (c *Conn) Bytes(n int) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(Patience))
	return c.bytes(n)
}

// End waits for the peer's end and returns what came before it and how it
// ended: nil for a clean end, the error of a reset otherwise.
func (c *Conn) End() (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(Patience))
	b, err := io.ReadAll(c.br)
	return string(b), err
}

func (c *Conn) bytes(n int) (string, error) {
	b := make([]byte, n)
	k, err := io.ReadFull(c.br, b)
	return string(b[:k]), err
}

func (c *Conn) line() (string, error) {
	l, err := c.br.ReadString('\n')
	if err != nil {
		return l, err
	}
	t, ok := strings.CutSuffix(l, "\r\n")
	if !ok {
		return l, fmt.Errorf("line %q does not end with CRLF", l)
	}
	return t, nil
}

func (c *Conn) lines() (lines []string, err error) {
	for {
		l, err := c.line()
		if err != nil || l == "" {
			return lines, err
		}
		lines = append(lines, l)
	}
}
