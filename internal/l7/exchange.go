// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// Options configure an Exchanger.
type Options struct {
	// Handler returns the published handler of the listener. It is called once
	// per exchange and must not block.
	Handler func() *Handler
	// Bug hears of broken invariants: where, and what was recovered. It may be
	// called from any goroutine. nil: they are dropped.
	Bug func(where string, v any)
	// Short reports that there is no memory for further requests to backends. It is
	// called once per exchange and must not block. nil: there always is.
	Short func() bool
	// Grow reports that the exchange may take about n bytes more, which it does not
	// give back by a call. It is called before a backend is dialed and before content
	// is sent by a goroutine of its own; it may look at the process's memory, which
	// takes a fraction of a millisecond. nil: it always may.
	Grow func(n int64) bool
	// Budget is what content kept for a replay takes together with others. nil: no
	// bound.
	Budget *netconn.Budget
	// Record hears of every finished request, after the metrics and the access
	// log; it must not keep the record. nil: nobody.
	Record func(*observe.Record)
	// Failed hears of every request that ended otherwise than ok or was answered
	// with 500 or above; it must not keep the record. nil: nobody.
	Failed func(*observe.Record)
	// Tunnels are where open tunnels are known; listeners may share them. nil: the
	// Exchanger's own.
	Tunnels *Tunnels
}

// Exchanger serves the exchanges of one listener. It is safe for concurrent
// use; make it with New.
type Exchanger struct {
	// Constant.
	load   func() *Handler
	bug    func(where string, v any)
	short  func() bool        // nil: never
	grow   func(n int64) bool // nil: always true
	budget *netconn.Budget
	tap    func(*observe.Record)
	fail   func(*observe.Record)

	states sync.Pool // *exchange

	tunnels *Tunnels
	calls   calls

	cutting atomic.Bool  // what is left is being cut
	cuts    atomic.Int64 // exchanges that ended so
}

// New returns an Exchanger.
func New(opt Options) *Exchanger {
	x := &Exchanger{load: opt.Handler, bug: opt.Bug, short: opt.Short, grow: opt.Grow, budget: opt.Budget, tap: opt.Record, fail: opt.Failed, tunnels: opt.Tunnels}
	if x.tunnels == nil {
		x.tunnels = NewTunnels()
	}
	if x.bug == nil {
		x.bug = func(string, any) {}
	}
	x.states.New = func() any {
		e := &exchange{x: x}
		e.lease = &e.leases[0]
		return e
	}
	return x
}

func (x *Exchanger) isShort() bool { return x.short != nil && x.short() }

// What an exchange takes beyond what its client's connection has taken, measured.
const (
	dialGrowth = 16 << 10 // the connection to the backend, and the exchange while it waits there
	pumpGrowth = 40 << 10 // a second goroutine, and the buffer that it reads into
)

func (x *Exchanger) mayGrow(n int64) bool { return x.grow == nil || x.grow(n) }

// Cut says that client connections are about to be closed under their
// exchanges: those that end by it count as drain_cut, not as the client's doing.
func (x *Exchanger) Cut() { x.cutting.Store(true) }

// Tunnels are where the Exchanger's open tunnels are known.
func (x *Exchanger) Tunnels() *Tunnels { return x.tunnels }

// CutCount returns how many exchanges were cut because of Cut, or were tunnels
// that ended with the process without their peers' answers.
func (x *Exchanger) CutCount() int64 { return x.cuts.Load() }

// exchange is the state of one exchange. It is pooled: whatever it holds that
// can grow is kept, everything else is reset.
type exchange struct {
	x *Exchanger

	// Constant during an exchange.
	h     *Handler
	rt    *Route // nil until routed
	d     Downstream
	ci    *ClientInfo
	req   *message.Request
	start balance.Instant
	// headBy and endBy are when the answer's head and its end are due; 0: never.
	headBy, endBy balance.Instant
	head          bool // the method is HEAD

	// Owned by the exchange's goroutine.
	now        balance.Instant // the last look at the clock
	client     netip.Addr
	clientKey  uint64
	requestID  []byte
	keyed      bool // an idempotency key came along
	limited    bool // a slot of the route's limit is held
	answered   bool // the head of a final answer left, or was tried to
	interim    bool // a 1xx other than 100 left
	retryAfter bool // the backend's answer is 503 with Retry-After
	final      bool // a weir in front had better not retry (S6)
	above      bool // the client sent X-Weir-Attempt
	told       bool // a trusted weir said how much the request matters
	before     int  // attempts of the weirs in front before the one that this is
	markLine   int  // where the last X-Weir-Attempt is; 0: nowhere
	signals    signals
	call       call

	leases     [2]pool.Lease
	lease      *pool.Lease // the one in use; never nil
	reserved   bool        // it holds the next attempt's slot already
	breq       balance.Request
	try        pool.Try
	backend    *balance.Backend
	target     Target
	up         Upstream
	kept       Upstream // taken for the next attempt
	reused     bool
	fresh      bool            // the next attempt stays on the backend and dials
	began      balance.Instant // the attempt's pick
	sentAt     balance.Instant // the attempt's first byte
	headFor    balance.Instant // response_header runs from here
	headSent   bool            // a byte of the request left in this attempt
	sentBefore bool            // one left in an attempt before
	wait       time.Duration   // backoff before the next attempt
	pending    retryCount
	granted    nextAttempt
	hedgeAt    balance.Instant // when the attempt gets a hedge; 0: not
	hedge      *hedge          // under way

	res  message.Response
	rec  observe.Record
	body body
	w    watch

	idBuf [32]byte
	text  []byte // of weir's own answers
	rpath []byte // rewritten path

	sticky stickyCookie // the request's, where the route has Sticky

	carry func() // opens the tunnel on a goroutine of its own; nil: there is none to open

	streams bool    // the answer is endless
	stream  *stream // nil: it is none, or not known to Tunnels yet
}

