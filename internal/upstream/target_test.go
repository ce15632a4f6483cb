// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

func TestReuse(t *testing.T) {
	b := always(t)
	target := newTarget(t, options(b.Addr()))
	if target.Get(clock.Now(), false) != nil {
		t.Fatal("a connection out of nothing")
	}
	first, second := mustDial(t, target), mustDial(t, target)
	if first.Reused() {
		t.Error("a fresh connection says it was used before")
	}
	now := clock.Now()
	use(t, target, first, now)
	use(t, target, second, now.Add(1))
	if s := target.Stats(); s.Open != 2 || s.Idle != 2 || s.InUse != 0 || s.Fresh != 2 || s.Reused != 0 {
		t.Errorf("%+v", s)
	}
	got := target.Get(now.Add(time.Millisecond), true)
	if got != second || !got.Reused() || got.IdleFor() != time.Millisecond-1 {
		t.Errorf("not the most recently used one, or it does not say so: %v", got.IdleFor())
	}
	use(t, target, got, now.Add(2*time.Millisecond))
	if s := target.Stats(); s.Open != 2 || s.Idle != 2 || s.Reused != 1 || b.Connections() != 2 {
		t.Errorf("%+v, %d connections", s, b.Connections())
	}
	target.CloseIdle()
	if s := target.Stats(); s.Open != 0 || s.Idle != 0 {
		t.Errorf("after CloseIdle: %+v", s)
	}
}

// TestUnsafe is S8: a request that must not be replayed gets a connection only
// when the backend cannot have closed it.
func TestUnsafe(t *testing.T) {
	answer := func(field string) string { return strings.Replace(okAnswer, "\r\n\r\n", "\r\n"+field+"\r\n\r\n", 1) }
	for name, c := range map[string]struct {
		answer       string
		learned      time.Duration
		safe, unsafe time.Duration // last idle times that are good enough
	}{
		"nothing known":  {okAnswer, 0, 55 * time.Second, 500 * time.Millisecond},
		"announced":      {answer("Keep-Alive: timeout=5"), 0, 4 * time.Second, 4 * time.Second},
		"announced long": {answer("Keep-Alive: timeout=100"), 0, 55 * time.Second, 80 * time.Second},
		"learned":        {okAnswer, 10 * time.Second, 8 * time.Second, 8 * time.Second},
		"both":           {answer("Keep-Alive: timeout=5"), 2 * time.Second, 1600 * time.Millisecond, 1600 * time.Millisecond},
		"very short":     {answer("Keep-Alive: timeout=1"), 0, 800 * time.Millisecond, 800 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			b := weirtest.Always(t, c.answer)
			target := newTarget(t, options(b.Addr()))
			start := clock.Now()
			target.learner.learned, target.learner.at = c.learned, start
			for _, k := range []struct {
				idle   time.Duration
				unsafe bool
				want   bool
			}{
				{c.unsafe, true, c.unsafe < c.safe},
				{c.unsafe + 1, true, false},
				{c.safe - 1, false, true},
				{c.safe, false, false},
			} {
				target.CloseIdle()
				use(t, target, mustDial(t, target), start)
				got := target.Get(start.Add(k.idle), k.unsafe)
				if (got != nil) != k.want {
					t.Errorf("idle %v, unsafe %v: got %v, want %v", k.idle, k.unsafe, got != nil, k.want)
				}
				if got != nil {
					got.Close()
				}
				// Refused as unsafe, it is still good for a safe request.
				if got == nil && k.unsafe && k.idle < c.safe {
					if got = target.Get(start.Add(k.idle), false); got == nil {
						t.Errorf("idle %v: lost to safe requests", k.idle)
					} else {
						got.Close()
					}
				}
			}
		})
	}
}

