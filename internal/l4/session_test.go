// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

func TestBothWays(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, nil)
	c := r.dial()
	for range 3 {
		say(t, c, "hello")
		hear(t, c, "hello")
	}
	_ = c.CloseWrite()
	ends(t, c, false)
	rec := r.want(message.OK, 15, 15)
	if rec.Backend != "b0" || rec.Route != "r" || rec.Pool != "app" || rec.Listener != "db" || rec.Protocol != "tcp" || rec.Attempts != 1 || !rec.ClientIP.IsValid() {
		t.Errorf("record %+v", rec)
	}
}

// A half that has ended is passed on, and the other one goes on.
func TestHalfClose(t *testing.T) {
	t.Run("client first", func(t *testing.T) {
		r := newRig(t, []string{server(t, func(c *net.TCPConn) {
			b, _ := io.ReadAll(c)
			time.Sleep(20 * time.Millisecond) // long after the half
			_, _ = c.Write(bytes.ToUpper(b))
		})}, nil)
		c := r.dial()
		say(t, c, "all of it")
		_ = c.CloseWrite()
		hear(t, c, "ALL OF IT")
		ends(t, c, false)
		r.want(message.OK, 9, 9)
	})
	t.Run("backend first", func(t *testing.T) {
		got := make(chan string, 1)
		r := newRig(t, []string{server(t, func(c *net.TCPConn) {
			_, _ = c.Write([]byte("bye"))
			_ = c.CloseWrite()
			b, _ := io.ReadAll(c)
			got <- string(b)
		})}, nil)
		c := r.dial()
		hear(t, c, "bye")
		ends(t, c, false)
		say(t, c, "last words")
		_ = c.CloseWrite()
		if s := <-got; s != "last words" {
			t.Errorf("the backend got %q", s)
		}
		r.want(message.OK, 10, 3)
	})
}

// A reset arrives as one, so that nobody takes a part for the whole; what came
// before it arrives, too.
func TestReset(t *testing.T) {
	t.Run("by the backend", func(t *testing.T) {
		r := newRig(t, []string{server(t, func(c *net.TCPConn) {
			_, _ = c.Write([]byte("part"))
			var b [1]byte
			_, _ = c.Read(b[:])
			_ = c.SetLinger(0)
		})}, nil)
		c := r.dial()
		hear(t, c, "part")
		say(t, c, "x")
		ends(t, c, true)
		r.want(message.ResetMidResponse, 1, 4)
	})
	t.Run("by the client", func(t *testing.T) {
		seen := make(chan error, 1)
		r := newRig(t, []string{server(t, func(c *net.TCPConn) {
			var b [8]byte
			_, _ = c.Read(b[:])
			_, err := c.Read(b[:])
			seen <- err
		})}, nil)
		c := r.dial()
		say(t, c, "x")
		r.session()
		time.Sleep(20 * time.Millisecond) // the byte is with the backend
		_ = c.SetLinger(0)
		_ = c.Close()
		if err := <-seen; err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("the backend saw %v", err)
		}
		r.want(message.ClientAbort, 1, 0)
	})
	t.Run("after the half", func(t *testing.T) {
		r := newRig(t, []string{server(t, func(c *net.TCPConn) {
			_, _ = c.Write([]byte("part"))
			_ = c.CloseWrite()
			var b [1]byte
			_, _ = c.Read(b[:])
			_ = c.SetLinger(0)
		})}, nil)
		c := r.dial()
		hear(t, c, "part")
		ends(t, c, false)
		say(t, c, "x")
		for { // the end was read; a reset shows at writing
			if _, err := c.Write([]byte("y")); err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if rec := r.record(); rec.Reason != message.ResetMidResponse {
			t.Errorf("ended %s", rec.Reason)
		}
	})
}

// While nothing was sent another backend costs nothing.
func TestRedispatch(t *testing.T) {
	r := newRig(t, []string{deadPort(t), server(t, echo)}, nil)
	for range 4 {
		c := r.dial()
		say(t, c, "x")
		hear(t, c, "x")
		_ = c.CloseWrite()
		ends(t, c, false)
		rec := r.want(message.OK, 1, 1)
		if rec.Backend != "b1" || rec.Attempts > 1 && (rec.Redispatches != 1 || len(rec.Tried) != 1 || rec.Tried[0].Reason != message.ConnectRefused) {
			t.Errorf("record %+v", rec)
		}
	}
	dead := newRig(t, []string{deadPort(t)}, nil)
	dead.turnedAway()
	if rec := dead.want(message.ConnectRefused, 0, 0); rec.Backend != "b0" || rec.Sent {
		t.Errorf("record %+v", rec)
	}
	none := newRig(t, nil, nil)
	none.turnedAway()
	none.want(message.NoBackend, 0, 0)
}