// Serve carries one exchange from its head to its record. It returns when the
// codec may have the connection back: nothing of the exchange runs any more.
func (x *Exchanger) Serve(d Downstream, ci *ClientInfo) {
	e := x.states.Get().(*exchange)
	e.open(d, ci)
	if carry := e.serve(); carry != nil {
		carry()
	}
}

// serve is the exchange on its own goroutine. carry is called to go on with one that
// has more to come on another; nil: it is over, and the state is somebody else's.
func (e *exchange) serve() (carry func()) {
	defer e.close()
	e.run()
	return e.carry
}

// open starts an exchange.
func (e *exchange) open(d Downstream, ci *ClientInfo) {
	e.d, e.ci, e.h, e.req = d, ci, e.x.load(), d.Request()
	e.start = clock.Now()
	e.now = e.start
	ci.refresh(e.h.Trust, e.h.CertFields)
	e.client, e.clientKey = ci.scratch.peer, ci.scratch.peerKey
	e.head = string(e.req.Method) == "HEAD"

	r, q := &e.rec, e.req
	r.Listener = e.h.Listener
	r.Method, r.Host, r.Path, r.Query = q.Method, q.Authority, q.Path, q.Query
	r.Major, r.Minor, r.TLS = q.Major, q.Minor, ci.TLS
	if ci.Secure != nil {
		r.Session = &ci.Secure.Session
	}
}

// close ends an exchange. It is deferred: after a panic it lets go of
// everything the exchange held.
func (e *exchange) close() {
	if v := recover(); v != nil {
		e.x.bug("l7", v)
		e.crashed()
		return // the state is not used again
	}
	if e.carry != nil {
		return
	}
	e.reset()
	e.x.states.Put(e)
}

// reset forgets the exchange and keeps what it grew.
func (e *exchange) reset() {
	e.h, e.rt, e.d, e.ci, e.req = nil, nil, nil, nil, nil
	e.start, e.headBy, e.endBy = 0, 0, 0
	e.head = false
	e.now, e.client, e.clientKey, e.requestID = 0, netip.Addr{}, 0, nil
	e.keyed, e.limited, e.answered, e.interim, e.retryAfter = false, false, false, false, false
	e.final, e.above, e.told, e.before, e.markLine = false, false, false, 0, 0
	e.signals = signals{}
	e.call.reset()
	e.breq, e.try = balance.Request{}, pool.Try{}
	e.backend, e.target, e.up, e.kept = nil, nil, nil, nil
	e.reused, e.fresh, e.reserved, e.headSent, e.sentBefore, e.wait = false, false, false, false, false, 0
	e.began, e.sentAt, e.headFor = 0, 0, 0
	e.pending, e.granted = retryCount{}, nextAttempt{}
	e.lease, e.hedgeAt, e.hedge = &e.leases[0], 0, nil
	e.res.Fields.Reset(nil)
	e.rec.Reset()
	if n := e.body.charged; n > 0 {
		e.x.budget.Give(n)
	}
	e.body.reset()
	e.w.reset()
	e.sticky = stickyCookie{}
	e.streams, e.stream = false, nil
}

// run is the exchange.
func (e *exchange) run() {
	if e.h.HealthPath != "" && string(e.req.Path) == e.h.HealthPath && (e.head || string(e.req.Method) == "GET") {
		e.answerHealth()
		return
	}
	if e.h.Challenge != nil && e.answerChallenge() {
		return
	}
	f := e.admit()
	if !f.failed() {
		switch rt := e.rt; {
		case rt.Respond != nil:
			f = e.respond(rt.Respond)
		case rt.Redirect != nil:
			f = e.redirect(rt.Redirect)
		default:
			f = e.proxy()
		}
	}
	if e.carry != nil {
		return
	}
	e.finish(&f)
}

