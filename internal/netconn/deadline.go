// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

var past = time.Unix(1, 0)

// deadline is one direction's deadline: what is wanted, and what the runtime's
// timer is set to. armed <= want or want == 0 holds whenever nobody is inside
// set or rearm, so the timer never fires late.
type deadline struct {
	want  atomic.Int64 // balance.Instant; 0 none
	armed atomic.Int64 // 0 none; may lie in the past when it has fired
}

// SetReadDeadline bounds all waiting for bytes to read; 0 means none. Moving it
// later (or to none) costs no timer operation. It may be called while a read
// waits, from any goroutine.
func (c *Conn) SetReadDeadline(t balance.Instant) { c.setDeadline(&c.rd, t) }

// SetWriteDeadline bounds all waiting to write; 0 means none.
func (c *Conn) SetWriteDeadline(t balance.Instant) { c.setDeadline(&c.wr, t) }

func (c *Conn) setDeadline(d *deadline, t balance.Instant) {
	d.want.Store(int64(t))
	if t == 0 && !c.foreign {
		return
	}
	// rearm stores armed before it looks at want again, and here want is stored
	// before armed is read: one of the two sees the other.
	if a := d.armed.Load(); a == 0 || a > int64(t) || (c.foreign && d == &c.wr) {
		c.rearm(d)
	}
}

// rearm sets the runtime's timer to what is wanted.
func (c *Conn) rearm(d *deadline) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.flags.Load()&flagAborted == 0 {
		w := d.want.Load()
		d.armed.Store(w)
		var at time.Time
		if w != 0 {
			at = clock.Time(balance.Instant(w))
		}
		// An error means that the connection is closed, which the next
		// operation reports.
		if d == &c.rd {
			_ = c.nc.SetReadDeadline(at)
		} else {
			_ = c.nc.SetWriteDeadline(at)
		}
		if now := d.want.Load(); now == w || (now == 0 || now > w) && w != 0 {
			return
		}
	}
}

// renewAfter is the least that a deadline must have moved to be renewed.
const renewAfter = int64(10 * time.Millisecond)

// renew arms a timer anew of which half the time is over, before a wait begins that
// it would only wake for nothing: that costs a turn of the scheduler, an error and a
// system call. Connections in constant use with a short deadline do so about as often
// as it would fire.
func (c *Conn) renew(d *deadline) {
	w, a := d.want.Load(), d.armed.Load()
	if a == 0 || w-a < renewAfter { // w may be 0
		return
	}
	if now := int64(clock.Now()); a-now < w-a {
		c.rearm(d)
	}
}

// absorb judges an error of the socket: nil when it was a timer that fired
// before the wanted deadline (it is armed again: go on), else what to return.
func (c *Conn) absorb(d *deadline, err error) error {
	if c.flags.Load()&flagAborted != 0 {
		return ErrAborted
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if w := d.want.Load(); w != 0 && clock.Now() >= balance.Instant(w) {
		return os.ErrDeadlineExceeded
	}
	c.rearm(d)
	return nil
}
