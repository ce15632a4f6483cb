// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net/netip"
	"slices"

	"github.com/weirlb/weir/internal/netconn"
)

// Pass has another listener go on with a connection that this one has accepted
// and handed to its handler: the other one ends its TLS, under its own options,
// and counts it, beside this one, until it is closed. first is what has been read
// of it, which is copied; info is what is known of the client so far. Pass
// returns after the handshake; then handler runs on a goroutine of its own, with
// what is known then. Where the other one has no place left, or the handshake
// fails, the connection has been closed, and that is counted there. The time for
// the handshake is the other one's, from now on.
//
// The other listener need not have sockets, and may have stopped: whoever came in
// here before is served. It must have TLS; a plain one closes the connection.
func (l *Listener) Pass(c *netconn.Conn, to *Listener, first []byte, info Info, handler func(*netconn.Conn, Info)) {
	set := to.set.Load()
	client := info.Remote.Addr()
	if set.certs == nil {
		_ = c.Reset()
		return
	}
	if set.opt.Short != nil && set.opt.Short() {
		to.decline(set, c, NoMemory)
		return
	}
	why, counted, ok := to.enterPassed(set, client)
	if !ok {
		to.decline(set, c, why)
		return
	}
	c.AlsoOnClose(func() { to.leavePassed(client, counted) })
	defer to.guard(set, c)
	c.Secure(set.certs.config, slices.Clone(first))
	info.Listener = set.opt.Name
	if err := to.handshake(set, c, &info, 0); err != nil {
		to.unshaken(set, info.Remote, err)
		_ = c.Close()
		return
	}
	if info.ALPN == challengeALPN {
		_ = c.Close() // the handshake is the answer (RFC 8737, section 3)
		return
	}
	l.handlers.Go(func() {
		defer to.guard(set, c)
		handler(c, info)
	})
}

// decline ends a connection that is over a ceiling, as TLS is refused: without a
// handshake.
func (l *Listener) decline(set *settings, c *netconn.Conn, why Refusal) {
	l.count(set, why)
	_ = c.Close()
}

// enterPassed is enter for a connection that has its place in the process already.
func (l *Listener) enterPassed(set *settings, client netip.Addr) (why Refusal, counted, ok bool) {
	if !reserve(&l.open, int64(set.opt.MaxConnections)) {
		return ListenerLimit, false, false
	}
	if counted, ok = l.clients.enter(client, set.opt.MaxPerClient); !ok {
		l.undo()
		return ClientLimit, false, false
	}
	return 0, counted, true
}

// leavePassed gives the place back.
func (l *Listener) leavePassed(client netip.Addr, counted bool) {
	if counted {
		l.clients.leave(client)
	}
	l.undo()
	l.room.signal()
}