// admit decides whether the request may pass at all, and by which route.
func (e *exchange) admit() Failure {
	switch string(e.req.Method) {
	case "CONNECT", "TRACE":
		// CONNECT would make weir an open proxy; TRACE reflects credentials.
		return Failure{Fault: FaultClient, Reason: message.BadRequest, Code: 405, Detail: "method not allowed"}
	}
	e.req.ServerName = e.ci.serverName()
	if e.h.ClientAuthNames.Misdirected(e.req) {
		return Failure{Fault: FaultClient, Reason: message.Misdirected, Detail: "other certificates of clients are asked for this host than on this connection"}
	}
	i, ok, bad := e.h.Routes.Match(e.req)
	switch {
	case bad != nil:
		return Failure{Fault: FaultClient, Reason: bad.Reason, Detail: bad.Detail}
	case !ok && e.h.Routes.Misdirected(e.req):
		return Failure{Fault: FaultClient, Reason: message.Misdirected, Detail: "the routes for it are of another TLS server name than the connection's"}
	case !ok || i < 0 || i >= len(e.h.Targets):
		return Failure{Fault: FaultClient, Reason: message.NoRoute}
	}
	rt := e.h.Targets[i]
	e.rt = rt
	e.rec.Route, e.rec.Pool = rt.Name, rt.PoolName
	if rt.Limit != nil {
		if !rt.Limit.acquire() {
			return Failure{Fault: FaultWeir, Reason: message.RouteFull}
		}
		e.limited = true
	}
	if m := e.h.MaxBody; m > 0 && e.req.Body == message.Sized && e.req.ContentLength > m {
		return Failure{Fault: FaultClient, Reason: message.BodyTooLarge}
	}
	return Failure{}
}

// proxy carries the request to a backend and the answer back.
func (e *exchange) proxy() Failure {
	if e.x.isShort() {
		return shortage()
	}
	t := &e.rt.Timeouts
	if !e.req.WebSocket { // an upgrade has its own times (S7)
		e.endBy = after(e.start, t.Total)
		e.headBy = earliest(after(e.start, t.Request), e.endBy)
	}

	e.shape()
	if e.call.on {
		if f := e.beginCall(); f.failed() {
			return f
		}
	}
	if f := e.openBody(); f.failed() {
		return f
	}
	e.rt.Pool.BeginRequest(e.now)
	return e.attempts()
}

// shape turns the client's request into the backend's, and takes its key.
func (e *exchange) shape() {
	e.prepareFields()
	if key := e.rt.IdempotencyKey; key != nil {
		e.keyed = key.in(&e.req.Fields)
	}
	if key := e.rt.Key; key != nil {
		e.breq.Key, e.breq.HasKey = key(e.req, e.client)
	}
	if s := e.rt.Sticky; s != nil {
		e.askCookie(s)
	}
	e.prioritize()
	e.rewrite()
	e.rt.RequestHeaders.apply(&e.req.Fields)
}

// finish gives everything back, answers if nobody has, and records.
func (e *exchange) finish(f *Failure) {
	if f.failed() && e.x.cutting.Load() && f.Reason == message.ClientAbort {
		f.Reason = message.DrainCut
		e.x.cuts.Add(1)
	} else if f.Reason == message.DrainCut && e.callOver() && e.stream.cause() == observe.TunnelByPeer {
		e.x.cuts.Add(1)
	}
	if o, ok := e.d.(interface{ OverAge() bool }); ok && f.failed() && f.Reason == message.ClientAbort && o.OverAge() {
		f.Fault, f.Reason, f.Detail = FaultWeir, message.MaxAge, "cut after the grace of the client's connection"
	}
	e.now = clock.Now()
	e.atDeadline(f)
	e.countRetry(f)
	e.settle(f)
	e.w.end()
	if f.failed() {
		e.refuse(f)
	}
	e.stopPump()
	if e.limited {
		e.limited = false
		e.rt.Limit.release()
	}
	e.record(f)
}

// Refusal is a request that a codec refused before it could become an exchange.
type Refusal interface {
	// ErrorHead is the head of the codec's answer, for further fields.
	ErrorHead() *message.Response
	// Request holds what was understood of the head; perhaps nothing.
	Request() *message.Request
}

