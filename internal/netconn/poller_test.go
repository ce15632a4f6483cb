// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

func newPoller(t *testing.T, spawn bool) *Poller {
	t.Helper()
	p, err := NewPoller(spawn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func waitEvent(t *testing.T, ch <-chan PollEvent) PollEvent {
	t.Helper()
	select {
	case ev := <-ch:
		return ev
	case <-time.After(patience):
		t.Fatal("no event")
		return 0
	}
}

// TestPollerEvents walks through every way a wait ends, several times on the
// same connection.
func TestPollerEvents(t *testing.T) {
	for _, spawn := range []bool{false, true} {
		p := newPoller(t, spawn)
		a, b := tcpPair(t)
		c := New(a)
		ch := make(chan PollEvent, 10)
		wait := func(want PollWant, d time.Duration) Ticket {
			t.Helper()
			var at balance.Instant
			if d != 0 {
				at = clock.Now().Add(d)
			}
			tk, err := p.Wait(c, want, at, func(ev PollEvent) { ch <- ev })
			if err != nil {
				t.Fatal(err)
			}
			return tk
		}
		for range 3 {
			wait(WantBytes, time.Hour)
			mustWrite(t, b, "x")
			if ev := waitEvent(t, ch); ev != PollReady {
				t.Fatalf("bytes: %v", ev)
			}
			wait(WantBytes, 0) // still there: at once
			if ev := waitEvent(t, ch); ev != PollReady {
				t.Fatalf("bytes that are there: %v", ev)
			}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			wait(WantBytes, 20*time.Millisecond)
			if ev := waitEvent(t, ch); ev != PollExpired || time.Since(start) < 20*time.Millisecond {
				t.Fatalf("deadline: %v after %v", ev, time.Since(start))
			}
			if tk := wait(WantBytes, time.Hour); !p.Cancel(tk) || p.Cancel(tk) {
				t.Fatal("cancel")
			}
			if p.Waiting() != 0 {
				t.Fatalf("%d waits left", p.Waiting())
			}
		}
		wait(WantHangup, 0)
		mustWrite(t, b, "x")
		_ = b.CloseWrite()
		select {
		case ev := <-ch:
			t.Fatalf("bytes and a half-close are no hang-up: %v", ev)
		case <-time.After(20 * time.Millisecond):
		}
		_ = b.SetLinger(0)
		_ = b.Close()
		if ev := waitEvent(t, ch); ev != PollReady {
			t.Fatalf("reset: %v", ev)
		}
		wait(WantHangup, 0) // known already: at once
		waitEvent(t, ch)
		_ = c.Close()
		if _, err := p.Wait(c, WantBytes, 0, func(PollEvent) { t.Error("called") }); err == nil {
			t.Error("a closed connection was taken")
		}
	}
}

// TestPollerGone: Abort, Close of the connection and Close of the Poller end a
// wait.
func TestPollerGone(t *testing.T) {
	end := map[string]func(c *Conn, p *Poller){
		"abort":        func(c *Conn, _ *Poller) { c.Abort() },
		"close":        func(c *Conn, _ *Poller) { _ = c.Close() },
		"reset":        func(c *Conn, _ *Poller) { _ = c.Reset() },
		"poller close": func(_ *Conn, p *Poller) { _ = p.Close() },
	}
	for name, f := range end {
		t.Run(name, func(t *testing.T) {
			p := newPoller(t, true)
			a, _ := tcpPair(t)
			c := New(a)
			ch := make(chan PollEvent, 10)
			if _, err := p.Wait(c, WantBytes, 0, func(ev PollEvent) { ch <- ev }); err != nil {
				t.Fatal(err)
			}
			f(c, p)
			if ev := waitEvent(t, ch); ev != PollGone {
				t.Errorf("%v", ev)
			}
			if name == "abort" { // aborted before the wait: at once
				if _, err := p.Wait(c, WantBytes, 0, func(ev PollEvent) { ch <- ev }); err != nil {
					t.Fatal(err)
				}
				if ev := waitEvent(t, ch); ev != PollGone {
					t.Errorf("%v", ev)
				}
			}
			_ = c.Close()
			if p.Waiting() != 0 || len(ch) != 0 {
				t.Errorf("%d waits, %d more events", p.Waiting(), len(ch))
			}
		})
	}
}

// TestPollerDeadlineOrder: many deadlines in random order end in order, none
// early, with some cancelled on the way.
func TestPollerDeadlineOrder(t *testing.T) {
	p := newPoller(t, false)
	rnd := rand.New(rand.NewPCG(3, 4))
	const n = 60
	var mu sync.Mutex
	var ended []balance.Instant
	var wg sync.WaitGroup
	for i := range n {
		a, _ := tcpPair(t)
		at := clock.Now().Add(time.Duration(100+rnd.IntN(200)) * time.Millisecond)
		wg.Add(1)
		tk, err := p.Wait(New(a), WantBytes, at, func(ev PollEvent) {
			defer wg.Done()
			mu.Lock()
			defer mu.Unlock()
			if now := clock.Now(); ev != PollExpired || now < at {
				t.Errorf("%v, %v early", ev, at.Sub(now))
			}
			ended = append(ended, at)
		})
		if err != nil {
			t.Fatal(err)
		}
		if i%5 == 0 {
			if !p.Cancel(tk) {
				t.Error("cancel came too late")
			}
			wg.Done()
		}
	}
	within(t, "deadlines", wg.Wait)
	if !slices.IsSorted(ended) || len(ended) != n-n/5 {
		t.Errorf("%d ended, in order: %v", len(ended), slices.IsSorted(ended))
	}
}

// TestPollerRaces: waits end by bytes, deadlines, Cancel, Abort and Close in
// every interleaving the scheduler finds; each callback runs exactly once
// unless cancelled.
func TestPollerRaces(t *testing.T) {
	for _, spawn := range []bool{false, true} {
		p := newPoller(t, spawn)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(g), 9))
				for range 60 {
					a, b := tcpPair(t)
					c := New(a)
					for range 5 {
						var calls atomic.Int32
						done := make(chan struct{})
						at := clock.Now().Add(time.Duration(rnd.IntN(2000)) * time.Microsecond)
						tk, err := p.Wait(c, WantBytes, at, func(PollEvent) {
							if calls.Add(1) == 1 {
								close(done)
							}
						})
						if err != nil {
							t.Error(err)
							return
						}
						var side sync.WaitGroup
						switch rnd.IntN(4) {
						case 0:
							side.Go(func() { _, _ = b.Write([]byte("x")) })
						case 1:
							side.Go(c.Abort)
						case 2:
							side.Go(func() { _ = b.CloseWrite() })
						}
						if rnd.IntN(3) == 0 && p.Cancel(tk) {
							side.Wait()
							if calls.Load() != 0 {
								t.Error("called after Cancel")
							}
							continue
						}
						<-done
						side.Wait()
						if calls.Load() != 1 {
							t.Errorf("called %d times", calls.Load())
						}
					}
					_ = c.Close()
					_ = b.Close()
				}
			})
		}
		within(t, "races", wg.Wait)
		if p.Waiting() != 0 {
			t.Errorf("%d waits left", p.Waiting())
		}
	}
}

