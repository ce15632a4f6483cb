// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/http2"
)

// Protocol is what a backend is spoken to in.
type Protocol uint8

// The protocols.
const (
	HTTP1 Protocol = iota
	// HTTP2 is spoken from the first byte on; under TLS the backend must agree to
	// h2.
	HTTP2
	// HTTP2Offered is HTTP2 where the backend agrees to h2 in TLS, and HTTP1
	// otherwise.
	HTTP2Offered
)

var errNotAgreed = errors.New("the backend does not agree to h2 (ALPN)")

// streams are the connections of a Target that speak HTTP/2. Guarded by
// Target.mu, which is taken before a connection's own lock.
type streams struct {
	conns   []*Conn       // that may take further streams
	dials   []*streamDial // under way
	waiters []*waiter     // for room on a connection, who came first in front
	rude    bool          // the backend was seen to close without GOAWAY
}

// streamDial is a connection that is being made, for all that wait for it.
type streamDial struct {
	header string
	joined int           // how many wait; guarded by Target.mu
	done   chan struct{} // closed when what follows is set
	err    error
	mux    *http2.ClientConn
	plain  *Conn // the backend has chosen HTTP/1.1: whoever takes it first; guarded by Target.mu
}

// waiter waits for room.
type waiter struct{ wake chan struct{} }

// GetStream opens an exchange on a connection that is there and has room: the one
// that carries the fewest. nil: there is none. header as for GetFor.
//
// How long a connection was idle matters less than over HTTP/1.1: when the
// backend closes it, GOAWAY says which requests were not processed, and those are
// safe to repeat. Where a backend was seen to close without that, an unsafe
// request takes no connection that was idle for longer than S8 allows.
func (t *Target) GetStream(now balance.Instant, unsafe bool, header []byte) *http2.ClientStream {
	if t.muxed.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	s := t.openStream(now, unsafe, header)
	t.mu.Unlock()
	if s != nil {
		t.reused.Add(1)
	}
	return s
}

