// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/netconn"
)

// peekAfter is how long a connection may have been idle to be used without a
// look at it: nearly all reuse under load is younger. A request that must not be
// replayed is worth a look in any case: what a backend sends beyond its answer
// would cost it its own.
const peekAfter = 5 * time.Millisecond

// Target is one backend's connections. Make it with NewTarget and Close it. All
// methods may be called from anywhere; only Dial waits.
type Target struct {
	set atomic.Pointer[settings] // replaced as a whole by Reconfigure

	// Constant after construction.
	network string // tcp or unix
	host    string // of a name; empty for an IP address or a path
	server  string // the host of the address, whatever it is: the name for TLS
	port    uint16
	fixed   []netip.Addr // the address itself when it is one
	names   *Resolver
	own     bool // names is this Target's to close
	files   *netconn.Files

	client    *http2.Client
	ownClient bool         // client is this Target's to close
	waiting   atomic.Int32 // mux.waiters
	muxed     atomic.Int32 // mux.conns
	unkept    atomic.Bool  // draining or closed
	plain     atomic.Bool  // the backend has chosen HTTP/1.1 under HTTP2Offered

	open          atomic.Int64
	fresh, reused atomic.Int64
	failed, stale atomic.Int64
	turn          atomic.Uint32 // of Options.Bind
	good          atomic.Pointer[netip.Addr]

	mu       sync.Mutex // guards the rest; taken before a Poller's lock
	idle     []*Conn    // the most recently used last
	all      *Conn      // first of the list of open ones, those on loan included
	draining bool
	over     bool // and was cut: its drain is over
	closed   bool
	sweeping bool // timer is set
	timer    *time.Timer
	learner  learner
	looks    looks
	mux      streams
}

// NewTarget prepares connections to one backend. Nothing is dialed or resolved.
func NewTarget(opt Options) *Target {
	t := &Target{network: "tcp", names: opt.Resolver, files: opt.Files}
	if t.files == nil {
		t.files = new(netconn.Files)
	}
	host, port := "", ""
	if path, ok := strings.CutPrefix(opt.Address, "unix:"); ok {
		t.network, opt.Address = "unix", path
	} else if h, p, err := net.SplitHostPort(opt.Address); err == nil {
		host, port = h, p
	} else {
		host = opt.Address // dialing says what is wrong with it
	}
	if n, err := net.LookupPort("tcp", port); err == nil {
		t.port = uint16(n)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		t.fixed = []netip.Addr{a.Unmap()}
	} else {
		t.host = host
	}
	if t.host != "" && t.names == nil {
		t.names, t.own = NewResolver(), true
	}
	t.server = host
	if t.client = opt.HTTP2; t.client == nil {
		t.client, t.ownClient = new(http2.Client), true
	}
	t.set.Store(newSettings(opt, host))
	return t
}

// Get returns an idle connection that may carry a request now, or nil. With
// unsafe (a request that must not be replayed) only one that was used so
// recently that the backend cannot have closed it meanwhile.
func (t *Target) Get(now balance.Instant, unsafe bool) *Conn { return t.GetFor(now, unsafe, nil) }

// GetFor is Get of a connection that began with a PROXY header; nil: with none.
func (t *Target) GetFor(now balance.Instant, unsafe bool, header []byte) *Conn {
	for {
		c, learned := t.take(now, unsafe, header)
		if c == nil {
			return nil
		}
		c.idleFor = now.Sub(c.since)
		switch keep := c.keepFor(t.set.Load().KeepAlive, learned); {
		case keep > 0 && c.idleFor >= keep, c.dies != 0 && now >= c.dies, c.epoch != t.set.Load().epoch, c.nc.Aborted(), t.moved(c):
			c.Close()
			continue
		case unsafe, now.Sub(c.fresh()) > peekAfter:
			if unsafe && c.nc.Peek() != netconn.Quiet || !unsafe && !t.quiet(c, now) {
				t.stale.Add(1)
				c.Close()
				continue
			}
		}
		c.requests++
		t.reused.Add(1)
		return c
	}
}

