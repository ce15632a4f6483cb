// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// Sessions are the open sessions of a process, so that they can be counted and
// ended by whoever decides about their backends. A session may be told to end
// from within Enter.
type Sessions interface {
	Enter(s *Session)
	Leave(s *Session)
}

// Options configure a Proxy. Relay and Sessions are needed.
type Options struct {
	Relay    *Relay   // shared by listeners
	Sessions Sessions // shared by listeners
	// Backend returns the connections of a backend; nil: it has none.
	Backend func(*balance.Backend) *upstream.Target
	// Short reports that there is no memory for another session. nil: there
	// always is.
	Short func() bool
	// Forged hears of clients that began with a PROXY header, which nobody was asked
	// for: their sessions have ended. nil: nobody.
	Forged func(client netip.AddrPort)
	// Failed hears of every session that ended otherwise than ok; it must not keep
	// the record. nil: nobody.
	Failed func(*observe.Record)
	// Bug hears of broken invariants. nil: they are dropped.
	Bug func(where string, v any)
}

// Proxy carries the sessions of one listener. Make it with New; it is safe for
// concurrent use.
type Proxy struct {
	opt  Options
	quit chan struct{}         // closed: nothing is dialed any more
	tap  func(*observe.Record) // of tests; nil: nobody

	open   atomic.Int64
	cuts   atomic.Int64
	wholes atomic.Int32 // connections that are not to come bare, see WantsBare
	once   sync.Once

	greet greetings
	over  atomic.Bool // quit is closed: no loop waits for a connection any more
	asked askers
	wg    sync.WaitGroup // sessions that are decided about, and those of goroutines
}

// New returns a Proxy.
func New(opt Options) *Proxy {
	if opt.Bug == nil {
		opt.Bug = func(string, any) {}
	}
	return &Proxy{opt: opt, quit: make(chan struct{})}
}

// Open returns the number of established sessions.
func (p *Proxy) Open() int64 { return p.open.Load() }

// CutCount returns how many sessions were ended by the end of the process.
func (p *Proxy) CutCount() int64 { return p.cuts.Load() }

// Quit gives up those who wait for a backend, or whose hello has not come. Established sessions go on.
func (p *Proxy) Quit() {
	p.once.Do(func() { close(p.quit) })
	p.greet.quit()
	p.over.Store(true)
	p.opt.Relay.dismiss()
}

// Wait returns when nobody waits for a backend.
func (p *Proxy) Wait() { p.wg.Wait() }

func (p *Proxy) left() { p.open.Add(-1) }

// opening is a session that has no backend yet. It belongs to one goroutine at a
// time: one that decides, or that of the loop which waits for a connection.
type opening struct {
	px     *Proxy
	rt     *Route
	s      *Session
	c      *netconn.Conn // nil: the client is bare
	bare   netconn.Bare
	prefix []byte
	loop   *loop // of all attempts; nil: not chosen yet

	// Of an attempt that a loop waits for.
	begun  *upstream.Begun
	began  balance.Instant
	broken bool // the client's descriptor was not to be had

	introduced bool // the backend has got its PROXY header, before TLS

	// mayNotWait: it belongs to an accept loop. queued and chosen say to whom else it
	// goes what comes next: waiting for a slot, or connecting to the backend.
	mayNotWait, queued, chosen bool

	now  balance.Instant
	breq balance.Request
	try  pool.Try
	last failure
}

// failure is why there is no session, or no connection of one attempt.
type failure struct {
	reason message.Reason
	kind   pool.OutcomeKind
	detail string
	final  bool // no other backend would help
}

// Serve carries a session, see the package's comment.
func (p *Proxy) Serve(c *netconn.Conn, ci *Client, rt *Route, prefix []byte) {
	(&opening{px: p, rt: rt, c: c, prefix: prefix}).serve(ci)
}

// serve decides about a session.
func (o *opening) serve(ci *Client) {
	p, rt, s := o.px, o.rt, &Session{px: o.px, rt: o.rt, cl: *ci}
	o.s, o.now = s, clock.Now()
	parked := false // a loop goes on, and o is not ours
	p.wg.Add(1)
	defer func() {
		if !parked {
			p.wg.Done()
		}
	}()
	defer o.crashed()
	if s.cl.Began == 0 {
		s.cl.Began = o.now
	}
	if rt.Limit != nil && !rt.Limit.Acquire() {
		o.refuse(failure{reason: message.RouteFull})
		return
	}
	if p.opt.Short != nil && p.opt.Short() {
		o.giveUp(failure{reason: message.LocalMemory, detail: "no memory left for further sessions"})
		return
	}
	rt.Pool.BeginRequest(o.now)
	o.breq.Rand = rand.Uint64()
	if rt.Key != nil {
		o.breq.Key, o.breq.HasKey = rt.Key(s.cl.Peer.Addr())
	}
	parked = o.reach()
}

