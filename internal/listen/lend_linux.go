// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// lentMost is how many connections one of those a socket is lent to takes before it is
// another's turn.
const lentMost = 8

// lend leaves the socket to those who serve its connections, until there is something
// for the accept loop to see to: connections that are not to come bare, errors,
// ceilings, until.
func (o *open) lend() {
	srv, ok := o.now.Load().srv.(bareServer)
	if !ok {
		return
	}
	watch := srv.watch()
	if watch == nil {
		return
	}
	o.back.Store(false)
	own := o.own()
	var stop func()
	err := control(o.ln, func(fd int) (err error) {
		// The descriptor stays: who closes it is the accept loop, which is here.
		stop, err = watch(fd, func(on any, pass func()) { o.lent(fd, on, pass, own) })
		return err
	})
	if err != nil {
		return // it goes on as without
	}
	defer stop()
	for !o.halted.Load() && !o.back.Load() {
		<-o.attend
	}
}

// lookUp has lend look whether it is over.
func (o *open) lookUp() {
	select {
	case o.attend <- struct{}{}:
	default:
	}
}

// takeBack ends lend.
func (o *open) takeBack() {
	o.back.Store(true)
	o.lookUp()
}

// lent accepts for whoever the socket is lent to. It does not wait.
func (o *open) lent(fd int, on any, pass func(), own netip.AddrPort) {
	o.rounds.Add(1)
	passed := false
	defer func() {
		if !passed { // a panic included
			o.takeBack()
		}
	}()
	if srv, ok := o.now.Load().srv.(bareServer); !ok || o.halted.Load() || !srv.wantsBare() {
		return
	}
	var all [lentMost]arrival
	n, errno := take(fd, own, all[:])
	if errno == 0 || errno == unix.EAGAIN {
		passed = true
		pass()
	}
	if n > 0 {
		o.deliverBare(all[:n], on)
	}
}