// openStream is GetStream under mu, not counted.
func (t *Target) openStream(now balance.Instant, unsafe bool, header []byte) *http2.ClientStream {
	best := -1
	for i, c := range t.mux.conns {
		switch {
		case c.mux.Room() <= 0 || c.header != string(header):
		case c.dies != 0 && now >= c.dies, c.epoch != t.set.Load().epoch, t.moved(c):
			c.mux.Retire()
		case unsafe && t.mux.rude && c.mux.IdleFor(now) > c.unsafeFor(t.set.Load().ReuseUnsafeWithin, t.learner.timeout(now)):
		case best < 0 || c.mux.Streams() < t.mux.conns[best].mux.Streams():
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	if s := t.mux.conns[best].mux.Open(now); s != nil {
		return s
	}
	// It does not answer PING, or has just lost its room: not this one.
	return t.openBeside(now, header, best)
}

// openBeside opens an exchange on any connection but one.
func (t *Target) openBeside(now balance.Instant, header []byte, but int) *http2.ClientStream {
	for i, c := range t.mux.conns {
		if i == but || c.header != string(header) || c.mux.Room() <= 0 {
			continue
		}
		if s := c.mux.Open(now); s != nil {
			return s
		}
	}
	return nil
}

// DialStream opens an exchange where no connection has room: on one that is being
// made already, on a further one, or, where as many are open as may be, when
// another exchange has ended. It waits until the deadline (0: for ever) or until
// abort is closed. A backend that has chosen HTTP/1.1 gives a Conn instead. Errors
// are *DialError.
func (t *Target) DialStream(now, deadline balance.Instant, abort <-chan struct{}, header []byte) (*http2.ClientStream, *Conn, error) {
	if t.plain.Load() || t.set.Load().Protocol == HTTP1 {
		c, err := t.DialFor(now, deadline, abort, header)
		if err != nil || c.mux == nil {
			return nil, c, err
		}
		t.plain.Store(false) // the backend has changed its mind
		t.adopt(c)
		now = clock.Now()
	}
	var late <-chan time.Time
	if deadline != 0 {
		timer := time.NewTimer(deadline.Sub(now))
		defer timer.Stop()
		late = timer.C
	}
	for vain := 0; ; {
		t.mu.Lock()
		if s := t.openStream(now, true, header); s != nil {
			t.mu.Unlock()
			if s.Reused() {
				t.reused.Add(1)
			}
			return s, nil, nil
		}
		if t.over {
			t.mu.Unlock()
			return nil, nil, &DialError{Kind: DrainOver, Addr: t.set.Load().Address, Err: errDrainOver}
		}
		d := t.dialFor(header)
		if d == nil {
			if err := t.awaitRoom(late, abort); err != nil {
				return nil, nil, err
			}
			now = clock.Now()
			continue
		}
		d.joined++
		t.mu.Unlock()
		err := t.awaitDial(d, late, abort)
		t.mu.Lock()
		d.joined--
		var plain *Conn
		if err == nil || d.joined == 0 { // else others have come for it as well
			plain, d.plain = d.plain, nil
		}
		t.mu.Unlock()
		switch {
		case err != nil:
			if plain != nil {
				plain.Close()
			}
			return nil, nil, err
		case plain != nil:
			return nil, plain, nil
		case d.err == errPlain: //nolint:errorlint // it is never wrapped
			return t.DialStream(clock.Now(), deadline, abort, header)
		case d.err != nil:
			return nil, nil, d.err
		case d.mux.Room()+d.mux.Streams() <= 0:
			d.mux.Retire()
			if vain++; vain == vainMost {
				return nil, nil, &DialError{Kind: Refused, Addr: t.set.Load().Address, Err: errVain}
			}
		}
		now = clock.Now()
	}
}

// vainMost is how many connections an exchange waits for of a backend that takes
// none on them: it says GOAWAY as soon as it is connected to, or allows no stream.
const vainMost = 3

var errVain = errors.New("the backend is connected to, and takes no request: it says GOAWAY at once or allows no stream")

// errPlain is the end of a dial whose backend has chosen HTTP/1.1.
var errPlain = errors.New("HTTP/1.1 was agreed on")

// dialFor returns a dial that has room for one more, which it may start; nil when
// no further connection may be made. Called with mu held.
func (t *Target) dialFor(header []byte) *streamDial {
	o := t.set.Load()
	for _, d := range t.mux.dials {
		if d.header == string(header) && d.joined < o.MaxStreams {
			return d
		}
	}
	if o.MaxConns > 0 && t.open.Load()+int64(len(t.mux.dials)) >= int64(o.MaxConns) && len(t.mux.conns)+len(t.mux.dials) > 0 {
		return nil
	}
	d := &streamDial{header: string(header), done: make(chan struct{})}
	t.mux.dials = append(t.mux.dials, d)
	go t.runDial(d)
	return d
}

// runDial makes a connection. It is nobody's in particular: that the exchange
// which wanted it first is over ends it for none of the others.
func (t *Target) runDial(d *streamDial) {
	o := t.set.Load()
	now := clock.Now()
	limit := earlier(0, now, o.ConnectTimeout)
	if limit != 0 {
		limit = limit.Add(o.TLSTimeout)
	}
	c, err := t.DialFor(now, limit, nil, []byte(d.header))
	if err == nil && c.mux != nil {
		d.mux = c.mux
		t.adopt(c)
	}
	t.mu.Lock()
	if i := slices.Index(t.mux.dials, d); i >= 0 {
		t.mux.dials = slices.Delete(t.mux.dials, i, i+1)
	}
	unused := d.joined == 0
	unkept := unused && (t.draining || t.closed)
	switch {
	case err != nil:
		d.err = err
	case c.mux == nil:
		d.err = errPlain
		t.plain.Store(true)
		if !unused {
			d.plain = c
		}
	}
	t.mu.Unlock()
	close(d.done)
	t.wakeAll()
	switch {
	case err == nil && c.mux != nil && unkept:
		c.mux.Retire()
	case err == nil && c.mux == nil && unused:
		c.Close()
	}
}

// adopt makes a connection one that takes exchanges.
func (t *Target) adopt(c *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.ended {
		t.mux.conns = append(t.mux.conns, c)
		t.muxed.Store(int32(len(t.mux.conns)))
	}
}

func (t *Target) awaitDial(d *streamDial, late <-chan time.Time, abort <-chan struct{}) error {
	select {
	case <-d.done:
		return nil
	case <-abort:
		return &DialError{Kind: Canceled, Addr: t.set.Load().Address, Err: errAborted}
	case <-late:
		return &DialError{Kind: Timeout, Addr: t.set.Load().Address, Err: fmt.Errorf("connect: %w", os.ErrDeadlineExceeded)}
	}
}

// awaitRoom waits until an exchange ends. Called with mu held, which it gives up.
func (t *Target) awaitRoom(late <-chan time.Time, abort <-chan struct{}) error {
	w := &waiter{make(chan struct{}, 1)}
	t.mux.waiters = append(t.mux.waiters, w)
	t.waiting.Add(1)
	t.mu.Unlock()
	var err error
	select {
	case <-w.wake:
		return nil
	case <-abort:
		err = &DialError{Kind: Canceled, Addr: t.set.Load().Address, Err: errAborted}
	case <-late:
		err = &DialError{Kind: Limit, Addr: t.set.Load().Address, Err: errMaxConns}
	}
	t.mu.Lock()
	i := slices.Index(t.mux.waiters, w)
	if i >= 0 {
		t.mux.waiters = slices.Delete(t.mux.waiters, i, i+1)
		t.waiting.Add(-1)
	}
	t.mu.Unlock()
	if i < 0 {
		t.wakeOne() // what it was woken for is another's
	}
	return err
}

func (t *Target) wakeOne() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mux.waiters) > 0 {
		t.mux.waiters[0].wake <- struct{}{}
		t.mux.waiters = slices.Delete(t.mux.waiters, 0, 1)
		t.waiting.Add(-1)
	}
}