// crashed, deferred, lets go of what a session held that panicked before it was
// established.
func (o *opening) crashed() {
	v := recover()
	if v == nil {
		return
	}
	o.px.opt.Bug("l4", v)
	o.reset()
	if o.s.lease.Held() {
		o.s.lease.Done(pool.Outcome{Now: clock.Now(), Kind: pool.LocalFault})
	}
}

// reach connects to a backend, and to another one where that fails, until the
// session is established, over, or left to a loop that waits for a connection: it
// reports that, and then the session is not the caller's any more.
func (o *opening) reach() (parked bool) {
	for {
		f, elsewhere := o.choose()
		if elsewhere {
			return true
		}
		if f.reason != message.OK {
			if o.last.reason != message.OK {
				f = o.last // that no second backend was to be had is less true
			}
			o.giveUp(f)
			return false
		}
		if !o.chosen && o.begin() {
			return true
		}
		if o.mayNotWait {
			o.chosen = true
			o.depart()
			return true
		}
		nc, f := o.dial()
		if f.reason == message.OK {
			o.establish(nc)
			return false
		}
		if !o.another(f) {
			return false
		}
	}
}

// another judges an attempt that failed, and reports whether there is to be
// another one; else the session is over.
func (o *opening) another(f failure) bool {
	s, b := o.s, o.s.lease.Backend()
	s.lease.Done(pool.Outcome{Now: o.now, Kind: f.kind, Total: s.connect, Client: clientHash(s.cl.Peer.Addr())})
	if f.final {
		o.giveUp(f)
		return false
	}
	d := o.rt.Pool.Next(o.now, &o.rt.Retry, &o.try, pool.Failure{Kind: f.kind, Backend: b}, rand.Uint64())
	if !d.Again {
		o.giveUp(f)
		return false
	}
	o.last = f
	s.tried = append(s.tried, observe.Try{Backend: b.ID(), Reason: f.reason})
	if o.rt.PoolSeries != nil {
		o.rt.PoolSeries.Redispatch(f.reason)
	}
	return true
}

// choose reserves a slot on a backend, waiting in the pool's queue when all are
// full: elsewhere says that another goroutine does.
func (o *opening) choose() (f failure, elsewhere bool) {
	if o.chosen {
		return failure{}, false
	}
	s, p := o.s, o.rt.Pool
	o.breq.Now = o.now
	r := pool.Full
	if !o.queued {
		r = p.Pick(&s.lease, &o.breq)
	}
	if r == pool.Full && o.mayNotWait {
		o.queued = true
		o.depart()
		return failure{}, true
	}
	if r == pool.Full {
		o.queued = false
		if f := o.whole(); f.reason != message.OK {
			return f, false
		}
		r = o.wait()
	}
	if r != pool.Granted {
		return refusal(r), false
	}
	s.b = s.lease.Backend()
	o.breq.Tried.Add(s.b.Hash())
	o.breq.Rand = rand.Uint64()
	return failure{}, false
}

// wait waits for a slot as long as the client does.
func (o *opening) wait() pool.Refusal {
	gone := make(chan struct{})
	watch := o.c.OnAbort(sync.OnceFunc(func() { close(gone) }))
	defer watch.Stop()
	over := make(chan struct{})
	defer close(over)
	abort := make(chan struct{})
	go func() {
		select {
		case <-gone:
		case <-o.px.quit:
		case <-over:
		}
		close(abort)
	}()
	r := o.rt.Pool.Wait(&o.s.lease, &o.breq, 0, abort)
	waited := o.now
	o.now = clock.Now()
	o.s.queue += o.now.Sub(waited)
	return r
}

