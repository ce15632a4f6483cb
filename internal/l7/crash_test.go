// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"sync/atomic"
	"testing"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/weirtest"
)

// bomb is a Target whose connections panic when they are asked for content, once lit.
type bomb struct {
	Target
	lit atomic.Bool
}

type bombed struct {
	Upstream
	b *bomb
}

func (b *bomb) Dial(now, deadline balance.Instant, abort <-chan struct{}) (Upstream, error) {
	up, err := b.Target.Dial(now, deadline, abort)
	if err != nil {
		return nil, err
	}
	return &bombed{up, b}, nil
}

func (b *bombed) ReadBody() ([]byte, error) {
	p, err := b.Upstream.ReadBody()
	if b.b.lit.Load() {
		panic("bomb")
	}
	return p, err
}

// TestCrashLeavesNothing: a panic in the midst of a stream gives back all that the
// exchange was known by and held. A drain would wait for what is left.
func TestCrashLeavesNothing(t *testing.T) {
	more := make(chan struct{})
	back := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.Request()
		s.Send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
		<-more
		_ = s.Try("1\r\nb\r\n")
		_ = s.Request()
	})
	b := new(bomb)
	r := newRig(t, []string{back.Addr()}, rigOptions{edit: func(r *rig) {
		r.rt.Limit = NewLimiter(1)
		r.wrap = func(to Target) Target { b.Target = to; return b }
	}})
	c := r.dial()
	c.Send(get)
	if m := c.ReadHead(); m == nil || m.Status() != 200 {
		t.Fatalf("answer %+v", m)
	}
	eventually(t, "the stream is known", func() bool { return r.x.Tunnels().Open() == 1 })
	b.lit.Store(true)
	close(more)
	if _, err := c.End(); err == nil {
		t.Error("the client took a torn answer for whole")
	}
	eventually(t, "nothing is left", func() bool { return r.x.Tunnels().Open() == 0 && r.rt.Limit.InFlight() == 0 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.bugs) != 1 {
		t.Errorf("bugs %q", r.bugs)
	}
	r.bugs = nil
}
