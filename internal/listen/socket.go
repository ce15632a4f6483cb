// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// linger is how long a socket that is given up still accepts those that are in
// the middle of their handshake: a round trip across a continent. New ones are
// no longer let in meanwhile.
const linger = 100 * time.Millisecond

// acceptor is a listening socket of the net package.
type acceptor interface {
	net.Listener
	syscall.Conn
	SetDeadline(time.Time) error
}

// server is who serves what a socket accepts.
type server interface {
	// accepted is called with one connection after the other and returns soon,
	// at the latest when t is over. False: it has stopped, and did not touch nc. It is
	// called by one goroutine at a time.
	accepted(nc net.Conn, t *turn) bool
	// failed is called when accepting failed.
	failed(err error)
}

// turn is one server's time on a socket.
type turn struct {
	srv   server
	over  chan struct{} // closed when another one's begins
	ended chan struct{} // closed when nothing more can come
}

// open is one listening socket and its accept loop.
type open struct {
	// Constant.
	set       *Sockets
	bind      string
	addr      net.Addr
	ln        acceptor
	path      string      // of a socket file that is removed at the end
	file      os.FileInfo // as it was made; another one's is left alone
	inherited bool        // somebody outside may have it, too

	now      atomic.Pointer[turn]
	idle     atomic.Int64  // of keepalive, nanoseconds; not positive: off
	delivery sync.RWMutex  // held, for reading, while one connection is handed over
	rounds   atomic.Uint64 // of the accept loop
	halted   atomic.Bool   // the accept loop has something else to see to, see until
	attend   chan struct{} // capacity 1: has the accept loop look up while the socket is lent
	back     atomic.Bool   // and take it back

	// Guarded by set.mu.
	holds    int
	claimed  bool          // was held once
	handed   bool          // a duplicate went out
	declined bool          // the successor does not have it
	running  bool          // there is an accept loop
	ending   chan struct{} // closed; not nil when nobody holds it any more
	closeAt  time.Time     // with ending: when it closes
	deaf     bool          // lets no new client in
	waited   bool          // somebody waited when Stalled looked last, and rounds was seen
	seen     uint64
}

// Socket is a hold on an open socket.
type Socket struct {
	o      *open
	mu     sync.Mutex
	closed bool
	mine   *turn // of this hold; nil before serve
}

// hold is called under set.mu.
func (o *open) hold() *Socket {
	o.holds++
	o.claimed = true
	if o.ending != nil { // it is wanted again: nothing has happened
		o.ending = nil
		if o.deaf {
			o.deaf = false
			_ = hear(o.ln)
		}
		_ = o.until(time.Time{})
	}
	return &Socket{o: o}
}

// Addr returns where the socket is bound.
func (k *Socket) Addr() net.Addr { return k.o.addr }

// Bind returns what the socket was asked for as.
func (k *Socket) Bind() string { return k.o.bind }

// Close gives back the hold. The last one closes the socket: new clients are
// refused, those that are connected or about to be are still accepted and
// served by whoever served it, which takes a tenth of a second. Close does
// not wait for that; Done tells. Further calls do nothing.
func (k *Socket) Close() error { return k.release(linger) }

func (k *Socket) release(grace time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	o := k.o
	o.set.mu.Lock()
	defer o.set.mu.Unlock()
	if o.holds--; o.holds > 0 {
		return nil
	}
	if !o.running {
		if o.inherited && !o.set.sorted { // somebody failed before it served: it is there to be taken, as before
			o.claimed = false
			return nil
		}
		return o.shut()
	}
	if o.alien() || o.path != "" {
		grace = 0
	}
	o.ending, o.closeAt = make(chan struct{}), time.Now().Add(grace)
	close(o.ending)
	o.set.rouse()
	if !o.alien() {
		o.deaf = deafen(o.ln) == nil // where that does not work nobody loses more than before
	}
	if o.path != "" || !o.isTCP() {
		o.forget() // its path is free at once
	}
	return o.until(time.Unix(1, 0)) // wakes the loop
}

// Done returns a channel that is closed when, after Close or after another
// holder began to serve, nothing more is delivered to who served through this
// hold. Without anybody it is closed.
func (k *Socket) Done() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mine == nil {
		c := make(chan struct{})
		close(c)
		return c
	}
	return k.mine.ended
}

func (k *Socket) done() bool {
	select {
	case <-k.Done():
		return true
	default:
		return false
	}
}

// serve makes srv the one who serves the socket and returns when nobody else
// gets anything from it any more.
func (k *Socket) serve(srv server) {
	o := k.o
	t := &turn{srv: srv, over: make(chan struct{}), ended: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		close(t.ended)
		k.mine = t
		return
	}
	k.mine = t
	o.set.mu.Lock()
	old := o.now.Swap(t)
	if !o.running {
		o.running = true
		go o.loop()
	}
	o.set.mu.Unlock()
	if old != nil {
		close(old.over)
		o.delivery.Lock()
		o.delivery.Unlock() //nolint:staticcheck // waits for a delivery to the old one, which ends because its turn is over
		close(old.ended)
	}
}

// until has the accept loop look up at a time; zero: it need not.
func (o *open) until(t time.Time) error {
	o.halted.Store(!t.IsZero())
	o.lookUp()
	return o.ln.SetDeadline(t)
}