// TestStaleIsFound: a connection that the backend closed, reset, or wrote to
// unasked is not handed out, even before it is watched.
func TestStaleIsFound(t *testing.T) {
	for name, end := range map[string]func(c *weirtest.Conn, kept <-chan struct{}){
		"closed": func(*weirtest.Conn, <-chan struct{}) {},
		"reset":  func(c *weirtest.Conn, _ <-chan struct{}) { c.Reset() },
		"unasked bytes": func(c *weirtest.Conn, kept <-chan struct{}) {
			<-kept
			c.Send("HTTP/1.1 408 Request Timeout\r\n\r\n")
			c.Request()
		},
	} {
		for _, unsafe := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, unsafe %v", name, unsafe), func(t *testing.T) {
				kept := make(chan struct{})
				b := weirtest.NewBackend(t, func(c *weirtest.Conn) {
					c.Request()
					c.Send(okAnswer)
					end(c, kept)
				})
				target := newTarget(t, options(b.Addr()))
				now := clock.Now()
				c := mustDial(t, target)
				nc := c.nc
				use(t, target, c, now)
				close(kept)
				eventually(t, "end", func() bool { return nc.Peek().String() != "quiet" })
				if !unsafe { // which is looked at in any case
					now = now.Add(6 * time.Millisecond)
				}
				if got := target.Get(now, unsafe); got != nil {
					t.Error("a dead connection was handed out")
				}
				if s := target.Stats(); s.Open != 0 || s.Stale != 1 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// TestLearns: the backend's idle timeout is learned from five closes seen as
// they happen. A busy machine may see them further apart than they were, and come to
// the lesson with later ones.
func TestLearns(t *testing.T) {
	const idle = 800 * time.Millisecond
	b := weirtest.NewBackend(t, func(c *weirtest.Conn) {
		c.Request()
		c.Send(okAnswer)
		time.Sleep(idle)
	})
	opt, told := options(b.Addr()), make(chan time.Duration, learnFrom)
	opt.Learned = func(d time.Duration) { told <- d }
	target := newTarget(t, opt)
	opened := int64(0)
	for target.Stats().LearnedIdle == 0 {
		if opened == 6*learnFrom {
			t.Fatalf("nothing is learned from %d closes", opened)
		}
		for i := range learnFrom {
			if got := target.Stats().LearnedIdle; got != 0 && opened == 0 {
				t.Errorf("learned %v from %d closes", got, i)
			}
			c := mustDial(t, target)
			use(t, target, c, clock.Now())
			time.Sleep(60 * time.Millisecond) // closes that come together count once
		}
		opened += learnFrom
		eventually(t, "all are closed", func() bool { return target.Stats().Open == 0 })
	}
	if got := target.Stats().LearnedIdle; got < idle-20*time.Millisecond || got > idle*3/2 {
		t.Errorf("learned %v, the backend closes after %v", got, idle)
	}
	if got := <-told; got != target.Stats().LearnedIdle || len(told) > 0 {
		t.Errorf("told %v, and %d times more", got, len(told))
	}
	if s := target.Stats(); s.Open != 0 || s.Idle != 0 || s.Stale != opened {
		t.Errorf("%+v", s)
	}
}

// TestExpires: idle connections are closed before the backend would, whether
// anybody asks for them or not.
func TestExpires(t *testing.T) {
	for _, keep := range []time.Duration{50 * time.Millisecond, 400 * time.Millisecond} {
		b := always(t)
		opt := options(b.Addr())
		opt.KeepAlive = keep
		target := newTarget(t, opt)
		conns := []*Conn{mustDial(t, target), mustDial(t, target), mustDial(t, target)}
		start := time.Now()
		for _, c := range conns {
			use(t, target, c, clock.Now())
		}
		eventually(t, "expiry", func() bool { return target.Stats().Open == 0 })
		if d := time.Since(start); d < keep {
			t.Errorf("closed after %v, not %v", d, keep)
		}
		if s := target.Stats(); s.Stale != 0 || s.LearnedIdle != 0 {
			t.Errorf("own closes taken for the backend's: %+v", s)
		}
	}
}

// TestWatchedIsReused: a connection that has come to be watched works as
// before, again and again.
func TestWatchedIsReused(t *testing.T) {
	b := always(t)
	target := newTarget(t, options(b.Addr()))
	c := mustDial(t, target)
	for range 3 {
		use(t, target, c, clock.Now())
		eventually(t, "watch", func() bool {
			target.mu.Lock()
			defer target.mu.Unlock()
			return c.watched
		})
		if got := target.Get(clock.Now(), false); got != c {
			t.Fatal("not handed out")
		}
	}
	c.Close()
	if b.Connections() != 1 {
		t.Errorf("%d connections", b.Connections())
	}
}

// TestAborted: a connection that was aborted serves nobody, whether that happened
// before it was given back, while it was idle and young, or when it was watched.
// Each once hung its Target, and with it every request to the backend: the watch
// of an aborted connection is told at once, with the Target locked.
func TestAborted(t *testing.T) {
	b := always(t)
	target := newTarget(t, options(b.Addr()))
	left := mustDial(t, target)
	if err := exchange(left); err != nil {
		t.Fatal(err)
	}
	left.nc.Abort() // its client left when the whole answer was there
	target.Put(left, clock.Now())
	if s := target.Stats(); s.Open != 0 || s.Idle != 0 {
		t.Errorf("given back aborted: %+v", s)
	}
	young := mustDial(t, target)
	use(t, target, young, clock.Now())
	young.nc.Abort()
	if got := target.Get(clock.Now(), false); got != nil {
		t.Error("an aborted connection was handed out")
	}
	swept := mustDial(t, target)
	use(t, target, swept, clock.Now().Add(-time.Second))
	swept.nc.Abort()
	weirtest.Within(t, "a sweep over an aborted connection", target.sweep)
	eventually(t, "closed", func() bool { return target.Stats().Open == 0 })
	watched := mustDial(t, target)
	use(t, target, watched, clock.Now().Add(-time.Second))
	target.sweep()
	watched.nc.Abort()
	eventually(t, "closed", func() bool { return target.Stats().Open == 0 })
}

func TestLimits(t *testing.T) {
	b := always(t)
	t.Run("max idle", func(t *testing.T) {
		opt := options(b.Addr())
		opt.MaxIdle = 2
		target := newTarget(t, opt)
		conns := []*Conn{mustDial(t, target), mustDial(t, target), mustDial(t, target)}
		now := clock.Now()
		for i, c := range conns {
			use(t, target, c, now.Add(time.Duration(i)))
		}
		if target.sweep(); target.Stats().Idle != 3 {
			t.Errorf("what may be wanted again at once was not kept: %+v", target.Stats())
		}
		for i, c := range conns {
			c.since = now.Add(time.Duration(i) - 2*excessFor)
		}
		if target.sweep(); target.Stats().Idle != 2 || target.Stats().Open != 2 {
			t.Errorf("%+v", target.Stats())
		}
		further := mustDial(t, target)
		use(t, target, further, now) // beside one that has been idle for long
		if target.Get(now, false) != further || target.Get(now, false) != conns[2] || target.Get(now, false) != nil {
			t.Error("the oldest was kept, not the newest")
		}
		opt.MaxIdle = 0
		none := newTarget(t, opt)
		use(t, none, mustDial(t, none), now)
		if s := none.Stats(); s.Open != 0 {
			t.Errorf("max idle 0: %+v", s)
		}
		further.Close()
		conns[2].Close()
	})
	t.Run("max requests", func(t *testing.T) {
		opt := options(b.Addr())
		opt.MaxRequests = 3
		target := newTarget(t, opt)
		c := mustDial(t, target)
		for i := range 3 {
			use(t, target, c, clock.Now())
			if got := target.Get(clock.Now(), false); (got == c) != (i < 2) {
				t.Errorf("after %d requests: %v", i+1, got)
			}
		}
	})
	t.Run("max age", func(t *testing.T) {
		opt := options(b.Addr())
		opt.MaxAge = 10 * time.Second
		target := newTarget(t, opt)
		now := clock.Now()
		ages := map[balance.Instant]bool{}
		for range 5 {
			c := mustDial(t, target)
			if age := c.dies.Sub(now); age < 9*time.Second || age > 11*time.Second+patience {
				t.Errorf("dies after %v", age)
			}
			ages[c.dies] = true
			use(t, target, c, c.dies-1)
			if target.Get(c.dies, false) != nil {
				t.Error("handed out at its end")
			}
		}
		if len(ages) < 3 {
			t.Error("no jitter")
		}
		c := mustDial(t, target)
		use(t, target, c, c.dies)
		if s := target.Stats(); s.Open != 0 {
			t.Errorf("kept beyond its end: %+v", s)
		}
	})
	t.Run("max connections", func(t *testing.T) {
		opt := options(b.Addr())
		opt.MaxConns = 1
		target := newTarget(t, opt)
		c := mustDial(t, target)
		if _, err := target.Dial(clock.Now(), 0, nil); kind(t, err) != Limit {
			t.Error(err)
		}
		c.Close()
		mustDial(t, target).Close()
	})
}

func TestDraining(t *testing.T) {
	b := always(t)
	target := newTarget(t, options(b.Addr()))
	idle, busy := mustDial(t, target), mustDial(t, target)
	use(t, target, idle, clock.Now())
	target.SetDraining(true)
	if s := target.Stats(); s.Open != 1 || s.Idle != 0 {
		t.Errorf("draining: %+v", s)
	}
	use(t, target, busy, clock.Now())
	if s := target.Stats(); s.Open != 0 {
		t.Errorf("given back while draining: %+v", s)
	}
	target.SetDraining(false)
	use(t, target, mustDial(t, target), clock.Now())
	if s := target.Stats(); s.Idle != 1 {
		t.Errorf("after draining: %+v", s)
	}
	busy = mustDial(t, target)
	if n := target.Cut(); n != 1 || !busy.CutShort() || target.Stats().Idle != 0 {
		t.Errorf("%d cut, %+v", n, target.Stats())
	}
	busy.Close()
	target.SetDraining(true)
	busy = mustDial(t, target) // picked before
	target.Cut()
	var d *DialError
	if c, err := target.Dial(clock.Now(), 0, nil); !errors.As(err, &d) || d.Kind != DrainOver || !busy.CutShort() {
		t.Errorf("dialed after the end of the drain: %v, %v", c, err)
	}
	busy.Close()
	target.SetDraining(false)
	busy = mustDial(t, target)
	target.Close()
	use(t, target, busy, clock.Now())
	if s := target.Stats(); s.Open != 0 {
		t.Errorf("closed: %+v", s)
	}
}

// TestConcurrentUse has many goroutines get, use, give back and close
// connections while others drain and count, on a backend that closes at random
// and after a pause that makes connections come to be watched.
func TestConcurrentUse(t *testing.T) {
	b := weirtest.NewBackend(t, func(c *weirtest.Conn) {
		rnd := rand.New(rand.NewPCG(uint64(c.N), 0))
		for range 1 + rnd.IntN(40) {
			if m := c.Request(); m == nil || m.Torn || c.Try(okAnswer) != nil {
				return
			}
		}
	})
	opt := options(b.Addr())
	opt.MaxIdle, opt.KeepAlive = 8, 300*time.Millisecond
	target := newTarget(t, opt)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			for range 100 {
				c := target.Get(clock.Now(), rnd.IntN(2) == 0)
				fresh := c == nil
				if fresh {
					var err error
					if c, err = target.Dial(clock.Now(), clock.Now().Add(patience), nil); err != nil {
						t.Error(err)
						return
					}
				}
				if err := exchange(c); err != nil {
					if fresh {
						t.Errorf("fresh: %v", err)
					}
					c.Close()
					continue
				}
				switch rnd.IntN(20) {
				case 0:
					c.Close()
				case 1:
					target.Put(c, clock.Now())
					target.CloseIdle()
				case 2:
					target.Put(c, clock.Now())
					time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
				default:
					target.Put(c, clock.Now())
				}
				target.Stats()
			}
		})
	}
	within(t, "use", wg.Wait)
	target.Close()
	if s := target.Stats(); s.Open != 0 || s.Idle != 0 || s.Reused == 0 {
		t.Errorf("%+v", s)
	}
}

