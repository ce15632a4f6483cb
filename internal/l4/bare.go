// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/pool"
)

// WantsBare reports that ServeBare is the better way: sessions do not need more of
// their client's connection than the descriptor. It is asked before one is accepted.
func (p *Proxy) WantsBare() bool {
	if n := p.wholes.Load(); n > 0 {
		p.wholes.Store(n - 1) // that two at once count as one does not matter
		return false
	}
	return true
}

// wholesMost is how many connections are asked for whole after one that had to be
// made so: a pool whose backends have names, or TLS, or no place, goes on like that.
const wholesMost = 64

// ServeBare is Serve for the accept loop itself: it does not wait. Where a session has
// to, for a slot or for a name, another goroutine goes on.
func (p *Proxy) ServeBare(b netconn.Bare, ci *Client, rt *Route) {
	(&opening{px: p, rt: rt, bare: b, mayNotWait: true}).serve(ci)
}

// depart has a goroutine go on that may wait. The session is not the caller's any
// more.
func (o *opening) depart() {
	o.mayNotWait = false
	go func() {
		parked := false
		defer func() {
			if !parked {
				o.px.wg.Done()
			}
		}()
		defer o.crashed()
		parked = o.reach()
	}()
}

// whole makes a connection like any other of the client, which more than bytes is
// wanted of.
func (o *opening) whole() failure {
	if o.c != nil {
		return failure{}
	}
	o.px.wholes.Store(wholesMost)
	c, err := o.bare.Conn()
	if err != nil {
		return failure{reason: message.LocalFiles, kind: pool.LocalFault, detail: err.Error(), final: true}
	}
	o.c = c
	return failure{}
}

// reset ends the client's connection.
func (o *opening) reset() {
	if o.c != nil {
		_ = o.c.Reset()
		return
	}
	o.bare.Reset()
}

// detach takes the client's descriptor.
func (o *opening) detach() (fd int, closed func(), err error) {
	if o.c != nil {
		return o.c.Detach(nil)
	}
	fd, closed = o.bare.Take()
	return fd, closed, nil
}
