// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/orca"
	"github.com/weirlb/weir/pool"
)

// signals is what an answer says about how busy its backend is. The pool decides
// what of it counts.
type signals struct {
	asked   bool          // 503 or 429 with Retry-After
	after   time.Duration // how long that asks for; 0: unknown, or over
	load    float64       // of a load report
	hasLoad bool
	behind  bool // a weir tells of what failed behind it
	// exhausted says that the call ended with RESOURCE_EXHAUSTED, which counts.
	exhausted bool
}

// readSignals looks at the head of a final answer.
func (e *exchange) readSignals() {
	r := &e.res
	if r.Status == 503 || r.Status == 429 {
		if v, ok := r.Fields.Get(message.RetryAfter); ok {
			date, _ := r.Fields.Get(message.Date)
			e.signals.asked, e.signals.after = true, retryDelay(v, date, e.now)
		}
	}
	if e.rt.LoadReports {
		e.readLoad(&r.Fields)
	}
	if e.call.on && r.Status == 200 {
		e.readCall()
	}
	e.signals.behind = e.rt.Weir && e.judged() >= 500 && noRetry(&r.Fields)
}

// readTrailers looks at what came after the content: it is younger than the
// head.
func (e *exchange) readTrailers() {
	if (!e.rt.LoadReports && !e.call.on) || e.up == nil || !e.res.Trailers() || !e.up.BodyDone() {
		return
	}
	t := e.up.Trailers()
	if t.Len() == 0 {
		return
	}
	if e.rt.LoadReports {
		e.readLoad(t)
	}
	if e.call.on && e.res.Status == 200 {
		e.readStatus(t)
		e.heedCall()
	}
}

// readLoad takes the first load report of some fields. One that is malformed is
// none: it does the answer no harm.
func (e *exchange) readLoad(f *message.Fields) {
	for i := range f.Len() {
		id := f.ID(i)
		if id != message.LoadReport && id != message.LoadReportBin || f.Removed(i) {
			continue
		}
		parse := orca.Parse
		if id == message.LoadReportBin {
			parse = orca.ParseBinary
		}
		if report, ok := parse(f.Value(i)); ok {
			if load, ok := report.Utilization(); ok {
				e.signals.load, e.signals.hasLoad = load, true
				return
			}
		}
	}
}

// tell adds the signals to the outcome of an attempt that was answered.
func (s *signals) tell(o *pool.Outcome) {
	o.RetryAfter, o.RetryAfterFor, o.Overloaded = s.asked, s.after, s.exhausted
	o.Load, o.HasLoad, o.Behind = s.load, s.hasLoad, s.behind
}

// maxRetryDelay bounds what Retry-After can ask for; pools take far less to
// heart.
const maxRetryDelay = 24 * time.Hour

// The three forms of an HTTP-date (RFC 9110 section 5.6.7); only the first may
// still be sent.
var httpDates = [...]string{"Mon, 02 Jan 2006 15:04:05 GMT", "Monday, 02-Jan-06 15:04:05 GMT", "Mon Jan _2 15:04:05 2006"}

func parseDate(v []byte) (time.Time, bool) {
	if len(v) > 40 {
		return time.Time{}, false
	}
	for _, layout := range httpDates {
		if t, err := time.Parse(layout, string(v)); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// retryDelay reads Retry-After (RFC 9110 section 10.2.3): a number of seconds,
// or a date. A date is taken relative to the answer's own Date, so that clocks
// need not agree. What cannot be read, or is past, is 0.
//
// Example: Date 08:49:37, Retry-After the same day 08:50:07: 30 s.
func retryDelay(v, date []byte, now balance.Instant) time.Duration {
	if len(v) > 0 && v[0] >= '0' && v[0] <= '9' {
		seconds := 0
		for _, c := range v {
			if c < '0' || c > '9' {
				return 0
			}
			seconds = min(seconds*10+int(c-'0'), int(maxRetryDelay/time.Second))
		}
		return time.Duration(seconds) * time.Second
	}
	until, ok := parseDate(v)
	if !ok {
		return 0
	}
	from, ok := parseDate(date)
	if !ok {
		from = clock.Time(now)
	}
	return min(max(until.Sub(from), 0), maxRetryDelay)
}