// dial makes the connection of one attempt.
func (o *opening) dial() (*netconn.Conn, failure) {
	s := o.s
	s.attempts++
	o.chosen = false
	if f := o.whole(); f.reason != message.OK {
		return nil, f
	}
	t := o.px.opt.Backend(s.b)
	if t == nil {
		o.px.opt.Bug("l4_target", s.b.ID())
		return nil, failure{reason: message.NoBackend, kind: pool.LocalFault, detail: "backend without connections", final: true}
	}
	if s.cl.Asked && t.Secure() {
		return nil, failure{reason: message.TLSFailed, kind: pool.LocalFault, detail: "the client's TLS is asked for in clear, and the backend's begins at once (tls://)"}
	}
	by := o.connectBy()
	nc, cut, err := t.OpenWith(o.now, by, o.px.quit, o.opening(t))
	began := o.now
	o.now = clock.Now()
	s.connect = o.now.Sub(began)
	if err != nil {
		return nil, dialFailure(err)
	}
	s.cut = cut
	if s.cl.Asked {
		f := o.askTLS(nc, by)
		o.now = clock.Now()
		s.connect = o.now.Sub(began)
		return nc, f
	}
	return nc, failure{}
}

// opening is what the connection of one attempt begins with. Where the backend has
// TLS its PROXY header goes before that, and what is offered in ALPN is what the client
// has agreed on with this process, and nothing else: who speaks one protocol is not to
// meet a backend that takes it for another one.
func (o *opening) opening(t *upstream.Target) (as upstream.Opening) {
	o.introduced = t.Secure() && o.rt.ProxyHeader != nil
	if !t.Secure() {
		return as
	}
	if o.introduced {
		as.Header = o.rt.ProxyHeader(nil, &o.s.cl)
	}
	if c := o.c.TLS(); c != nil {
		as.Protocol = c.ConnectionState().NegotiatedProtocol
	}
	return as
}

// establish joins both connections.
func (o *opening) establish(server *netconn.Conn) {
	s := o.s
	if !o.c.Spliceable() || !server.Spliceable() {
		prefix := o.fill()
		s.half[client].ahead = nil
		o.converse(server, prefix)
		return
	}
	err := error(nil)
	if o.loop == nil {
		err = o.chooseLoop()
	}
	if err == nil {
		_ = o.c.SetUserTimeout(upstream.DefaultUserTimeout) // an option less is no reason to refuse
		o.loop.prepare(&s.pair, pair{owner: s, slot: -1, pos: -1})
		o.fill()
		err = o.join(server)
	}
	if err != nil {
		o.px.asked.leave(s)
		s.lease.Done(pool.Outcome{Now: o.now, Kind: pool.LocalFault})
		_ = server.Close()
		o.giveUp(failure{reason: message.LocalFiles, detail: err.Error()})
	}
}

// fill makes the session of what has been decided, and returns what is to be sent
// first.
func (o *opening) fill() (prefix []byte) {
	s := o.s
	s.connected = o.now
	if o.rt.Series != nil {
		s.bytes = o.rt.Series.For(s.b.ID()).Session()
	}
	prefix = o.prefix
	if h := o.rt.ProxyHeader; h != nil && !o.introduced && !s.cl.Asked { // askTLS has sent it
		prefix = append(h(nil, &s.cl), prefix...)
	} else if len(prefix) > 0 && o.begun == nil { // else it is a copy
		prefix = slices.Clone(prefix)
	}
	o.px.open.Add(1)
	if s.cl.Asked {
		o.px.asked.enter(s)
	}
	s.half[client].ahead = prefix
	s.guarded = len(o.prefix) == 0 // else its first bytes are known to be something else
	s.idle, s.last = o.rt.Idle, o.now
	if o.rt.Total > 0 {
		s.ends = s.cl.Began.Add(o.rt.Total)
	}
	return prefix
}

// join takes both descriptors and gives them to a loop.
func (o *opening) join(server *netconn.Conn) error {
	s, loop := o.s, o.loop
	b, bClosed, err := server.Detach(s.ask)
	if err != nil {
		o.px.open.Add(-1)
		return err
	}
	c, cClosed, err := o.c.Detach(nil)
	if err != nil {
		netconn.RawClose(b)
		if bClosed != nil {
			bClosed()
		}
		o.px.open.Add(-1)
		return err
	}
	s.fd = [2]int32{int32(c), int32(b)}
	s.closed = [2]func(){cClosed, bClosed}
	// Known before the loop has it, and ended by nobody before: a loop may end it
	// at once, which leaves.
	o.px.opt.Sessions.Enter(s)
	if err := loop.add(&s.pair); err != nil {
		s.pair.over = true
		s.pair.close(end{how: endTold})
		s.over(end{how: endTold}, 0, 0)
		return nil //nolint:nilerr // the session has ended, and said so
	}
	if s.told() {
		loop.end(&s.pair) // told between the two
	}
	return nil
}