// A backend that accepts and hangs up before a word counts as failing.
func TestRefusedLate(t *testing.T) {
	r := newRig(t, []string{server(t, func(*net.TCPConn) {})}, func(_ *rig, c *pool.Config) {
		c.Passive.Enabled, c.Passive.Consecutive = true, 1000
	})
	c := r.dial()
	ends(t, c, false)
	_ = c.Close()
	r.want(message.ResetBeforeResponse, 0, 0)
	if s := r.pool.Snapshot(); s.Backends[0].Failures != 1 {
		t.Errorf("the pool counts %d failures", s.Backends[0].Failures)
	}
	// A client that spoke may have said something wrong: no word on the backend.
	quiet := newRig(t, []string{server(t, func(c *net.TCPConn) {
		var b [1]byte
		_, _ = c.Read(b[:])
	})}, nil)
	c = quiet.dial()
	say(t, c, "x")
	ends(t, c, false)
	_ = c.Close()
	quiet.want(message.OK, 1, 0)
	if s := quiet.pool.Snapshot(); s.Backends[0].Failures != 0 {
		t.Errorf("the pool counts %d failures", s.Backends[0].Failures)
	}
}

func TestPrefix(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, func(r *rig, _ *pool.Config) {
		r.prefix = []byte("seen ")
		r.rt.ProxyHeader = func(dst []byte, ci *Client) []byte { return append(dst, "HEADER "...) }
	})
	c := r.dial()
	say(t, c, "more")
	hear(t, c, "HEADER seen more")
	_ = c.CloseWrite()
	ends(t, c, false)
	r.want(message.OK, 16, 16)
}

// The idle time begins anew with each byte either way.
func TestIdle(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, func(r *rig, _ *pool.Config) { r.rt.Idle = 150 * time.Millisecond })
	c, other := r.dial(), r.dial()
	say(t, other, "x")
	hear(t, other, "x")
	begin := time.Now()
	for time.Since(begin) < 400*time.Millisecond {
		say(t, c, "x")
		hear(t, c, "x")
		time.Sleep(20 * time.Millisecond)
	}
	ends(t, other, false)
	r.want(message.StreamIdleTimeout, 1, 1)
	ends(t, c, false)
	if rec := r.record(); rec.Reason != message.StreamIdleTimeout || rec.Total < 400*time.Millisecond {
		t.Errorf("ended %s after %s", rec.Reason, rec.Total)
	}
}

func TestTotal(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, func(r *rig, _ *pool.Config) { r.rt.Total = 150 * time.Millisecond })
	c := r.dial()
	for {
		if _, err := c.Write([]byte("x")); err != nil {
			break
		}
		if _, err := c.Read(make([]byte, 16)); err != nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if rec := r.record(); rec.Reason != message.MaxAge || rec.Total < 150*time.Millisecond {
		t.Errorf("ended %s after %s", rec.Reason, rec.Total)
	}
}

// What weir ends is reset, whoever asks and however often.
func TestEnd(t *testing.T) {
	for _, c := range []struct {
		why  observe.TunnelCause
		want message.Reason
	}{
		{observe.TunnelByDrain, message.DrainCut}, {observe.TunnelByRebalance, message.Rebalanced}, {observe.TunnelByShutdown, message.DrainCut},
	} {
		r := newRig(t, []string{server(t, echo)}, nil)
		conn := r.dial()
		say(t, conn, "x")
		hear(t, conn, "x")
		s := r.session()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { s.End(c.why, time.Second) })
		}
		all.Wait()
		ends(t, conn, true)
		r.want(c.want, 1, 1)
		s.End(c.why, 0) // after its end
		if n := r.px.CutCount(); (n == 1) != (c.why == observe.TunnelByShutdown) {
			t.Errorf("%d are counted as cut", n)
		}
	}
}

// A drain that has reached its deadline cuts what is left.
func TestDrainCut(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, nil)
	c := r.dial()
	say(t, c, "x")
	hear(t, c, "x")
	r.session()
	r.targets[0].SetDraining(true)
	say(t, c, "y")
	hear(t, c, "y") // it goes on
	if n := r.targets[0].Cut(); n != 1 {
		t.Errorf("%d were cut", n)
	}
	ends(t, c, true)
	r.want(message.DrainCut, 2, 2)
}