// loop accepts until the last hold is gone.
func (o *open) loop() {
	var backoff time.Duration
	for {
		nc, err := o.ln.Accept()
		o.rounds.Add(1)
		switch {
		case err == nil:
			backoff = 0
			o.probe(nc, o.inherited)
			o.deliver(nc)
			if o.acceptBare() {
				o.lend()
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			o.whileYielded()
			if o.end() {
				return
			}
		case errors.Is(err, syscall.ECONNABORTED): // the client left while it waited; not our trouble
		default:
			o.now.Load().srv.failed(err)
			backoff = min(max(2*backoff, 5*time.Millisecond), pause)
			o.rest(backoff)
		}
	}
}

// rest pauses after a failure, unless something changes.
func (o *open) rest(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-o.now.Load().over:
	case <-o.whenEnding():
	}
}

func (o *open) whenEnding() <-chan struct{} {
	o.set.mu.Lock()
	defer o.set.mu.Unlock()
	return o.ending
}

// keepAlive sets how long a client may be silent before the kernel probes it;
// not positive: for ever. It is for those accepted from now on.
func (k *Socket) keepAlive(idle time.Duration) error {
	o := k.o
	if time.Duration(o.idle.Swap(int64(idle))) == idle || !o.isTCP() {
		return nil
	}
	return inherit(o.ln, idle)
}

// probe repeats the keepalive options where the net package sets its own: on
// connections of inherited sockets; one that was bound here is told not to.
func (o *open) probe(nc net.Conn, needed bool) {
	t, ok := nc.(*net.TCPConn)
	if !ok || !needed {
		return
	}
	idle := time.Duration(o.idle.Load())
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: idle > 0, Idle: idle, Interval: max(idle/4, time.Second), Count: 4}) // else the default stays
}

// deliver hands a connection to whoever serves the socket now.
func (o *open) deliver(nc net.Conn) {
	for {
		o.delivery.RLock()
		t := o.now.Load()
		taken := t.srv.accepted(nc, t)
		o.delivery.RUnlock()
		if taken {
			return
		}
		if !o.pause(t) {
			_ = nc.Close()
			return
		}
	}
}

// pause waits a little for somebody to serve a connection; false when nobody
// will.
func (o *open) pause(t *turn) bool {
	tick := time.NewTimer(linger / 10)
	defer tick.Stop()
	select {
	case <-t.over:
	case <-tick.C:
	}
	o.set.mu.Lock()
	defer o.set.mu.Unlock()
	return o.ending == nil || time.Now().Before(o.closeAt.Add(linger))
}

// end is called when the loop was woken. It finishes the socket if nobody holds
// it, and reports that.
func (o *open) end() bool {
	s := o.set
	s.mu.Lock()
	if o.ending == nil {
		s.mu.Unlock()
		return false
	}
	wait := time.Until(o.closeAt)
	if wait > 0 && o.deaf {
		_ = o.until(o.closeAt)
		s.mu.Unlock()
		return false
	}
	left := o.left()
	s.mu.Unlock()
	for range maxDrain {
		if left {
			break // they are the successor's
		}
		nc, err := acceptNow(o.ln)
		if errors.Is(err, syscall.ECONNABORTED) {
			continue
		}
		if err != nil {
			break
		}
		o.probe(nc, true)
		o.deliver(nc)
	}
	s.mu.Lock()
	if o.ending == nil {
		_ = o.until(time.Time{})
		s.mu.Unlock()
		return false
	}
	_ = o.shut()
	t := o.now.Load()
	s.mu.Unlock()
	close(t.ended)
	return true
}

// maxDrain bounds what one socket still accepts at its end where new clients
// cannot be kept out: the largest accept queue that is usual.
const maxDrain = 4096

// alien reports that another process may have the socket: then it is not
// changed, and only the descriptor is closed. Called under set.mu.
func (o *open) alien() bool { return o.inherited || o.handed }

// left reports whether the queue and the path are a successor's. Called under
// set.mu.
func (o *open) left() bool { return o.set.keepPaths.Load() && !o.declined }

func (o *open) isTCP() bool { _, ok := o.ln.(*net.TCPListener); return ok }

// shut closes the socket. Called under set.mu.
func (o *open) shut() error {
	err := o.ln.Close()
	o.forget()
	return err
}

// forget takes the socket out of the set and removes its path, unless that
// belongs to another one meanwhile. Called under set.mu.
func (o *open) forget() {
	o.set.all = slices.DeleteFunc(o.set.all, func(p *open) bool { return p == o })
	if o.path == "" || o.file == nil || o.left() {
		return
	}
	if now, err := os.Lstat(o.path); err == nil && os.SameFile(o.file, now) {
		_ = os.Remove(o.path) // a stale file does no harm
	}
	o.file = nil
}

// pending reports whether a connection waits to be accepted.
func pending(ln syscall.Conn) bool {
	n := 0
	_ = control(ln, func(fd int) (err error) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err = unix.Poll(p, 0); n > 0 && p[0].Revents&unix.POLLIN == 0 {
			n = 0
		}
		return err
	})
	return n > 0
}
