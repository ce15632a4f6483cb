// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"time"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/orca"
)

// overloadedWord is the content of an expected answer by which a backend says
// that it is alive and out of headroom (S1).
const overloadedWord = "overloaded"

// maxWord bounds the content that is looked at: the word and white space.
const maxWord = 64

// busy looks, after an expected answer's head, for what says that the backend
// is overloaded: its word decides here, its load report in the pool. rest is
// what has come of the content.
func (p *Prober) busy(c *conn, h *HTTP, head *message.Response, rest []byte, deadline time.Time) verdict {
	v := verdict{status: head.Status}
	if h.LoadReports {
		v.load, v.hasLoad = loadOf(&head.Fields)
	}
	if h.Overload && string(bytes.TrimSpace(word(c, head, rest, deadline))) == overloadedWord {
		v.outcome, v.text = health.Overloaded, "overloaded: the answer says so"
	}
	return v
}

// loadOf returns the utilization of an answer's load report.
func loadOf(f *message.Fields) (load float64, ok bool) {
	for i := range f.Len() {
		parse := orca.Parse
		switch f.ID(i) {
		case message.LoadReport:
		case message.LoadReportBin:
			parse = orca.ParseBinary
		default:
			continue
		}
		if r, good := parse(f.Value(i)); good {
			if load, ok = r.Utilization(); ok {
				return load, true
			}
		}
	}
	return 0, false
}

// word returns the content of an answer if it is short and comes soon; nil
// otherwise. That it does not come is no fault of the backend's: the head was the
// answer.
func word(c *conn, head *message.Response, rest []byte, deadline time.Time) []byte {
	var chunks http1.ChunkReader
	var out []byte
	switch {
	case head.Body == message.Sized && head.ContentLength > maxWord, head.Body == message.NoBody:
		return nil
	}
	if soon := time.Now().Add(patience); soon.Before(deadline) && c.SetReadDeadline(soon) != nil {
		return nil
	}
	buf := make([]byte, 2*maxWord)
	for {
		for head.Body == message.Chunked && len(rest) > 0 && !chunks.Done() {
			data, n, err := chunks.Next(rest)
			if err != nil || len(out) > maxWord {
				return nil
			}
			out, rest = append(out, data...), rest[n:]
		}
		if head.Body != message.Chunked {
			out, rest = append(out, rest...), nil
		}
		switch {
		case len(out) > maxWord:
			return nil
		case head.Body == message.Chunked && chunks.Done(), head.Body == message.Sized && int64(len(out)) >= head.ContentLength:
			return out
		}
		n, err := c.Read(buf)
		rest = buf[:n]
		if err != nil && n == 0 {
			if head.Body == message.UntilClose && !isTimeout(err) {
				return out
			}
			return nil
		}
	}
}
