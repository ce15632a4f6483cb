// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/internal/weirtest"
)

const (
	upgrade  = "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
	switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\n"
)

// TestTunnel opens a tunnel with bytes on both sides that arrive with the heads,
// echoes, and ends one half after the other.
func TestTunnel(t *testing.T) {
	got := make(chan *weirtest.Message, 1)
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		got <- s.ReadHead()
		s.Send(switched + "first")
		if p, err := s.Bytes(5); p != "early" {
			t.Errorf("backend got %q, %v", p, err)
		}
		s.Send("early")
		for {
			p, err := s.Bytes(4)
			if err != nil {
				break
			}
			s.Send(p)
		}
		s.Send("bye")
	})
	r := newRig(t, []string{b.Addr()})
	c := r.dial()
	c.Send(upgrade + "early")
	m := c.Final("GET")
	if m == nil || m.Status() != 101 || m.Get("Upgrade") != "websocket" || m.Get("Connection") != "Upgrade" || m.Get("Sec-WebSocket-Accept") != "a" {
		t.Fatalf("answer %+v", m)
	}
	if up := <-got; up.Get("Upgrade") != "websocket" || up.Get("Connection") != "Upgrade" || up.Get("Sec-WebSocket-Key") != "k" {
		t.Errorf("backend saw %q", up.Head())
	}
	if p, err := c.Bytes(10); p != "firstearly" {
		t.Fatalf("%q, %v", p, err)
	}
	for range 3 {
		c.Send("ping")
		if p, err := c.Bytes(4); p != "ping" {
			t.Fatalf("%q, %v", p, err)
		}
	}
	if n := r.pool.Snapshot().Backends[0].InFlight; n != 1 {
		t.Errorf("%d in flight while the tunnel is open, want 1", n)
	}
	c.CloseWrite()
	if rest, err := c.End(); rest != "bye" || err != nil {
		t.Errorf("end %q, %v", rest, err)
	}
	rec := r.want(101, message.OK, true)
	if !rec.Tunnel || rec.BytesIn != 5+12 || rec.BytesOut != 10+12+3 {
		t.Errorf("record %+v", rec)
	}
}

// TestUpgradeDeclined passes an ordinary answer on, and keeps the connection. Of
// what a 426 asks for only that is passed on which weir would tunnel.
func TestUpgradeDeclined(t *testing.T) {
	for wanted, passes := range map[string]bool{"WebSocket": true, "h2c": false} {
		b := weirtest.Always(t, "HTTP/1.1 426 Upgrade Required\r\nUpgrade: "+wanted+"\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nno")
		r := newRig(t, []string{b.Addr()})
		c := r.dial()
		for range 2 {
			c.Send(upgrade)
			m := c.Final("GET")
			if m == nil || m.Status() != 426 || m.Body != "no" {
				t.Fatalf("answer %+v", m)
			}
			if slices.Contains(m.Lines, "Upgrade: "+wanted) != passes || slices.Contains(m.Lines, "Connection: Upgrade") != passes {
				t.Errorf("%s: %q", wanted, m.Lines)
			}
			r.want(426, message.OK, true)
		}
	}
}

// TestUpgradeIsNotRepeated checks that an upgrade whose connection dies is not
// sent twice.
func TestUpgradeIsNotRepeated(t *testing.T) {
	a := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		s.Reset()
	})
	b := weirtest.Always(t, ok2)
	r := newRig(t, []string{a.Addr(), b.Addr()}, firstPick)
	if m := r.roundTrip(upgrade); m.Status() != 502 {
		t.Errorf("answer %+v", m)
	}
	if n := len(b.Seen()); n != 0 {
		t.Errorf("repeated %d times", n)
	}
}

// TestTunnelIdle and the cut at the end of the process.
func TestTunnelEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		idle   time.Duration
		reason message.Reason
	}{
		{"idle", 100 * time.Millisecond, message.StreamIdleTimeout},
		{"cut", time.Hour, message.DrainCut},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
				_ = s.ReadHead()
				s.Send(switched)
				_, _ = s.End()
			})
			r := newRig(t, []string{b.Addr()}, edit(func(r *rig) { r.rt.Timeouts.TunnelIdle = c.idle }))
			client := r.dial()
			client.Send(upgrade)
			_ = client.Final("GET")
			if c.name == "cut" {
				eventually(t, "open", func() bool { return r.x.Tunnels().Open() == 1 })
				r.x.Tunnels().Cut(observe.TunnelByShutdown, time.Millisecond)
			}
			_, _ = client.End()
			r.want(101, c.reason, true)
			eventually(t, "no tunnel is left", func() bool { return r.x.Tunnels().Open() == 0 })
		})
	}
}

// TestTunnelLeft: a peer that ends its half and a peer that does not notice hold
// no tunnel for as long as it may idle.
func TestTunnelLeft(t *testing.T) {
	for _, first := range []string{"client", "backend"} {
		t.Run(first, func(t *testing.T) {
			p := openTunnel(t, edit(func(r *rig) { r.rt.Timeouts.TunnelIdle = 200 * time.Millisecond }))
			leaves, stays := p.client, p.server
			if first == "backend" {
				leaves, stays = stays, leaves
			}
			leaves.CloseWrite()
			if rest, err := stays.End(); rest != "" || err != nil {
				t.Errorf("the other one got %q, %v", rest, err)
			}
			stays.Send("x") // it may still say something
			if got, err := leaves.Bytes(1); got != "x" {
				t.Errorf("who has left got %q, %v", got, err)
			}
			p.want(101, message.OK, true)
			eventually(t, "no tunnel is left", func() bool { return p.x.Tunnels().Open() == 0 })
		})
	}
}

// TestTunnelBroken checks that the record names the side that broke a tunnel,
// and that the client's socket notices a host that is gone.
func TestTunnelBroken(t *testing.T) {
	for _, side := range []string{"client", "backend"} {
		t.Run(side, func(t *testing.T) {
			b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
				_ = s.ReadHead()
				s.Send(switched)
				_, _ = s.Bytes(1)
				if side == "backend" {
					s.Reset()
					return
				}
				_, _ = s.End()
			})
			r := newRig(t, []string{b.Addr()})
			client := r.dial()
			client.Send(upgrade)
			_ = client.Final("GET")
			if side == "client" {
				eventually(t, "user timeout", func() bool { return userTimeout(t, client.LocalAddr()) == upstream.DefaultUserTimeout })
			}
			client.Send("x")
			if side == "client" {
				client.Reset()
				r.want(101, message.ClientAbort, true)
				return
			}
			_, _ = client.End()
			r.want(101, message.ResetMidResponse, true)
		})
	}
}

// userTimeout finds the accepted socket of a client of this process and returns
// its TCP_USER_TIMEOUT.
func userTimeout(t *testing.T, client net.Addr) time.Duration {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		peer, err := unix.Getpeername(fd)
		if a, ok := peer.(*unix.SockaddrInet4); err != nil || !ok || a.Port != client.(*net.TCPAddr).Port {
			continue
		}
		ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(ms) * time.Millisecond
	}
	return 0
}
