// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"net/netip"
	"slices"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/route"
)

// Explained is what a handler would make of a request before a backend is
// chosen.
type Explained struct {
	// Health says that weir answers it itself, as its health path.
	Health bool
	// Refused is why the request goes no further; the zero value when it does.
	Refused Failure
	Routes  route.Explanation
	Route   *Route // nil: none
	// Client is the address that weir takes for the client's, after it decided
	// whom to believe; Believed says that the peer is a trusted proxy.
	Client   netip.Addr
	Believed bool
	// Ask is the request as the pool would see it; its dice are not thrown.
	Ask balance.Request
	// Head is the request as it would be sent to a backend, in wire form: the
	// request line, field lines and an empty one.
	Head []byte
	// Replayable says that the method and the fields allow to send the request
	// again after bytes of it were sent, provided that its content is at hand.
	Replayable bool
	// Cookie is the name of the cookie that keeps sessions, empty where none does;
	// Told says that the request has one. Ask.Prefer is the backend that it names.
	Cookie string
	Told   bool
	// Hedgeable says that the method and the fields allow a second attempt beside
	// one without an answer.
	Hedgeable bool
}

// Explain does to a request what an exchange does between its head and the choice
// of a backend, with the exchange's own code. It counts nothing, takes no slot of
// a limit and answers nobody. r is changed as by an exchange.
func (h *Handler) Explain(r *message.Request, ci *ClientInfo) Explained {
	ci.refresh(h.Trust, h.CertFields)
	e := &exchange{h: h.unlimited(), ci: ci, req: r, head: string(r.Method) == "HEAD"}
	e.client = ci.scratch.peer
	out := Explained{Client: e.client, Believed: ci.scratch.proxy}
	if h.HealthPath != "" && string(r.Path) == h.HealthPath && (e.head || string(r.Method) == "GET") {
		out.Health = true
		return out
	}
	r.ServerName = ci.serverName()
	out.Routes = h.Routes.Explain(r)
	out.Refused = e.admit()
	if e.rt == nil {
		return out
	}
	out.Route = h.Targets[slices.Index(e.h.Targets, e.rt)] // the one with its limit
	if l := out.Route.Limit; l != nil && l.full() && !out.Refused.failed() {
		out.Refused = Failure{Fault: FaultWeir, Reason: message.RouteFull}
	}
	if out.Route.Pool == nil {
		return out
	}
	e.shape()
	e.body.whole = r.Body == message.NoBody
	if s := out.Route.Sticky; s != nil {
		out.Cookie, out.Told = s.Name(), e.sticky.told
	}
	out.Client, out.Ask, out.Replayable, out.Hedgeable = e.client, e.breq, e.repeatable(), e.hedgeable()
	if out.Route.Weir {
		e.rec.Attempts = 1
		e.attemptMark()
	}
	out.Head = http1.AppendRequest(nil, r)
	return out
}

// unlimited is the handler with routes that have no limit to take a slot of.
func (h *Handler) unlimited() *Handler {
	c := *h
	c.Targets = make([]*Route, len(h.Targets))
	for i, rt := range h.Targets {
		free := *rt
		free.Limit = nil
		c.Targets[i] = &free
	}
	return &c
}

// Most returns the limit, 0 for none.
func (l *Limiter) Most() int64 { return max(l.max.Load(), 0) }

// full reports that acquire would refuse.
func (l *Limiter) full() bool {
	m := l.max.Load()
	return m > 0 && l.n.Load() >= m
}

// Status is what the client would be answered; 0 when nothing is refused.
func (e *Explained) Status() int {
	if !e.Refused.failed() {
		return 0
	}
	return e.Refused.status()
}