// take takes the most recently used connection that began with the header. All
// below it have been idle for longer, so when it is too old for an unsafe request
// there is none.
func (t *Target) take(now balance.Instant, unsafe bool, header []byte) (*Conn, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.idle)
	for n > 0 && t.idle[n-1].header != string(header) {
		n--
	}
	if n == 0 {
		return nil, 0
	}
	c := t.idle[n-1]
	learned := t.learner.timeout(now)
	if unsafe && now.Sub(c.since) > c.unsafeFor(t.set.Load().ReuseUnsafeWithin, learned) {
		return nil, 0
	}
	t.idle = slices.Delete(t.idle, n-1, n)
	t.unwatch(c)
	c.turn++
	return c, learned
}

// Put takes a connection back after a complete exchange. One that cannot or
// should not be kept is closed; so is one that was aborted in its last moment,
// when the whole answer was there and its client left. Either way what was read from it is no longer
// valid: its buffers are given back.
func (t *Target) Put(c *Conn, now balance.Instant) {
	if !c.Reusable() || c.nc.Aborted() || c.epoch != t.set.Load().epoch || t.set.Load().MaxIdle <= 0 ||
		(t.set.Load().MaxRequests > 0 && c.requests >= t.set.Load().MaxRequests) ||
		(c.dies != 0 && now >= c.dies) || t.moved(c) {
		c.Close()
		return
	}
	c.Release()
	c.since = now
	var excess *Conn
	t.mu.Lock()
	if t.draining || t.closed {
		excess = c
	} else {
		if len(t.idle) >= t.set.Load().MaxIdle && now.Sub(t.idle[0].since) >= excessFor {
			excess = t.idle[0] // the one least likely to be used
			t.unwatch(excess)
			t.idle = slices.Delete(t.idle, 0, 1)
		}
		t.idle = append(t.idle, c)
		t.sweepIn(watchAfter)
	}
	t.mu.Unlock()
	if excess != nil {
		excess.Close()
	}
}

// moved reports whether the backend's name no longer stands for the address of
// a connection. It also starts the refresh of an answer that has grown old.
func (t *Target) moved(c *Conn) bool {
	if t.host == "" {
		return false
	}
	addrs := t.names.known(t.host, clock.Now)
	return len(addrs) > 0 && !slices.Contains(addrs, c.addr)
}

// CloseIdle closes all idle connections. Those on loan are not touched.
func (t *Target) CloseIdle() { t.closeIdle(func(n int) int { return n }) }

// Thin closes half of the idle connections, those that were used longest ago,
// and returns how many.
func (t *Target) Thin() int { return t.closeIdle(func(n int) int { return (n + 1) / 2 }) }

// closeIdle closes so many of n idle connections.
func (t *Target) closeIdle(part func(n int) int) int {
	t.mu.Lock()
	n := part(len(t.idle))
	out := slices.Clone(t.idle[:n])
	for _, c := range out {
		t.unwatch(c)
	}
	t.idle = slices.Delete(t.idle, 0, n)
	n += t.retireIdle(part)
	t.mu.Unlock()
	for _, c := range out {
		c.Close()
	}
	return n
}

// SetDraining says whether connections that are given back are closed rather
// than kept. Draining closes the idle ones.
func (t *Target) SetDraining(v bool) {
	t.mu.Lock()
	t.draining = v
	t.over = t.over && v
	t.unkept.Store(v || t.closed)
	t.mu.Unlock()
	if v {
		t.CloseIdle()
	}
}

// Close closes the idle connections; those on loan are closed when they are
// given back.
func (t *Target) Close() {
	t.mu.Lock()
	t.closed = true
	t.unkept.Store(true)
	if t.timer != nil {
		t.timer.Stop()
	}
	t.mu.Unlock()
	t.CloseIdle()
	if t.own {
		t.names.Close()
	}
	if t.ownClient {
		go t.client.Close() // it waits for what is under way
	}
}

// Stats returns the figures of this moment.
func (t *Target) Stats() Stats {
	s := Stats{
		Open: int(t.open.Load()), Fresh: t.fresh.Load(), Reused: t.reused.Load(),
		Failed: t.failed.Load(), Stale: t.stale.Load(), Addresses: t.fixed,
	}
	if t.host != "" {
		s.Addresses = t.names.known(t.host, nil)
	}
	t.mu.Lock()
	s.Idle = len(t.idle) + t.idleStreams()
	now := clock.Now()
	if s.LearnedIdle = t.learner.timeout(now); s.LearnedIdle != 0 {
		s.LearnedAge = now.Sub(t.learner.at)
	}
	t.mu.Unlock()
	s.InUse = max(s.Open-s.Idle, 0)
	return s
}
