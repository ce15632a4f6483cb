// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/internal/message"
)

// allowed is what weir forwards, for the Allow field of a 405.
const allowed = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"

// answerFailure tells the client what went wrong: one line with the status, the
// reason word that logs and metrics use, and the request id to find them by.
func (e *exchange) answerFailure(f *Failure) {
	status := f.status()
	if status == 0 || status == 499 {
		status = 500 // a reason that is no answer: say so rather than nothing
	}
	h := &e.res
	e.openAnswer(status)
	t := append(e.text[:0], "weir: "...)
	t = strconv.AppendInt(t, int64(status), 10)
	t = append(t, ' ')
	t = append(t, f.Reason.String()...)
	t = append(t, " (request "...)
	t = append(t, e.id()...)
	t = append(t, ")\n"...)
	e.text = t
	h.Fields.Add(message.ContentType, "Content-Type", "text/plain; charset=utf-8")
	h.Fields.Add(message.Other, "Cache-Control", "no-store")
	if status == 503 || status == 429 {
		h.Fields.Add(message.RetryAfter, "Retry-After", retryAfter(f.Reason))
	}
	if status == 405 {
		h.Fields.Add(message.Other, "Allow", allowed)
	}
	e.answerMark(&h.Fields)
	if err := e.writeAnswer(t); err != nil {
		e.d.Abort()
	}
}

// retryAfter is how long a client had better wait: saturation passes quickly, a
// pool without a backend takes about a probe interval.
func retryAfter(r message.Reason) string {
	switch r {
	case message.NoBackend, message.AllBroken:
		return "5"
	default:
		return "1"
	}
}

// id returns the request's id, for answers given before one was needed.
func (e *exchange) id() []byte {
	if e.requestID == nil {
		if v, ok := e.req.Fields.Get(message.XRequestID); ok && validRequestID(v) {
			e.requestID = v
		} else {
			e.makeRequestID()
		}
	}
	return e.requestID
}

// openAnswer starts the head of an answer of weir's own.
func (e *exchange) openAnswer(status int) {
	h := &e.res
	h.Fields.Reset(nil)
	*h = message.Response{Status: status, Major: 1, Minor: 1, Fields: h.Fields}
	h.Fields.AddFunc(message.Date, "Date", appendDate)
	h.Fields.AddBytes(message.XRequestID, "X-Request-Id", e.id())
	if e.h.HSTS != "" {
		h.Fields.Add(message.Other, "Strict-Transport-Security", e.h.HSTS)
	}
}

// writeAnswer writes the head that openAnswer began, and the text. Content of
// the request that was not read ends the connection.
func (e *exchange) writeAnswer(text []byte) error {
	h := &e.res
	e.answered = true
	e.rec.Status = h.Status
	if e.body.running() || !e.d.BodyDone() {
		e.d.MarkClose()
	}
	h.Body, h.ContentLength = message.Sized, int64(len(text))
	if e.head {
		text = nil // the codec knows; the length is what a GET would get
	} else {
		e.rec.BytesOut = int64(len(text))
	}
	return e.d.WriteHead(h, text, true)
}

// respond gives the route's fixed answer.
func (e *exchange) respond(r *Respond) Failure {
	e.openAnswer(r.Status)
	f := &e.res.Fields
	if len(r.Body) > 0 {
		ct := r.ContentType
		if ct == "" {
			ct = "text/plain; charset=utf-8"
		}
		f.Add(message.ContentType, "Content-Type", ct)
	}
	e.rt.ResponseHeaders.apply(f)
	if err := e.writeAnswer(r.Body); err != nil {
		return writeFailure(PhaseRelay, err)
	}
	return Failure{}
}

// redirect answers with another place for the same request.
func (e *exchange) redirect(r *Redirect) Failure {
	if r.Host == "" && len(e.req.Authority) == 0 {
		// HTTP/1.0 without Host: there is no absolute URL to send it to.
		return Failure{Fault: FaultClient, Reason: message.BadRequest, Detail: "redirect without a host"}
	}
	e.openAnswer(r.Status)
	e.res.Fields.AddFunc(message.Other, "Location", func(b []byte) []byte { return e.appendLocation(b, r) })
	e.rt.ResponseHeaders.apply(&e.res.Fields)
	if err := e.writeAnswer(nil); err != nil {
		return writeFailure(PhaseRelay, err)
	}
	return Failure{}
}

func (e *exchange) appendLocation(b []byte, r *Redirect) []byte {
	scheme := r.Scheme
	if scheme == "" {
		scheme = e.proto()
	}
	b = append(append(b, scheme...), "://"...)
	host, port := splitPort(e.req.Authority)
	if r.Scheme != "" {
		port = nil // it belonged to the other scheme
	}
	if r.Host != "" {
		b = append(b, r.Host...)
	} else {
		b = append(b, host...)
	}
	switch {
	case r.Port != 0:
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(r.Port), 10)
	case r.Host == "" && len(port) > 0:
		b = append(append(b, ':'), port...)
	}
	if r.Path != "" {
		return append(b, r.Path...)
	}
	b = append(b, e.req.Routed...)
	if e.req.Query != nil {
		b = append(append(b, '?'), e.req.Query...)
	}
	return b
}

// splitPort splits an authority; port is nil when there is none.
func splitPort(a []byte) (host, port []byte) {
	for i := len(a) - 1; i >= 0; i-- {
		switch c := a[i]; {
		case c == ':':
			return a[:i], a[i+1:]
		case c < '0' || c > '9':
			return a, nil
		}
	}
	return a, nil
}

// answerHealth answers the listener's health path.
func (e *exchange) answerHealth() {
	status, text := 200, "ready\n"
	if e.h.Ready != nil && !e.h.Ready() {
		status, text = 503, "not ready\n"
	}
	e.openAnswer(status)
	e.res.Fields.Add(message.ContentType, "Content-Type", "text/plain; charset=utf-8")
	e.res.Fields.Add(message.Other, "Cache-Control", "no-store")
	if err := e.writeAnswer([]byte(text)); err != nil {
		e.d.Abort()
	}
}

// challengePath is where validators ask (RFC 8555, section 8.3).
const challengePath = "/.well-known/acme-challenge/"

// answerChallenge answers a validator; false: the request is none of its.
func (e *exchange) answerChallenge() bool {
	if !bytes.HasPrefix(e.req.Path, []byte(challengePath)) || string(e.req.Method) != "GET" {
		return false
	}
	text := e.h.Challenge(string(e.req.Authority), string(e.req.Path))
	if text == nil {
		return false
	}
	e.openAnswer(200)
	e.res.Fields.Add(message.ContentType, "Content-Type", "application/octet-stream")
	e.res.Fields.Add(message.Other, "Cache-Control", "no-store")
	if err := e.writeAnswer(text); err != nil {
		e.d.Abort()
	}
	return true
}

// date is the Date of answers for one second.
type date struct {
	second int64
	text   string
}

var dateNow atomic.Pointer[date]

// appendDate appends the current time as an HTTP date (RFC 9110 section 5.6.7).
func appendDate(b []byte) []byte {
	t := time.Now()
	d := dateNow.Load()
	if s := t.Unix(); d == nil || d.second != s {
		d = &date{second: s, text: t.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")}
		dateNow.Store(d)
	}
	return append(b, d.text...)
}
