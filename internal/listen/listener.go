// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// Listener is a set of bound sockets with common options. Make it with Listen.
// All methods may be called from anywhere.
type Listener struct {
	// Constant after Listen.
	opt     Options
	lns     []net.Listener
	certs   *certStore // nil for plain
	files   int        // RLIMIT_NOFILE
	crypto  *netconn.Turns
	refusal []byte // the whole 503
	linger  chan struct{}

	open    atomic.Int64
	refused [refusals]atomic.Int64
	room    room
	clients clients
	stop    chan struct{}

	serving  sync.WaitGroup // accept loops and the watch of certificates
	handlers sync.WaitGroup // handlers that have not returned, refused connections that linger

	mu      sync.Mutex
	stopped bool       // guarded by mu
	empty   *sync.Cond // on mu: open has become zero
}

// Listen binds the sockets and loads the certificates: everything that can fail
// fails here, and then nothing stays bound.
func Listen(opt Options) (*Listener, error) {
	opt.defaults()
	if len(opt.Bind) == 0 {
		return nil, fmt.Errorf("listener %s: nothing to bind", opt.Name)
	}
	l := &Listener{
		opt: opt, files: netconn.FileLimit(), stop: make(chan struct{}),
		linger: make(chan struct{}, maxLinger), clients: clients{most: opt.MaxPerClient},
		refusal: refusalText(opt.RetryAfter),
	}
	l.empty = sync.NewCond(&l.mu)
	if opt.TLS != nil {
		store, err := newCertStore(*opt.TLS, opt.Logger.With("listener", opt.Name))
		if err != nil {
			return nil, fmt.Errorf("listener %s: %w", opt.Name, err)
		}
		l.certs = store
		l.crypto = netconn.NewTurns(opt.MaxHandshakes)
	}
	for _, where := range opt.Bind {
		ln, err := bindOne(context.Background(), where, opt.KeepAlive)
		if err != nil {
			l.closeSockets()
			return nil, fmt.Errorf("listener %s: %w", opt.Name, err)
		}
		if u, ok := ln.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(true)
		}
		l.lns = append(l.lns, ln)
	}
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
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Name returns the listener's name.
func (l *Listener) Name() string { return l.opt.Name }

// Addrs returns the bound addresses, in the order of Options.Bind.
func (l *Listener) Addrs() []net.Addr {
	out := make([]net.Addr, len(l.lns))
	for i, ln := range l.lns {
		out[i] = ln.Addr()
	}
	return out
}

// Queues returns the accept queues of the TCP sockets.
func (l *Listener) Queues() []Queue {
	var out []Queue
	for _, ln := range l.lns {
		if q, ok := queue(ln); ok {
			out = append(out, q)
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
	if l.certs == nil {
		return nil
	}
	return l.certs.reload()
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
	if l.certs != nil {
		l.serving.Go(func() { l.certs.watch(l.stop) })
	}
	for _, ln := range l.lns {
		l.serving.Go(func() { l.accept(ln, handler) })
	}
	l.mu.Unlock()
	l.serving.Wait()
	return nil
}

// Stop closes the listening sockets. Connections that are open go on; those in
// the accept queue are lost to the kernel, which resets them.
func (l *Listener) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	l.stopped = true
	close(l.stop)
	l.closeSockets()
}

// Wait returns when, after Stop, the last connection is closed and no goroutine
// of the listener is left.
func (l *Listener) Wait() {
	<-l.stop
	l.serving.Wait() // from here on nothing is accepted
	l.mu.Lock()
	for l.open.Load() > 0 {
		l.empty.Wait()
	}
	l.mu.Unlock()
	l.handlers.Wait()
}

func (l *Listener) closeSockets() {
	for _, ln := range l.lns {
		_ = ln.Close() // nothing can be done, and nothing depends on it
	}
}

// handle makes a connection of an accepted socket and runs it.
func (l *Listener) handle(nc net.Conn, remote netip.AddrPort, handler func(*netconn.Conn, Info)) {
	info := Info{Listener: l.opt.Name, Local: addrPort(nc.LocalAddr()), Remote: remote}
	var c *netconn.Conn
	if l.certs != nil {
		c = netconn.Server(nc, l.certs.config)
	} else {
		c = netconn.New(nc)
	}
	c.SetOnClose(func() { l.leave(remote.Addr()) })
	if l.certs == nil {
		l.run(c, info, handler)
		return
	}
	defer l.guard(c)
	if err := l.handshake(c, &info); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			l.count(HandshakeTimeout)
		} else {
			l.count(HandshakeFailed)
			answerPlain(nc, err)
		}
		l.opt.Logger.Debug("handshake failed", "listener", l.opt.Name, "client", remote, "error", err)
		_ = c.Close()
		return
	}
	// On a goroutine of its own: the handshake's deep stack is not kept for
	// the life of the connection.
	l.handlers.Go(func() { l.run(c, info, handler) })
}

