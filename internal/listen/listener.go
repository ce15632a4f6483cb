// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/netconn"
)

// Listener serves a set of sockets with common options. Make it with Listen.
// All methods may be called from anywhere.
type Listener struct {
	// Constant after Listen.
	sockets *Sockets
	files   *netconn.Files
	crypto  *netconn.Turns
	linger  chan struct{}
	stop    chan struct{}
	tickets *tickets

	set     atomic.Pointer[settings]
	open    atomic.Int64
	refused [refusals]atomic.Int64
	shaken  [handshakes]atomic.Int64
	shaking atomic.Int64
	headers [headers]atomic.Int64 // of PROXY headers
	room    room
	clients clients

	// Of what may happen in every moment, one in a while is logged.
	saidRefused [refusals]seldom
	saidHeader  [headers]seldom
	saidEvicted seldom
	evicted     atomic.Int64 // flows that made room

	watching sync.WaitGroup // the watch of certificates
	handlers sync.WaitGroup // handlers that have not returned, refused connections that linger

	mu      sync.Mutex // guards what follows
	binds   []bound
	left    []*Socket // no longer of binds; something may still come from them
	handler func(*netconn.Conn, Info)
	bare    Bare         // set before the first connection
	packets PacketServer // of a listener for datagrams
	watched bool
	stopped bool

	leaving sync.Mutex // not mu: who is refused while a change holds that must not wait for it
	empty   *sync.Cond // on leaving: open has become zero
}

// settings are what Change replaces, immutable. A connection keeps those that
// were in force when it was accepted.
type settings struct {
	opt     Options
	certs   *certStore       // nil for plain
	refusal [refusals][]byte // the whole 503
}

// bound is one entry of Options.Bind.
type bound struct {
	where   string
	sockets []*Socket // one, but for names of systemd
	packets *Packets  // instead, of a listener for datagrams
}

// Listen takes the sockets and loads the certificates: everything that can fail
// fails here, and then nothing stays bound.
func Listen(opt Options) (*Listener, error) {
	opt.defaults()
	l := &Listener{
		sockets: opt.Sockets, files: opt.Files, stop: make(chan struct{}),
		tickets: newTickets(),
		linger:  make(chan struct{}, maxLinger), crypto: netconn.NewTurns(opt.MaxHandshakes),
	}
	l.empty = sync.NewCond(&l.leaving)
	l.set.Store(&settings{})
	commit, _, err := l.Change(opt)
	if err != nil {
		return nil, err
	}
	commit()
	return l, nil
}

func (o *Options) defaults() {
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if o.MaxHandshakes <= 0 {
		o.MaxHandshakes = runtime.GOMAXPROCS(0)
	}
	if o.Gate == nil {
		o.Gate = NewGate(0)
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = DefaultKeepAlive
	}
	if o.RetryAfter <= 0 {
		o.RetryAfter = DefaultRetryAfter
	}
	if o.Sockets == nil {
		o.Sockets = NewSockets()
	}
	if o.Files == nil {
		o.Files = new(netconn.Files)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Name returns the listener's name.
func (l *Listener) Name() string { return l.set.Load().opt.Name }

// Addrs returns the bound addresses, in the order of Options.Bind.
func (l *Listener) Addrs() []net.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []net.Addr
	for _, b := range l.binds {
		if b.packets != nil {
			out = append(out, b.packets.Addr())
		}
		for _, k := range b.sockets {
			out = append(out, k.Addr())
		}
	}
	return out
}

// Queues returns the accept queues of the TCP sockets.
func (l *Listener) Queues() []Queue {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Queue
	for _, b := range l.binds {
		for _, k := range b.sockets {
			if q, ok := queue(k.o.ln); ok {
				out = append(out, q)
			}
		}
	}
	return out
}

// Connections returns the number of open client connections.
func (l *Listener) Connections() int { return int(l.open.Load()) }

// Refused returns how many connections were refused for a reason.
func (l *Listener) Refused(r Refusal) int64 { return l.refused[r].Load() }

// Reload loads the certificate files if they changed. On an error the old ones
// stay. It does nothing on a plain listener.
func (l *Listener) Reload() error {
	if certs := l.set.Load().certs; certs != nil {
		return certs.reload()
	}
	return nil
}

// Serve accepts connections and runs handler on a goroutine of its own for
// each, after the handshake where there is TLS. The connection is the
// handler's: it may hand it on (to a Parker) and return; whoever holds it last
// closes it. A handler that panics has its connection closed. Serve returns nil
// after Stop; connections go on. Call it once.
func (l *Listener) Serve(handler func(*netconn.Conn, Info)) error {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return nil
	}
	l.handler = handler
	l.watchLocked()
	for _, b := range l.binds {
		l.openDoors(b)
	}
	l.mu.Unlock()
	l.over()
	return nil
}

// openDoors makes the listener the one who serves the sockets of a bind. Called
// under mu.
func (l *Listener) openDoors(b bound) {
	for _, k := range b.sockets {
		k.serve(&door{l: l})
	}
}

