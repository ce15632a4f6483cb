// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// age is how long a connection may last, decided when it comes: long-lived ones
// would else stay with the balancer, and what they pin with the backend, that
// they met first. It costs a comparison per answer where there is no greatest
// age.
type age struct {
	// Constant once the connection is served.
	end balance.Instant // answers from then on say Connection: close; 0: never
	cut balance.Instant // what is under way then is cut; 0: never

	timer    *time.Timer // of cut
	requests int64       // so far; owned by who serves
	taken    atomic.Bool // by a tunnel, which keeps the time itself
	over     atomic.Bool // it was cut
}

// begin draws a connection's greatest age, up to a tenth before MaxAge: those
// that came together do not go together.
func (l *link) beginAge(t *Timeouts) {
	if t.MaxAge <= 0 {
		return
	}
	l.age.end = l.since.Add(t.MaxAge - time.Duration(rand.Int64N(int64(t.MaxAge/10)+1)))
	if t.AgeGrace <= 0 {
		return
	}
	l.age.cut = l.age.end.Add(t.AgeGrace)
	l.age.timer = time.AfterFunc(l.age.cut.Sub(l.since), func() {
		if !l.age.taken.Load() {
			l.age.over.Store(true)
			l.nc.Abort()
		}
	})
}

func (l *link) endAge() {
	if l.age.timer != nil {
		l.age.timer.Stop()
	}
}

// old reports that the connection has lasted for long enough, or served enough.
func (c *ServerConn) old() bool {
	a := &c.link.age
	if most := c.set.Limits.MaxRequests; most > 0 && a.requests >= most {
		return true
	}
	return a.end != 0 && clock.Now() >= a.end
}

// EndsBy is when everything on the connection is to have ended, a tunnel
// included; 0: never.
func (c *ServerConn) EndsBy() balance.Instant { return c.link.age.cut }

// OverAge reports that the connection was cut for its age.
func (c *ServerConn) OverAge() bool { return c.link.age.over.Load() }