// Bulk arrives whole and in order, both ways at once, by copy and by splice,
// with readers that stall.
func TestBulk(t *testing.T) {
	const size = 24 << 20
	data := make([]byte, size)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < size; i += 8 {
		for k, v := 0, rng.Uint64(); k < 8; k++ {
			data[i+k] = byte(v >> (8 * k))
		}
	}
	sum := sha256.Sum256(data)
	slow := func(c net.Conn, hasher io.Writer) {
		buf := make([]byte, 64<<10)
		for i := 0; ; i++ {
			n, err := c.Read(buf)
			_, _ = hasher.Write(buf[:n])
			if err != nil {
				return
			}
			if i%100 == 0 {
				time.Sleep(2 * time.Millisecond)
			}
		}
	}
	got := make(chan [32]byte, 8)
	r := newRig(t, []string{server(t, func(c *net.TCPConn) {
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = c.Write(data)
			_ = c.CloseWrite()
		})
		h := sha256.New()
		slow(c, h)
		both.Wait()
		got <- [32]byte(h.Sum(nil))
	})}, nil)
	const n = 3
	var all sync.WaitGroup
	for range n {
		c := r.dial()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		all.Go(func() {
			for part := range slices.Chunk(data, 1<<20) {
				_, _ = c.Write(part)
			}
			_ = c.CloseWrite()
		})
		all.Go(func() {
			h := sha256.New()
			slow(c, h)
			if [32]byte(h.Sum(nil)) != sum {
				t.Error("a client got something else")
			}
		})
	}
	all.Wait()
	for range n {
		if <-got != sum {
			t.Error("the backend got something else")
		}
		r.want(message.OK, size, size)
	}
}

// A slow reader makes its sender wait: weir holds no more than a buffer, or a
// pipe, and both ends of it.
func TestBackpressure(t *testing.T) {
	r := newRig(t, []string{server(t, func(c *net.TCPConn) {
		time.Sleep(200 * time.Millisecond)
		_, _ = io.Copy(io.Discard, c)
	})}, nil)
	c := r.dial()
	_ = c.SetWriteBuffer(64 << 10)
	var sent int
	_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	for buf := make([]byte, 256<<10); ; {
		n, err := c.Write(buf)
		sent += n
		if err != nil {
			break
		}
	}
	if sent > 48<<20 {
		t.Errorf("%d bytes were taken while nobody read", sent)
	}
	_ = c.CloseWrite()
	ends(t, c, false)
	r.want(message.OK, int64(sent), 0)
}

// A transfer that the reader is slow about is not idle, though the kernel says
// for longer than the idle time that there is no room.
func TestSlowReaderIsNotIdle(t *testing.T) {
	r := newRig(t, []string{server(t, func(c *net.TCPConn) {
		_, _ = c.Write(make([]byte, 8<<20))
	})}, func(r *rig, _ *pool.Config) { r.rt.Idle = 1500 * time.Millisecond }) // the whole takes twice as long
	c := r.dial()
	_ = c.SetReadBuffer(32 << 10)
	var total int
	for buf := make([]byte, 64<<10); ; time.Sleep(20 * time.Millisecond) {
		n, err := c.Read(buf)
		total += n
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
	}
	if total != 8<<20 {
		t.Errorf("read %d bytes", total)
	}
	_ = c.Close()
	r.want(message.OK, 0, 8<<20)
}

// Urgent data makes reads short that are not the last.
func TestUrgent(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, nil)
	c := r.dial()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		say(t, c, "before")
		if err := raw.Write(func(fd uintptr) bool { return sendUrgent(int(fd)) }); err != nil {
			t.Fatal(err)
		}
		say(t, c, "after")
		hear(t, c, "before")
		hear(t, c, "after")
		_ = i
	}
	_ = c.CloseWrite()
	ends(t, c, false)
}