// TestPollerIdles: the goroutine ends when nothing is waited for, and comes
// back.
func TestPollerIdles(t *testing.T) {
	p := newPoller(t, false)
	running := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.running
	}
	for range 3 {
		a, b := tcpPair(t)
		ch := make(chan PollEvent, 1)
		if _, err := p.Wait(New(a), WantBytes, 0, func(ev PollEvent) { ch <- ev }); err != nil {
			t.Fatal(err)
		}
		if !running() {
			t.Error("nobody waits")
		}
		mustWrite(t, b, "x")
		waitEvent(t, ch)
		eventually(t, "end of the goroutine", func() bool { return !running() })
	}
}

// watchAbort waits until what OnAbort reports happens (true) or stop is closed
// (false). The connection stays usable.
func watchAbort(c *Conn, stop <-chan struct{}) bool {
	hit := make(chan struct{})
	w := c.OnAbort(func() { close(hit) })
	select {
	case <-hit:
		return true
	case <-stop:
		return !w.Stop()
	}
}

func TestOnAbort(t *testing.T) {
	for _, kind := range []string{"tcp", "tls"} {
		open := func() (*Conn, *Conn) {
			if kind == "tls" {
				return tlsPair(t)
			}
			a, b := tcpPair(t)
			return New(a), New(b)
		}
		t.Run(kind, func(t *testing.T) {
			a, b := open()
			stop, got := make(chan struct{}), make(chan bool, 1)
			go func() { got <- watchAbort(a, stop) }()
			mustWrite(t, b, "pipelined")
			_ = b.CloseWrite()
			select {
			case v := <-got:
				t.Fatalf("bytes and a half-close taken for an abort: %v", v)
			case <-time.After(30 * time.Millisecond):
			}
			close(stop)
			within(t, "stop", func() {
				if <-got {
					t.Error("stopped, and says aborted")
				}
			})
			p := make([]byte, 9)
			a.SetReadDeadline(clock.Now().Add(patience))
			if n, err := a.Read(p); err != nil || string(p[:n]) != "pipelined" {
				t.Errorf("the watch took bytes: %q, %v", p[:n], err)
			}
			mustWrite(t, a, "still usable")

			a, b = open()
			go func() { got <- watchAbort(a, nil) }()
			eventually(t, "watch", func() bool { return a.hook.Load() != nil })
			_ = b.Reset()
			within(t, "reset", func() {
				if !<-got {
					t.Error("a reset is an abort")
				}
			})

			a, _ = open()
			go func() { got <- watchAbort(a, nil) }()
			eventually(t, "watch", func() bool { return a.hook.Load() != nil })
			a.Abort()
			within(t, "abort", func() { <-got })
		})
	}
	t.Run("without descriptor", func(t *testing.T) {
		x, y := net.Pipe()
		defer y.Close()
		c := New(x)
		got := make(chan bool, 1)
		go func() { got <- watchAbort(c, nil) }()
		eventually(t, "watch", func() bool { return c.hook.Load() != nil })
		_ = c.Close()
		within(t, "close", func() { <-got })
	})
}

// TestParkedMemory prints and bounds what a waiting connection costs beside the
// kernel: everything that Go holds for it, the net.TCPConn included.
func TestParkedMemory(t *testing.T) {
	const n = 2000
	if FileLimit() < 3*n {
		t.Skipf("needs %d descriptors, have %d", 3*n, FileLimit())
	}
	p := newPoller(t, true)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var peers []net.Conn
	var mine []net.Conn
	for range n {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		peers, mine = append(peers, c), append(mine, s)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	var done sync.WaitGroup
	before := heap()
	conns := make([]*Conn, n)
	for i, s := range mine {
		c := New(s)
		conns[i] = c
		done.Add(1)
		if _, err := p.Wait(c, WantBytes, clock.Now().Add(time.Hour), func(PollEvent) { done.Done(); _ = c.Close() }); err != nil {
			t.Fatal(err)
		}
	}
	per := (float64(heap()) - float64(before)) / n
	t.Logf("a parked connection costs %.0f bytes beside its net.TCPConn", per)
	if per > 1024 {
		t.Errorf("more than 1 KiB")
	}
	for _, c := range peers {
		_ = c.Close()
	}
	within(t, "end", done.Wait)
	runtime.KeepAlive(conns)
}
