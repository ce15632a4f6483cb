// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

// firstDial is a Target whose first connection is another one.
type firstDial struct {
	Target
	once sync.Once
	with func(Upstream) Upstream
}

func (f *firstDial) Dial(now, deadline balance.Instant, abort <-chan struct{}) (up Upstream, err error) {
	if up, err = f.Target.Dial(now, deadline, abort); err == nil {
		f.once.Do(func() { up = f.with(up) })
	}
	return up, err
}

// deafened is a connection whose backend takes no content, and whose answer is read
// when that is known.
type deafened struct {
	Upstream
	failed chan struct{}
}

func (d *deafened) WriteBody([]byte, bool) error {
	close(d.failed)
	return syscall.EPIPE
}

func (d *deafened) ReadHead(r *message.Response, toHEAD bool, deadline balance.Instant) error {
	<-d.failed
	time.Sleep(20 * time.Millisecond) // lets the pump end; either way must work
	return d.Upstream.ReadHead(r, toHEAD, deadline)
}

// TestRetryAfterTornUpload: the first backend has refused in the midst of the content,
// and the pump has met the closed connection before the answer was read. The second
// attempt pumps anew, and the exchange does not end before that has.
func TestRetryAfterTornUpload(t *testing.T) {
	const size = 48 << 10
	busy := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		s.Send("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
		_ = s.Request()
	})
	hasty := weirtest.NewBackend(t, func(s *weirtest.Conn) { // answers before it has the content
		_ = s.ReadHead()
		s.Send(ok2)
		_ = s.Request()
	})
	first := true
	r := newRig(t, []string{busy.Addr(), hasty.Addr()}, firstPick, rigOptions{edit: func(r *rig) {
		r.wrap = func(to Target) Target {
			if !first {
				return to
			}
			first = false
			return &firstDial{Target: to, with: func(up Upstream) Upstream { return &deafened{up, make(chan struct{})} }}
		}
	}})
	content := strings.Repeat("0123456789abcdef", size/16)
	for range 3 {
		c := r.dial()
		c.Sendf("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", size, content[:size/2])
		if m := c.Final("PUT"); m == nil || m.Status() != 200 && m.Status() != 503 {
			t.Fatalf("answer %+v", m)
		}
		r.record()
	}
}

// strict is a connection on which nothing can be written once its deadline has passed.
type strict struct {
	Upstream
	by balance.Instant
}

func (s *strict) SetWriteDeadline(t balance.Instant) { s.by = t }

func (s *strict) WriteHead(r *message.Request, body []byte, end bool) error {
	if s.by != 0 && s.by <= clock.Now() {
		return os.ErrDeadlineExceeded
	}
	return s.Upstream.WriteHead(r, body, end)
}

// leftovers is a Target whose kept connections have a write deadline of long ago.
type leftovers struct{ Target }

func (l leftovers) Get(now balance.Instant, unsafe bool) Upstream {
	if up := l.Target.Get(now, unsafe); up != nil {
		return &strict{up, 1}
	}
	return nil
}

func (l leftovers) Dial(now, deadline balance.Instant, abort <-chan struct{}) (Upstream, error) {
	up, err := l.Target.Dial(now, deadline, abort)
	if err != nil {
		return nil, err
	}
	return &strict{up, 0}, nil
}

func (l leftovers) Put(u Upstream, now balance.Instant) { l.Target.Put(u.(*strict).Upstream, now) }

// TestNoDeadlineIsInherited: without stream_idle a request on a kept connection is not
// bound by what an exchange before it has set.
func TestNoDeadlineIsInherited(t *testing.T) {
	b := weirtest.Always(t, ok2)
	r := newRig(t, []string{b.Addr()}, rigOptions{edit: func(r *rig) {
		r.rt.Timeouts.StreamIdle = 0
		r.wrap = func(to Target) Target { return leftovers{to} }
	}})
	for range 2 {
		if m := r.roundTrip("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"); m.Status() != 200 {
			t.Errorf("answer %q %q", m.Head(), m.Body)
		}
		r.record()
	}
	if n := b.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestUselessCopyIsLetGo: what was kept of content that turns out to be too large to be
// sent again is no longer held, nor charged to others, while the rest is on its way.
func TestUselessCopyIsLetGo(t *testing.T) {
	budget := new(netconn.Budget)
	e := &exchange{x: New(Options{Budget: budget}), rt: &Route{RetryBody: 10}}
	b := &e.body
	b.keeping = true
	piece := []byte("12345678")
	b.retain(piece, e.mayRetain(len(piece)))
	if n := budget.Used(); n != 8 || string(b.keep) != "12345678" {
		t.Fatalf("%d bytes are charged for %q", n, b.keep)
	}
	b.retain(piece, e.mayRetain(len(piece)))
	if n := budget.Used(); n != 0 || b.keep != nil || !b.lost || b.keeping {
		t.Errorf("%d bytes are charged, %d kept, lost %v", n, len(b.keep), b.lost)
	}
}
