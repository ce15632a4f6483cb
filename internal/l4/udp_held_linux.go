// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
)

// held are datagrams that are to begin flows, and whose backend is a name of which no
// address is known yet: else the first client after a start would have to ask twice. A
// loop holds a few: they are of clients of whom nothing is known. The zero value is
// none.
type held struct {
	all   []heldDatagram
	asked bool // the loop is told when a name is known
	last  bool // what is offered is not held again
}

type heldDatagram struct {
	port *port
	own  *Flows // who was to have the flow, and counts it where it is lost
	key  flowKey
	data []byte
	// until is when it is given up.
	until balance.Instant
}

const (
	heldMost = 64              // datagrams, none larger than keepMost
	heldFor  = 2 * time.Second // clients of DNS ask again after a second or a few
)

// mayHold reports that the datagrams of the flow that was not opened may be held.
func (l *flowLoop) mayHold() bool {
	return l.unresolved != nil && !l.held.last && len(l.held.all) < heldMost
}

// hold keeps datagrams until a name is known. What does not fit is dropped.
func (l *flowLoop) hold(p *port, k *flowKey, pieces []unix.Iovec, size int) {
	until := l.now.Add(heldFor)
	for i := range pieces {
		b := bytesOf(&pieces[i])
		for first := true; first || len(b) > 0; first = false {
			part := b
			if size > 0 {
				part = b[:min(size, len(b))]
			}
			b = b[len(part):]
			if len(part) > keepMost || len(l.held.all) >= heldMost {
				l.dropped(p, nil, 1, dropRefused)
				continue
			}
			l.held.all = append(l.held.all, heldDatagram{port: p, own: p.own, key: *k, data: bytes.Clone(part), until: until})
		}
	}
	l.awaitName()
}

// awaitName has the loop told when the name is known that was asked for last, or when that
// takes too long.
func (l *flowLoop) awaitName() {
	if l.held.asked {
		return
	}
	l.held.asked = true
	known := l.unresolved
	go func() {
		late := time.NewTimer(heldFor)
		defer late.Stop()
		select {
		case <-known:
		case <-late.C:
		case <-l.done:
		}
		l.ask(func() {
			l.held.asked = false
			l.offer()
		})
	}()
}

// offer passes on what is held, as far as names are known by now.
func (l *flowLoop) offer() {
	if l.paused {
		return
	}
	all := l.held.all
	l.held.all = nil
	for i := range all {
		d := &all[i]
		p := d.port
		if p.slot < 0 || p.given {
			l.lose(d)
			continue
		}
		hash := p.table.seed.hash(&d.key)
		f := p.table.find(&d.key, hash)
		if f == nil && p.own == nil { // nobody takes new flows any more
			l.lose(d)
			continue
		}
		if f == nil {
			l.held.last = d.until <= l.now
			f = l.open(p, &d.key, hash)
			again := f == nil && l.mayHold()
			l.held.last = false
			if again {
				l.held.all = append(l.held.all, *d)
				l.awaitName()
			}
		}
		if f != nil {
			one := [1]unix.Iovec{piece(d.data)}
			l.pass(f, one[:], 0)
		}
	}
}

// lose counts a datagram that was held and that this process may not pass on any more:
// its socket is another process's, or takes no new flows. Its client has to ask again.
func (l *flowLoop) lose(d *heldDatagram) {
	l.refuse(d.own, d.own.opt.Route(), d.key.from(), message.DrainCut, lostDetail)
}

const lostDetail = "it waited for the name of its backend when the socket was closed or given to another process"

// loseAll is the end of the loop.
func (l *flowLoop) loseAll() {
	for i := range l.held.all {
		l.lose(&l.held.all[i])
	}
	l.held.all = nil
}