// TestLooks: however many idle connections one look sees, none is handed out that
// the backend has closed, or sent something on, and each is looked at no earlier than
// peekAfter before.
func TestLooks(t *testing.T) {
	b := always(t)
	target := newTarget(t, options(b.Addr()))
	now := clock.Now()
	var conns []*Conn
	for range 40 {
		conns = append(conns, mustDial(t, target))
	}
	for _, c := range conns {
		use(t, target, c, now.Add(-10*time.Millisecond))
	}
	dead := map[*Conn]bool{}
	for i := 1; i < len(conns); i += 3 {
		dead[conns[i]] = true
		if err := conns[i].nc.CloseWrite(); err != nil { // the backend closes in turn
			t.Fatal(err)
		}
	}
	for c := range dead {
		eventually(t, "closed", func() bool { return c.nc.Peek() != netconn.Quiet })
	}
	got := map[*Conn]bool{}
	for i := 0; ; i++ {
		c := target.Get(now.Add(time.Duration(i)*100*time.Microsecond), false)
		if c == nil {
			break
		}
		if dead[c] || got[c] || now.Sub(c.fresh()) > peekAfter && c.looked != 0 {
			t.Errorf("%d: dead %v, twice %v", i, dead[c], got[c])
		}
		got[c] = true
	}
	if len(got) != len(conns)-len(dead) || int(target.Stats().Stale) != len(dead) {
		t.Errorf("%d of %d, %d were dead", len(got), len(conns), target.Stats().Stale)
	}
	for c := range got {
		c.Close()
	}
}
