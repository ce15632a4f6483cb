// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"fmt"
	"runtime"
	"slices"
)

// Change prepares other options for a listener that may be serving. Everything
// that can fail fails here: sockets are taken, certificates loaded, and nothing
// is different for clients yet. Then one of the two functions is to be called,
// once: commit puts the options into force, undo gives up what was taken.
// Between Change and that call no other Change may begin.
//
// After commit, connections that come are accepted under the new options, TLS
// included; those that are open go on as they were accepted, and count against
// the new ceilings. MaxPerClient counts those that came while there was such a
// limit. A socket of a bind that stays, or that another listener has until now,
// is not closed for a moment; one of a bind that is gone is given up as by Stop.
func (l *Listener) Change(opt Options) (commit, undo func(), err error) {
	opt.defaults()
	opt.Sockets = l.sockets
	old := l.set.Load()
	next := &settings{opt: opt, refusal: refusalText(opt.RetryAfter)}
	adopt := func() {}
	if opt.TLS != nil {
		if next.certs, adopt, err = old.certs.change(*opt.TLS, opt.Logger.With("listener", opt.Name)); err != nil {
			return nil, nil, fmt.Errorf("listener %s: %w", opt.Name, err)
		}
	}
	binds, fresh, err := l.takeBinds(opt.Bind, opt.Packets)
	undo = func() {
		for _, b := range fresh {
			b.release()
		}
	}
	if err != nil {
		undo()
		return nil, nil, fmt.Errorf("listener %s: %w", opt.Name, err)
	}
	return func() {
		adopt()
		l.tickets.use(next.certs, opt.Name)
		l.set.Store(next)
		l.swap(binds, fresh)
	}, undo, nil
}

// takeBinds returns what a listener is to be bound to, and which of it is new
// to it.
func (l *Listener) takeBinds(where []string, packets bool) (all, fresh []bound, err error) {
	l.mu.Lock()
	have := slices.Clone(l.binds)
	l.mu.Unlock()
	for _, w := range where {
		if i := slices.IndexFunc(have, func(b bound) bool { return b.where == w }); i >= 0 {
			all = append(all, have[i])
			have = slices.Delete(have, i, i+1) // the same port 0 twice is two sockets
			continue
		}
		b, err := l.takeBind(w, packets)
		if err != nil {
			return nil, fresh, err
		}
		all, fresh = append(all, b), append(fresh, b)
	}
	return all, fresh, nil
}

func (l *Listener) takeBind(where string, packets bool) (b bound, err error) {
	b.where = where
	if packets {
		b.packets, err = l.sockets.TakePackets(where, runtime.GOMAXPROCS(0))
		return b, err
	}
	b.sockets, err = l.sockets.takeEvery(where)
	return b, err
}

// same reports whether two binds are one.
func (b bound) same(o bound) bool {
	if b.packets != nil {
		return b.packets == o.packets
	}
	return b.sockets[0] == o.sockets[0]
}

// swap replaces the binds.
func (l *Listener) swap(binds, fresh []bound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		for _, b := range fresh {
			b.release()
		}
		return
	}
	gone := slices.DeleteFunc(l.binds, func(b bound) bool {
		return slices.ContainsFunc(binds, b.same)
	})
	idle := l.set.Load().opt.KeepAlive
	for _, b := range binds {
		for _, k := range b.sockets {
			_ = k.keepAlive(idle) // it worked when the socket was bound
		}
	}
	l.binds = binds
	if l.handler != nil {
		l.watchLocked()
		for _, b := range fresh {
			l.openDoors(b)
		}
	}
	if l.packets != nil {
		for _, b := range fresh {
			if err := l.packets.Open(b.packets.Sockets()); err != nil { // the descriptors of its loops are open: only epoll's memory is new
				l.set.Load().opt.Logger.Error("an address is not served", "bind", b.where, "error", err)
			}
		}
	}
	l.left = slices.DeleteFunc(l.left, (*Socket).done)
	for _, b := range gone {
		if b.packets != nil {
			l.leavePackets(b.packets)
			continue
		}
		l.left = append(l.left, b.sockets...)
		b.release()
	}
}

func (b bound) release() {
	if b.packets != nil {
		b.packets.Close()
	}
	for _, k := range b.sockets {
		_ = k.Close() // nothing can be done, and nothing depends on it
	}
}

// watchLocked has the certificate files watched. Called under mu.
func (l *Listener) watchLocked() {
	if c := l.set.Load().certs; l.watched || c == nil || c.opt.ReloadEvery < 0 {
		return
	}
	l.watched = true
	l.watching.Go(l.watch)
}
