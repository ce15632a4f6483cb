// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

const (
	maxHead    = 16 << 10               // of an answer; a health check's is short
	maxInterim = 4                      // 1xx answers before the final one
	courtesy   = 64 << 10               // bytes of content read after the verdict, so that the backend sees no reset
	patience   = 250 * time.Millisecond // and how long
)

// verdict is the end of a probe without its times.
type verdict struct {
	outcome health.ProbeOutcome
	cause   health.ProbeCause
	status  int
	text    string
	retry   bool
	load    float64 // of the answer's load report
	hasLoad bool
}

func failed(cause health.ProbeCause, text string) verdict {
	return verdict{outcome: health.NoAnswer, cause: cause, text: cause.String() + ": " + oneLine(text)}
}

// run makes one probe from its connection to its verdict.
func (p *Prober) run(j *job) {
	start := time.Now()
	sent := p.opt.Now()
	deadline := start.Add(j.timeout)
	c, v := p.connect(j, deadline)
	if c != nil {
		defer c.close()
	}
	if c != nil && v.outcome == health.Pass && j.target.HTTP != nil {
		if j.over2(c) {
			v = p.ask2(c, j, deadline)
		} else {
			v = p.ask(c, j, deadline)
		}
	} else if c != nil && v.outcome == health.Pass && j.target.GRPC != nil {
		v = p.call(c, j)
	} else if c != nil && v.outcome == health.Pass && j.target.Talk != nil {
		v = p.talk(c, j)
	}
	if p.ctx.Err() != nil && v.outcome == health.NoAnswer {
		v.retry = true // cut by Close: nobody's fault
	}
	p.tell(j, v, sent, start)
	if c != nil && v.status != 0 && c.buf != nil {
		c.drain(min(time.Until(deadline), patience))
	}
}

// conn is a probe's connection: raw below, and with TLS above where there is.
type conn struct {
	net.Conn             // what HTTP is spoken on
	raw      net.Conn    // the socket
	stop     func() bool // Close of the Prober no longer concerns it; may be nil
	buf      *[]byte
}

// close ends the connection.
func (c *conn) close() {
	if c.stop != nil {
		c.stop()
	}
	_ = c.raw.Close() // nothing to be told: the verdict is out
	if c.buf != nil {
		buffers.Put(c.buf)
	}
}

// drain reads what is left of the answer until the backend closes.
func (c *conn) drain(most time.Duration) {
	if most <= 0 || c.raw.SetReadDeadline(time.Now().Add(most)) != nil {
		return
	}
	b := (*c.buf)[:cap(*c.buf)]
	for n := 0; n < courtesy; {
		m, err := c.Read(b)
		if n += m; err != nil {
			return
		}
	}
}