// Stop gives the sockets up: unless somebody else holds them they are closed
// when those who are connected or in the middle of their handshake have been
// accepted, which Wait waits for. Connections that are open go on.
func (l *Listener) Stop() { l.end(linger) }

// StopNow is Stop without the wait for handshakes.
func (l *Listener) StopNow() { l.end(0) }

func (l *Listener) end(grace time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	l.stopped = true
	close(l.stop)
	l.tickets.close()
	for _, b := range l.binds {
		if b.packets != nil {
			l.leavePackets(b.packets)
		}
		for _, k := range b.sockets {
			_ = k.release(grace) // nothing can be done, and nothing depends on it
		}
	}
}

// over returns when, after Stop, nothing is accepted any more.
func (l *Listener) over() {
	<-l.stop
	l.mu.Lock()
	all := slices.Clone(l.left)
	for _, b := range l.binds {
		all = append(all, b.sockets...)
	}
	l.mu.Unlock()
	for _, k := range all {
		<-k.Done()
	}
}

// Wait returns when, after Stop, the last connection is closed and no goroutine
// of the listener is left.
func (l *Listener) Wait() {
	l.over()
	l.watching.Wait()
	l.leaving.Lock()
	for l.open.Load() > 0 {
		l.empty.Wait()
	}
	l.leaving.Unlock()
	l.handlers.Wait()
}

// handle makes a connection of an accepted socket and runs it.
func (l *Listener) handle(set *settings, nc net.Conn, remote netip.AddrPort, counted bool) {
	info := Info{Listener: set.opt.Name, Local: addrPort(nc.LocalAddr()), Remote: remote}
	var by balance.Instant
	if set.opt.Proxy.listed(remote) {
		by = set.handshakeBy()
		var ok bool
		if counted, ok = l.introduce(set, nc, &info, by); !ok {
			return
		}
	}
	client := info.Remote.Addr()
	var c *netconn.Conn
	if set.certs != nil {
		c = netconn.Server(nc, set.certs.config)
	} else {
		c = netconn.New(nc)
	}
	c.SetOnClose(func() { l.leave(set, client, counted) })
	if set.certs == nil {
		l.run(set, c, info)
		return
	}
	defer l.guard(set, c)
	if err := l.handshake(set, c, &info, by); err != nil {
		l.unshaken(set, remote, err)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			if !set.opt.Mute {
				answerPlain(nc, err)
			}
			l.noTLS(set, remote, err)
		}
		_ = c.Close()
		return
	}
	if info.ALPN == challengeALPN {
		_ = c.Close() // the handshake is the answer (RFC 8737, section 3)
		return
	}
	// On a goroutine of its own: the handshake's deep stack is not kept for
	// the life of the connection.
	l.handlers.Go(func() { l.run(set, c, info) })
}

// unshaken counts a handshake that did not come about.
func (l *Listener) unshaken(set *settings, client netip.AddrPort, err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.count(set, HandshakeTimeout)
	} else {
		l.count(set, HandshakeFailed)
	}
	set.opt.Logger.Debug("handshake failed", "listener", set.opt.Name, "client", client, "error", err)
}

func (l *Listener) run(set *settings, c *netconn.Conn, info Info) {
	defer l.guard(set, c)
	l.handler(c, info) // set before the first connection, and not again
}

// guard, deferred, turns a panic into the loss of one connection.
func (l *Listener) guard(set *settings, c *netconn.Conn) {
	v := recover()
	if v == nil {
		return
	}
	_ = c.Close()
	l.panicked(set, v, debug.Stack())
}

// panicked tells of a handler that did.
func (l *Listener) panicked(set *settings, v any, stack []byte) {
	set.opt.Logger.Error("connection handler panicked", "listener", set.opt.Name, "panic", v, "stack", string(stack))
	if set.opt.OnPanic != nil {
		set.opt.OnPanic(v, stack)
	}
}

// enter takes a place for a connection from a client, or says why there is none.
// counted is to be given back with the place.
func (l *Listener) enter(set *settings, client netip.Addr) (why Refusal, counted, ok bool) {
	if !reserve(&l.open, int64(set.opt.MaxConnections)) {
		return ListenerLimit, false, false
	}
	if !set.opt.Gate.enter() {
		l.undo()
		return ProcessLimit, false, false
	}
	if counted, ok = l.clients.enter(client, set.opt.MaxPerClient); !ok {
		set.opt.Gate.leave()
		l.undo()
		return ClientLimit, false, false
	}
	return 0, counted, true
}

// leave gives the place back.
func (l *Listener) leave(set *settings, client netip.Addr, counted bool) {
	if counted {
		l.clients.leave(client)
	}
	set.opt.Gate.leave()
	l.undo()
	l.room.signal()
}

// undo takes one off the count.
func (l *Listener) undo() {
	if l.open.Add(-1) == 0 {
		l.leaving.Lock()
		l.empty.Broadcast()
		l.leaving.Unlock()
	}
}

func (l *Listener) count(set *settings, r Refusal) {
	l.refused[r].Add(1)
	if set.opt.OnRefused != nil {
		set.opt.OnRefused(r)
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