func (t *Target) wakeAll() {
	if t.waiting.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.mux.waiters {
		w.wake <- struct{}{}
	}
	t.waiting.Add(-int32(len(t.mux.waiters)))
	t.mux.waiters = nil
}

// speak begins HTTP/2 on a connection, if that is what was agreed on.
func (t *Target) speak(c *Conn, o *settings, deadline balance.Instant) error {
	if o.Protocol == HTTP1 {
		return nil
	}
	if o.tls != nil {
		agreed := c.nc.TLS().ConnectionState().NegotiatedProtocol
		switch {
		case agreed == "h2":
		case o.Protocol == HTTP2Offered:
			return nil
		default:
			return &DialError{Kind: TLS, Addr: o.Address, Err: errNotAgreed}
		}
	}
	t.mu.Lock()
	keep := c.keepFor(o.KeepAlive, t.learner.timeout(clock.Now()))
	t.mu.Unlock()
	m, err := t.client.Start(c.nc, http2.ClientSettings{
		Limits: o.Limits, Secure: o.tls != nil, MaxStreams: o.MaxStreams, MaxTotal: int64(o.MaxRequests),
		Keep: keep, Dies: c.dies, Stall: o.UserTimeout, Ping: o.Ping,
	}, owner{t, c}, deadline)
	if err == nil {
		t.mu.Lock()
		c.mux = m
		t.mu.Unlock()
		if c.CutShort() {
			m.Cut() // Cut came before it could know
		}
		return nil
	}
	kind := kindOf(err)
	var bad *http1.Error
	switch {
	case errors.As(err, &bad):
		kind = NotHTTP
	case errors.Is(err, http2.ErrNoHello):
		kind = Timeout
	}
	return &DialError{Kind: kind, Addr: c.nc.RemoteAddr().String(), Err: err}
}

// owner hears of one connection.
type owner struct {
	t *Target
	c *Conn
}

// Freed implements http2.Owner.
func (o owner) Freed(m *http2.ClientConn, idle bool) {
	t := o.t
	if t.waiting.Load() > 0 {
		t.wakeOne()
	}
	if idle && (t.unkept.Load() || int(t.muxed.Load()) > t.set.Load().MaxIdle) {
		t.spare(m)
	}
}

// spare ends a connection without exchanges when enough others have none.
func (t *Target) spare(m *http2.ClientConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, c := range t.mux.conns {
		if c.mux.Streams() == 0 {
			n++
		}
	}
	if n > t.set.Load().MaxIdle || t.draining || t.closed {
		m.Retire()
	}
}

// More implements http2.Owner.
func (o owner) More(*http2.ClientConn) { o.t.wakeAll() }

// Over implements http2.Owner.
func (o owner) Over(_ *http2.ClientConn, err error, idle time.Duration, closed bool) {
	t, c := o.t, o.c
	polite := http2.IsGoAway(err)
	t.mu.Lock()
	c.ended = true
	if i := slices.Index(t.mux.conns, c); i >= 0 {
		t.mux.conns = slices.Delete(t.mux.conns, i, i+1)
		t.muxed.Store(int32(len(t.mux.conns)))
	}
	t.mux.rude = t.mux.rude || closed && !polite && !t.closed
	t.mu.Unlock()
	if idle > 0 && (closed || polite) {
		t.closedByPeer(clock.Now(), idle)
		t.adjustKeep()
	}
	t.wakeAll()
}

// adjustKeep tells the connections what was learned.
func (t *Target) adjustKeep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	learned := t.learner.timeout(clock.Now())
	for _, c := range t.mux.conns {
		c.mux.SetKeep(c.keepFor(t.set.Load().KeepAlive, learned))
	}
}

// retireIdle ends connections without exchanges, so many of n, and returns how
// many. Called with mu held.
func (t *Target) retireIdle(part func(n int) int) int {
	var idle []*Conn
	for _, c := range t.mux.conns {
		if c.mux.Streams() == 0 {
			idle = append(idle, c)
		}
	}
	n := part(len(idle))
	for _, c := range idle[:n] {
		c.mux.Retire()
	}
	return n
}

// idleStreams counts connections without exchanges. Called with mu held.
func (t *Target) idleStreams() (n int) {
	for _, c := range t.mux.conns {
		if c.mux.Streams() == 0 {
			n++
		}
	}
	return n
}
