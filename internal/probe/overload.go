// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"time"

	"github.com/weirlb/weir/health"
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
	if head.Body == message.Sized && head.ContentLength > maxWord || head.Body == message.NoBody {
		return nil
	}
	if soon := time.Now().Add(patience); soon.Before(deadline) && c.SetReadDeadline(soon) != nil {
		return nil
	}
	r, err := newContent(c, head, rest)
	buf := make([]byte, 2*maxWord)
	for err == nil && !r.whole && len(r.got) <= maxWord {
		err = r.more(buf)
	}
	if err != nil || len(r.got) > maxWord {
		return nil
	}
	return r.got
}
