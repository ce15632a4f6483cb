// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// over says what an HTTP probe is asked in.
func (j *job) over2(c *conn) bool {
	if t, ok := c.Conn.(*tls.Conn); ok && len(j.target.TLS.NextProtos) > 0 {
		return t.ConnectionState().NegotiatedProtocol == "h2"
	}
	return j.target.HTTP.H2
}

// ask2 is ask over HTTP/2. The answer is read as far as its content matters, and then
// judged as one that has come over HTTP/1.1.
func (p *Prober) ask2(c *conn, j *job, deadline time.Time) verdict {
	h := j.target.HTTP
	x := &exchange{framer: http2.NewFramer(c, c), most: maxContent, code: -1}
	x.framer.SetMaxReadFrameSize(maxFrame)
	x.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	x.framer.MaxHeaderListSize = maxHead
	var ask bytes.Buffer
	if err := p.request2(&ask, j); err != nil {
		return verdict{outcome: health.NoAnswer, text: oneLine(err.Error()), retry: true} // cannot happen: memory
	}
	if _, err := c.Write(ask.Bytes()); err != nil {
		return p.lost(err, j, "could not be asked")
	}
	err := x.read(func() bool { return x.headed })
	if err == nil && !x.ended && judge(h, x.status).outcome == health.Pass && h.Method != "HEAD" {
		err = x.readContent(c, h, deadline)
	}
	if err != nil {
		var broken brokenCall
		switch {
		case errors.As(err, &broken):
			return failed(broken.cause, broken.what)
		case isFraming(err):
			return failed(health.CauseMalformed, "this is no HTTP/2: "+rootText(err))
		case x.headed:
			v := p.lost(err, j, "the answer's content was incomplete")
			v.status = x.status
			return v
		}
		return p.lost(err, j, "no answer")
	}
	_ = x.framer.WriteGoAway(0, http2.ErrCodeNo, nil) // a courtesy: the verdict is out
	v := judge(h, x.status)
	switch head := x.head(); {
	case v.outcome != health.Pass:
	case h.Body != nil:
		v = p.examine(c, j, head, x.message)
	case h.Overload || h.LoadReports:
		v = p.busy(c, h, head, x.message, deadline)
	}
	return v
}

// readContent reads as much of the content of an expected answer as is looked at. What
// may only hold the word of a busy backend is not waited for for long.
func (x *exchange) readContent(c *conn, h *HTTP, deadline time.Time) error {
	switch {
	case h.Body != nil:
		return x.read(func() bool {
			return len(x.message) > maxWord && h.Body.Pattern == nil && h.Body.in(x.message)
		})
	case !h.Overload:
		return nil
	}
	if soon := time.Now().Add(patience); soon.Before(deadline) {
		if err := c.SetReadDeadline(soon); err != nil {
			return err
		}
	}
	if err := x.read(func() bool { return len(x.message) > maxWord }); err != nil {
		x.message = x.message[:0] // the head was the answer
	}
	return nil
}

// head is the answer's head as HTTP/1.1 would have it, with a length that says whether
// the content is whole.
func (x *exchange) head() *message.Response {
	r := &message.Response{Status: x.status, Major: 2, Body: message.Sized, ContentLength: int64(len(x.message))}
	if !x.ended {
		r.ContentLength += maxContent // more than anybody looks at
	}
	for _, f := range x.regular {
		r.Fields.Add(http1.FieldID([]byte(f.Name)), f.Name, f.Value)
	}
	return r
}

// request2 writes the preface and the request.
func (p *Prober) request2(to io.Writer, j *job) error {
	h, f := j.target.HTTP, http2.NewFramer(to, nil)
	method, scheme := h.Method, "http"
	if method == "" {
		method = "GET"
	}
	if j.target.TLS != nil {
		scheme = "https"
	}
	var fields bytes.Buffer
	enc := hpack.NewEncoder(&fields)
	for _, h := range [][2]string{
		{":method", method}, {":scheme", scheme}, {":path", h.Path}, {":authority", h.Host},
		{"user-agent", p.userAgent}, {"accept", "*/*"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(to, http2.ClientPreface); err != nil {
		return err
	}
	// More content than is looked at may come: what is open is never opened again.
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}, http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHead},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2 * maxContent}); err != nil {
		return err
	}
	if err := f.WriteWindowUpdate(0, maxContent); err != nil {
		return err
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields.Bytes(), EndHeaders: true, EndStream: true})
}