// connect opens the socket and, with TLS, shakes hands.
func (p *Prober) connect(j *job, deadline time.Time) (*conn, verdict) {
	addresses, v := p.addresses(j.target.Address, deadline)
	if len(addresses) == 0 {
		return nil, v
	}
	var raw net.Conn
	for i, a := range addresses {
		// Each address gets an even part of the time that is left.
		until := time.Now()
		until = until.Add(deadline.Sub(until) / time.Duration(len(addresses)-i))
		var err error
		if raw, err = dial(p.ctx, j.target.network(), a, until); err == nil {
			break
		}
		raw = nil
		v = dialFailed(err, a, j.timeout)
	}
	if raw == nil {
		return nil, v
	}
	c := &conn{Conn: raw, raw: raw}
	if v := j.target.Proxy; v != 0 {
		if err := introduce(raw, v); err != nil {
			c.close()
			return nil, failed(health.CauseReset, err.Error())
		}
	}
	if j.target.TLS == nil && j.target.HTTP == nil && j.target.GRPC == nil && j.target.Talk == nil {
		return c, verdict{}
	}
	if err := raw.SetDeadline(deadline); err != nil {
		c.close()
		return nil, failed(health.CauseReset, err.Error())
	}
	// Only now, lest the deadline above take back what Close of the Prober sets.
	c.stop = context.AfterFunc(p.ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	if j.target.TLS == nil {
		return c, verdict{}
	}
	t := tls.Client(raw, j.target.TLS)
	if err := t.HandshakeContext(context.Background()); err != nil {
		c.close()
		if isTimeout(err) {
			return nil, failed(health.CauseTimeout, fmt.Sprintf("TLS handshake not finished within %v", j.timeout))
		}
		if cause, text, ok := closedBy(err); ok {
			return nil, failed(cause, text+" during the TLS handshake")
		}
		return nil, failed(health.CauseTLS, strings.TrimPrefix(err.Error(), "tls: "))
	}
	c.Conn = t
	return c, verdict{}
}

// addresses returns where host:port leads, in the order to be tried.
func (p *Prober) addresses(address string, deadline time.Time) ([]netip.AddrPort, verdict) {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return []netip.AddrPort{a}, verdict{}
	}
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, verdict{outcome: health.NoAnswer, text: oneLine("address: " + err.Error()), retry: true}
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, verdict{outcome: health.NoAnswer, text: oneLine("address: bad port " + portText), retry: true}
	}
	ctx, cancel := context.WithDeadline(p.ctx, deadline)
	defer cancel()
	ips, err := p.opt.Resolve(ctx, host)
	var said *net.DNSError
	if err == nil && len(ips) == 0 || errors.As(err, &said) && said.IsNotFound {
		// The name servers have answered, and the resolver knows no earlier
		// answer: there is no way to this backend, whatever it is.
		return nil, failed(health.CauseNoRoute, "the name "+host+" has no address")
	}
	if err != nil {
		// Name servers that fail say nothing about the backend (S9).
		return nil, verdict{outcome: health.NoAnswer, text: oneLine("dns: " + host + ": " + err.Error()), retry: true}
	}
	out := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		out[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return out, verdict{}
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// ask sends the request and judges the answer's head.
func (p *Prober) ask(c *conn, j *job, deadline time.Time) verdict {
	h := j.target.HTTP
	c.buf = buffers.Get().(*[]byte)
	b := (*c.buf)[:0]
	defer func() { *c.buf = b[:0] }()

	method := h.Method
	if method == "" {
		method = "GET"
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, h.Path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, h.Host...)
	b = append(b, "\r\nUser-Agent: "...)
	b = append(b, p.userAgent...)
	b = append(b, "\r\nAccept: */*\r\nConnection: close\r\n\r\n"...)
	if _, err := c.Write(b); err != nil {
		return p.lost(err, j, "could not be asked")
	}
	b = b[:0]
	var head message.Response
	lim := http1.Limits{MaxHeaderBytes: maxHead}
	for interim := 0; ; {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := c.Read(b[len(b):cap(b)])
		fresh := b[len(b) : len(b)+n]
		b = b[:len(b)+n]
		// Only a line end can complete a head; asking the parser at every byte of
		// one that trickles in would cost the square of its length.
		for bytes.IndexByte(fresh, '\n') >= 0 || len(b) >= maxHead {
			size, perr := http1.ParseResponse(b, &lim, &head, method == "HEAD")
			if perr != nil {
				return failed(health.CauseMalformed, detail(perr))
			}
			if size == 0 {
				break
			}
			if head.Status >= 200 {
				v := judge(h, head.Status)
				if v.outcome == health.Pass && h.Body != nil {
					return p.examine(c, j, &head, b[size:])
				}
				if v.outcome == health.Pass && (h.Overload || h.LoadReports) {
					v = p.busy(c, h, &head, b[size:], deadline)
				}
				return v
			}
			if interim++; head.Status == 101 || interim > maxInterim {
				return failed(health.CauseMalformed, fmt.Sprintf("unexpected answer %d", head.Status))
			}
			b = append(b[:0], b[size:]...)
			fresh = b
		}
		if len(b) >= maxHead {
			return failed(health.CauseMalformed, "the answer's head is too long")
		}
		if err != nil {
			what := "no answer"
			if len(b) > 0 {
				what = "the answer's head was incomplete"
			}
			return p.lost(err, j, what)
		}
	}
}

func judge(h *HTTP, status int) verdict {
	if len(h.Expect) == 0 && status >= 200 && status <= 299 {
		return verdict{status: status}
	}
	var want []string
	for _, r := range h.Expect {
		if status >= r.From && status <= r.To {
			return verdict{status: status}
		}
		if r.From == r.To {
			want = append(want, strconv.Itoa(r.From))
		} else {
			want = append(want, strconv.Itoa(r.From)+"-"+strconv.Itoa(r.To))
		}
	}
	if len(want) == 0 {
		want = []string{"200-299"}
	}
	return verdict{
		outcome: health.NotReady, cause: health.CauseStatus, status: status,
		text: fmt.Sprintf("status: %d, expected %s", status, strings.Join(want, ", ")),
	}
}