func (l *Listener) run(c *netconn.Conn, info Info, handler func(*netconn.Conn, Info)) {
	defer l.guard(c)
	handler(c, info)
}

// guard, deferred, turns a panic into the loss of one connection.
func (l *Listener) guard(c *netconn.Conn) {
	v := recover()
	if v == nil {
		return
	}
	_ = c.Close()
	stack := debug.Stack()
	l.opt.Logger.Error("connection handler panicked", "listener", l.opt.Name, "panic", v, "stack", string(stack))
	if l.opt.OnPanic != nil {
		l.opt.OnPanic(v, stack)
	}
}

func (l *Listener) handshake(c *netconn.Conn, info *Info) error {
	var by balance.Instant
	if l.opt.HandshakeTimeout > 0 {
		by = clock.Now().Add(l.opt.HandshakeTimeout)
	}
	if err := c.HandshakeTurns(by, l.crypto); err != nil {
		return err
	}
	st := c.TLS().ConnectionState()
	info.TLS, info.SNI, info.ALPN, info.TLSVersion = true, st.ServerName, st.NegotiatedProtocol, st.Version
	return nil
}

// plainAnswer is what somebody gets who speaks HTTP where TLS is expected: they
// would look for the mistake everywhere else if the connection just closed.
const plainAnswer = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: 43\r\n\r\n" +
	"weir: 400 HTTP was sent where TLS is spoken"

// answerPlain sends it if that is why the handshake failed. Nothing has been
// sent on the connection before, so the write cannot block.
func answerPlain(nc net.Conn, err error) {
	var r tls.RecordHeaderError
	if !errors.As(err, &r) {
		return
	}
	switch string(r.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH":
		_, _ = io.WriteString(nc, plainAnswer) // it may have gone: then nobody misses it
	}
}

// enter takes a place for a connection from a client, or says why there is none.
func (l *Listener) enter(client netip.Addr) (Refusal, bool) {
	if n := l.open.Add(1); l.opt.MaxConnections > 0 && n > int64(l.opt.MaxConnections) {
		l.undo()
		return ListenerLimit, false
	}
	if !l.opt.Gate.enter() {
		l.undo()
		return ProcessLimit, false
	}
	if !l.clients.enter(client) {
		l.opt.Gate.leave()
		l.undo()
		return ClientLimit, false
	}
	return 0, true
}

// leave gives the place back.
func (l *Listener) leave(client netip.Addr) {
	l.clients.leave(client)
	l.opt.Gate.leave()
	l.undo()
	l.room.signal()
}

// undo takes one off the count.
func (l *Listener) undo() {
	if l.open.Add(-1) == 0 {
		l.mu.Lock()
		l.empty.Broadcast()
		l.mu.Unlock()
	}
}

func (l *Listener) count(r Refusal) {
	l.refused[r].Add(1)
	if l.opt.OnRefused != nil {
		l.opt.OnRefused(r)
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

// sleep pauses the accept loop; false when the listener stopped.
func (l *Listener) sleep(d time.Duration, wake ...<-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	var a, b <-chan struct{}
	if len(wake) == 2 {
		a, b = wake[0], wake[1]
	}
	select {
	case <-l.stop:
		return false
	case <-t.C:
	case <-a:
	case <-b:
	}
	return true
}