// BadRequest records a request that the codec refused, and gives its answer an
// id. It fits http1.Server.OnBadRequest.
func (x *Exchanger) BadRequest(d Refusal, ci *ClientInfo, err *http1.Error) {
	h := x.load()
	ci.refresh(h.Trust, h.CertFields)
	var id [32]byte
	appendHex(id[:0], rand.Uint64(), rand.Uint64())
	head := d.ErrorHead()
	status := head.Status
	if status == 0 {
		status = err.Status()
	}
	head.Fields.AddBytes(message.XRequestID, "X-Request-Id", id[:])
	var ended observe.CallStatus
	if q := d.Request(); q.Major >= 2 && isGRPC(q) {
		ended = refuseCall(head, err)
		status = head.Status
	}
	r := &observe.Record{
		Listener: h.Listener, RequestID: id[:], ClientIP: ci.scratch.peer, Start: clock.Now(), Major: 1, Minor: 1,
		TLS: ci.TLS, ProxiedBy: ci.proxiedBy(), Status: status, GRPC: ended, Reason: err.Reason, Detail: err.Detail,
	}
	if ci.Secure != nil {
		r.Session = &ci.Secure.Session
	}
	q := d.Request()
	if q.Major != 0 {
		r.Major, r.Minor = q.Major, q.Minor
	}
	r.Method, r.Host, r.Path = q.Method, q.Authority, q.Path
	if r.Path == nil {
		r.Path, _, _ = bytes.Cut(q.Target, []byte("?"))
	}
	if h.Series != nil {
		h.Series.For("").Observe(r)
	}
	if h.Log != nil {
		h.Log.Write(r)
	}
	if x.fail != nil {
		x.fail(r)
	}
	if x.tap != nil {
		x.tap(r)
	}
}

// refuse tells the client of a failure, as far as that is still possible.
func (e *exchange) refuse(f *Failure) {
	switch {
	case f.Reason == message.ClientAbort || f.Reason == message.WriteTimeout || (f.Reason == message.DrainCut || f.Reason == message.MaxAge) && e.gone():
		e.d.Abort()
	case e.answered:
		// The client has part of an answer: it must not take it for whole.
		if !e.endCall(f) {
			e.d.Abort()
		}
	case e.isCall():
		e.answerCall(f)
	default:
		e.answerFailure(f)
	}
}

// gone reports that the client's connection is over.
func (e *exchange) gone() bool { return e.w.gone.Load() }

// record completes the record and hands it out.
func (e *exchange) record(f *Failure) {
	r := &e.rec
	r.Start = e.start
	r.RequestID, r.ClientIP, r.ProxiedBy = e.requestID, e.client, e.ci.proxiedBy()
	r.Reason, r.Total = f.Reason, e.now.Sub(e.start)
	if r.Detail == "" {
		r.Detail = f.Detail
	}
	r.BytesIn = e.body.read
	if e.isCall() {
		r.GRPC = e.ended(f)
	}
	series := e.h.Series
	if e.rt != nil {
		series = e.rt.Series
	}
	if series != nil {
		series.For(r.Backend).Observe(r)
	}
	if e.h.Log != nil {
		if ua, ok := e.req.Fields.Get(message.UserAgent); ok {
			r.UserAgent = ua
		}
		r.Request = &e.req.Fields
		e.h.Log.Write(r)
	}
	if (f.failed() || r.Status >= 500) && e.x.fail != nil {
		e.x.fail(r)
	}
	if e.x.tap != nil {
		e.x.tap(r)
	}
}

// crashed lets go of what a panicking exchange held. The client is reset: what
// it got, if anything, is not to be trusted.
func (e *exchange) crashed() {
	defer func() {
		if v := recover(); v != nil {
			e.x.bug("l7_crash", v)
		}
	}()
	if e.d != nil {
		e.d.Abort()
	}
	e.delist()
	if e.up != nil {
		e.up.Cut()
	}
	e.w.end()
	if e.hedge != nil {
		e.hedge.cancel()
	}
	for _, l := range []*pool.Lease{&e.leases[0], &e.leases[1], e.lease} {
		if l.Held() {
			l.Done(pool.Outcome{Now: clock.Now(), Kind: pool.LocalFault, Sent: e.rec.Sent, Client: e.clientKey})
		}
	}
	if e.limited {
		e.rt.Limit.release()
	}
	e.body.join()
	e.x.budget.Give(e.body.charged)
	if e.up != nil {
		e.up.Close()
	}
	if e.kept != nil {
		e.kept.Close()
	}
}

func after(t balance.Instant, d time.Duration) balance.Instant {
	if d <= 0 {
		return 0
	}
	return t.Add(d)
}

// earliest returns the earlier of two deadlines, 0 meaning none.
func earliest(a, b balance.Instant) balance.Instant {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	default:
		return min(a, b)
	}
}
