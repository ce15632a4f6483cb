// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// maxContent bounds the content that a Match looks at.
const maxContent = 64 << 10

// Match is what the content of an answer must contain in its first 64 KiB: the
// text, or what the pattern matches where there is one.
type Match struct {
	Text    string
	Pattern *regexp.Regexp // nil: Text
	// Bytes has the pattern match bytes: \xNN, and any character up to U+00FF, is the
	// byte of that number.
	Bytes bool
}

// String returns the match as it is configured.
func (m *Match) String() string {
	if m.Pattern != nil {
		return "/" + m.Pattern.String() + "/"
	}
	return strconv.Quote(m.Text)
}

func (m *Match) in(content []byte) bool {
	switch {
	case m.Pattern != nil && m.Bytes:
		return m.Pattern.MatchString(characters(content))
	case m.Pattern != nil:
		return m.Pattern.Match(content)
	}
	return bytes.Contains(content, []byte(m.Text))
}

// characters has a character for each byte, of its number (ISO 8859-1).
func characters(b []byte) string {
	out := make([]rune, len(b))
	for i, c := range b {
		out[i] = rune(c)
	}
	return string(out)
}

// content reads the content of an answer, of which rest has come already.
type content struct {
	c      *conn
	head   *message.Response
	chunks http1.ChunkReader
	got    []byte // so far
	whole  bool   // that is all
}

func newContent(c *conn, head *message.Response, rest []byte) (*content, error) {
	r := &content{c: c, head: head}
	r.whole = head.Body == message.NoBody || head.Body == message.Sized && head.ContentLength == 0
	return r, r.take(rest)
}

// take adds what has come from the connection.
func (r *content) take(data []byte) error {
	switch r.head.Body {
	case message.Chunked:
		for len(data) > 0 && !r.chunks.Done() {
			piece, n, err := r.chunks.Next(data)
			if err != nil {
				return err
			}
			r.got, data = append(r.got, piece...), data[n:]
		}
		r.whole = r.chunks.Done()
	case message.Sized:
		left := r.head.ContentLength - int64(len(r.got))
		r.got = append(r.got, data[:min(int64(len(data)), left)]...)
		r.whole = int64(len(r.got)) == r.head.ContentLength
	case message.UntilClose:
		r.got = append(r.got, data...)
	}
	return nil
}

// more waits for the next of it. The end of the connection is the end of the
// content only where nothing else marks it.
func (r *content) more(buf []byte) error {
	n, err := r.c.Read(buf)
	if n > 0 {
		if bad := r.take(buf[:n]); bad != nil {
			return bad
		}
	}
	switch {
	case r.whole || n > 0:
		return nil
	case errors.Is(err, io.EOF) && r.head.Body == message.UntilClose:
		r.whole = true
		return nil
	case err == nil:
		return io.ErrNoProgress
	}
	return err
}

// examine judges the content of an answer whose status is expected.
func (p *Prober) examine(c *conn, j *job, head *message.Response, rest []byte) verdict {
	h := j.target.HTTP
	v := verdict{status: head.Status}
	if h.LoadReports {
		v.load, v.hasLoad = loadOf(&head.Fields)
	}
	r, err := newContent(c, head, rest)
	buf := make([]byte, 4096)
	for err == nil && !r.whole && len(r.got) < maxContent {
		// A literal that is found needs no more of a long answer, which may be
		// one without an end; a pattern may look at the end.
		if len(r.got) > maxWord && h.Body.Pattern == nil && h.Body.in(r.got) {
			break
		}
		err = r.more(buf)
	}
	if err != nil {
		var malformed *http1.Error
		if errors.As(err, &malformed) {
			v := failed(health.CauseMalformed, detail(err))
			v.status = head.Status
			return v
		}
		lost := p.lost(err, j, "the answer's content was incomplete")
		lost.status = head.Status
		return lost
	}
	got := r.got[:min(len(r.got), maxContent)]
	switch {
	case h.Overload && r.whole && string(bytes.TrimSpace(got)) == overloadedWord:
		v.outcome, v.text = health.Overloaded, "overloaded: the answer says so"
	case !h.Body.in(got):
		v.outcome, v.cause = health.NotReady, health.CauseBody
		v.text = oneLine("body: " + excerpt(got) + " does not contain " + h.Body.String())
		if !r.whole || len(r.got) > len(got) {
			v.text += " in its first 64KiB"
		}
	}
	return v
}

// excerpt quotes the beginning of an answer's content.
func excerpt(b []byte) string {
	const most = 60
	if len(b) == 0 {
		return "an empty answer"
	}
	if len(b) > most {
		return strconv.Quote(string(b[:most])) + "..."
	}
	return strconv.Quote(string(b))
}
