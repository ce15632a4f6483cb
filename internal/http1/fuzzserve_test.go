// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// script is a connection whose peer says everything at once, delivered in
// pieces, and then ends its half.
type script struct {
	in     []byte
	piece  int // 0: as much as fits
	out    bytes.Buffer
	closed bool
}

func (s *script) Read(p []byte) (int, error) {
	if s.closed {
		return 0, net.ErrClosed
	}
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(s.in))
	if s.piece > 0 {
		n = min(n, s.piece)
	}
	copy(p, s.in[:n])
	s.in = s.in[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error) {
	if s.closed {
		return 0, net.ErrClosed
	}
	return s.out.Write(p)
}

func (s *script) Close() error                     { s.closed = true; return nil }
func (s *script) CloseWrite() error                { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// moving is what may differ between two runs: the time, and an invitation to
// send what has already come.
var moving = regexp.MustCompile(`Date: [^\r]*\r\n|HTTP/1\.1 100 Continue\r\n\r\n`)

// serveScript serves what a client says and returns the answers. Each tells the
// request it belongs to.
func serveScript(in []byte, piece int) (requests int, out string) {
	c := &script{in: bytes.Clone(in), piece: piece}
	s := &Server{Timeouts: times, Handler: func(c *ServerConn) {
		requests++
		r := c.Request()
		h := &message.Response{Status: 200, Fields: message.Fields{}}
		h.Fields.Add(message.Other, "X-Request", fmt.Sprintf("%s %q %q", r.Method, r.Target, r.Authority))
		var body []byte
		for {
			p, err := c.ReadBody()
			body = append(body, p...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				c.Abort()
				return
			}
		}
		h.Fields.Add(message.Other, "X-Content", fmt.Sprintf("%q", body))
		if err := c.WriteHead(h, nil, true); err != nil {
			c.Abort()
		}
	}}
	s.Serve(netconn.New(c), nil)
	s.Wait()
	return requests, moving.ReplaceAllString(c.out.String(), "")
}

// FuzzServe: the same bytes get the same answers however they arrive, and
// after the last answer nothing more is said.
func FuzzServe(f *testing.F) {
	for i, s := range requestSeeds {
		f.Add([]byte(crlf(s)), uint8(1))
		f.Add([]byte(crlf(s+requestSeeds[(i+5)%len(requestSeeds)])), uint8(i))
	}
	f.Fuzz(func(t *testing.T, raw []byte, piece uint8) {
		n, whole := serveScript(raw, 0)
		m, split := serveScript(raw, int(piece)%16+1)
		if n != m || whole != split {
			t.Fatalf("%q gets %d answers\n%q whole, %d\n%q split", raw, n, whole, m, split)
		}
		rest := []byte(whole)
		for len(rest) > 0 {
			var r message.Response
			k, err := ParseResponse(rest, &Limits{}, &r, true)
			if err != nil || k == 0 {
				t.Fatalf("%q gets an answer that cannot be read: %v: %q", raw, err, rest)
			}
			rest = rest[k:]
			if r.Close && bytes.Contains(rest, []byte("\r\nX-Request: ")) {
				t.Fatalf("%q: something follows the last answer: %q", raw, whole)
			}
			if r.Close {
				break
			}
		}
	})
}