// Sessions whose client has no descriptor to give away are moved all the same.
func TestGoroutines(t *testing.T) {
	wrap := func(r *rig, _ *pool.Config) {
		r.prefix = []byte("> ")
		r.wrap = func(nc net.Conn) *netconn.Conn { return netconn.New(struct{ net.Conn }{nc}) }
	}
	r := newRig(t, []string{server(t, echo)}, wrap)
	c := r.dial()
	say(t, c, "hello")
	hear(t, c, "> hello")
	_ = c.CloseWrite()
	// What hides the descriptor cannot end one half, so the end is both halves'.
	_, _ = io.Copy(io.Discard, c)
	r.want(message.OK, 7, 7)

	r = newRig(t, []string{server(t, echo)}, wrap)
	c = r.dial()
	say(t, c, "x")
	hear(t, c, "> x")
	r.session().End(observe.TunnelByDrain, 0)
	_, _ = io.Copy(io.Discard, c)
	r.want(message.DrainCut, 3, 3)

	r = newRig(t, []string{server(t, echo)}, func(r *rig, c *pool.Config) {
		wrap(r, c)
		r.rt.Total = 100 * time.Millisecond
	})
	c = r.dial()
	_, _ = io.Copy(io.Discard, c)
	if rec := r.record(); rec.Reason != message.MaxAge {
		t.Errorf("ended %s", rec.Reason)
	}
}

// A full pool makes clients wait, and those who leave are not waited for.
func TestQueue(t *testing.T) {
	r := newRig(t, []string{server(t, echo)}, func(_ *rig, c *pool.Config) { c.Limits.PoolRequests = 1 })
	first := r.dial()
	say(t, first, "x")
	hear(t, first, "x")
	second := r.dial()
	say(t, second, "y")
	_ = second.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, _ := second.Read(make([]byte, 1)); n != 0 {
		t.Fatal("two sessions on a backend that may have one")
	}
	gone := r.dial()
	time.Sleep(20 * time.Millisecond)
	_ = gone.SetLinger(0)
	_ = gone.Close()
	r.want(message.ClientAbort, 0, 0)
	_ = first.CloseWrite()
	ends(t, first, false)
	r.want(message.OK, 1, 1)
	_ = second.SetReadDeadline(time.Now().Add(patience))
	hear(t, second, "y")
	_ = second.CloseWrite()
	ends(t, second, false)
	if rec := r.want(message.OK, 1, 1); rec.Queue == 0 {
		t.Error("it did not wait")
	}
}

// Many sessions that open, talk and end in every way at once.
func TestStorm(t *testing.T) {
	r := newRig(t, []string{server(t, echo), server(t, func(c *net.TCPConn) {
		var b [64]byte
		n, _ := c.Read(b[:])
		_, _ = c.Write(b[:n])
		_ = c.SetLinger(0)
	}), deadPort(t)}, func(r *rig, _ *pool.Config) { r.rt.Idle = 50 * time.Millisecond })
	const clients, rounds = 16, 40
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			for range rounds {
				c, err := net.Dial("tcp", r.addr)
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(patience))
				switch rng.IntN(5) {
				case 0:
					_ = c.(*net.TCPConn).SetLinger(0)
				case 1:
					_, _ = c.Write(make([]byte, 1<<rng.IntN(18)))
					_ = c.(*net.TCPConn).CloseWrite()
					_, _ = io.Copy(io.Discard, c)
				case 2:
					_, _ = io.Copy(io.Discard, c) // until it is idle
				case 3:
					_, _ = c.Write([]byte("x"))
					_, _ = c.Read(make([]byte, 1))
				}
				_ = c.Close()
			}
		})
	}
	stop := make(chan struct{})
	all.Go(func() {
		rng := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			r.mu.Lock()
			for s := range r.known {
				if rng.IntN(20) == 0 {
					defer s.End(observe.TunnelByDrain, 0)
				}
			}
			r.mu.Unlock()
		}
	})
	for range clients * rounds {
		r.record()
	}
	close(stop)
	all.Wait()
}

// TestEndLeavesWithLastBytes: a backend that ends its half behind its last bytes costs
// the client's side one packet and not two.
func TestEndLeavesWithLastBytes(t *testing.T) {
	r := newRig(t, []string{server(t, func(c *net.TCPConn) {
		raw, err := c.SyscallConn()
		if err != nil {
			return
		}
		_ = raw.Control(func(fd uintptr) { // at once: what is held back leaves after 200 ms
			_, _ = netconn.RawSendLast(int(fd), []byte("bye"))
			_ = unix.Shutdown(int(fd), unix.SHUT_WR)
		})
		_, _ = io.Copy(io.Discard, c)
	})}, nil)
	c := r.dial()
	hear(t, c, "bye")
	ends(t, c, false)
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	_ = raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil {
		t.Fatal(err)
	}
	if info.Segs_in != 2 { // that of connecting, and this
		t.Errorf("the client got %d packets, want 2", info.Segs_in)
	}
	_ = c.CloseWrite()
	r.want(message.OK, 0, 3)
}
