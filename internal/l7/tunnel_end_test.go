// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/weirtest"
)

// wsPair is an open tunnel with its two peers in the hands of the test.
type wsPair struct {
	*rig
	client, server *weirtest.Conn
}

func openTunnel(t *testing.T, opts ...rigOptions) *wsPair {
	t.Helper()
	met, over := make(chan *weirtest.Conn, 1), make(chan struct{})
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		s.Send(switched)
		met <- s
		<-over
	})
	p := &wsPair{rig: newRig(t, []string{b.Addr()}, opts...)}
	t.Cleanup(func() { close(over) }) // before the backend waits for its scripts
	p.client = p.dial()
	p.client.Send(upgrade)
	if m := p.client.ReadHead(); m == nil || m.Status() != 101 {
		t.Fatalf("answer %+v", m)
	}
	p.server = <-met
	eventually(t, "open", func() bool { return p.x.Tunnels().Open() == 1 })
	return p
}

// frame is one frame as a peer would send it.
func frame(first byte, payload string, masked bool) string {
	b := []byte{first}
	second := byte(0)
	if masked {
		second = 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, second|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, second|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, second|127), uint64(n))
	}
	if masked {
		b = append(b, 0, 0, 0, 0)
	}
	return string(b) + payload
}

func closeFrame(code uint16, masked bool) string {
	return frame(0x88, string(binary.BigEndian.AppendUint16(nil, code)), masked)
}

// wantClose reads weir's Close frame.
func wantClose(t *testing.T, who string, c *weirtest.Conn, code uint16, reason string, masked bool) {
	t.Helper()
	head, err := c.Bytes(2)
	if err != nil || head[0] != 0x88 || head[1]&0x80 != 0 != masked {
		t.Fatalf("%s got %x, %v, want a Close frame", who, head, err)
	}
	mask := "\x00\x00\x00\x00"
	if masked {
		mask, _ = c.Bytes(4)
	}
	p, err := c.Bytes(int(head[1] & 0x7f))
	text := []byte(p)
	for i := range text {
		text[i] ^= mask[i%4]
	}
	if err != nil || binary.BigEndian.Uint16(text) != code || string(text[2:]) != reason {
		t.Fatalf("%s got close %q, %v, want %d %s", who, text, err, code, reason)
	}
}

func wantBytes(t *testing.T, who string, c *weirtest.Conn, want string) {
	t.Helper()
	if got, err := c.Bytes(len(want)); got != want || err != nil {
		t.Fatalf("%s got %d bytes %.60q, %v, want %d bytes %.60q", who, len(got), got, err, len(want), want)
	}
}

// TestTunnelIsClosedInOrder: the client is told first, what it still sends
// arrives, the backend gets its own word in place of the client's answer.
func TestTunnelIsClosedInOrder(t *testing.T) {
	p := openTunnel(t)
	p.server.Send(frame(0x81, "hello", false))
	wantBytes(t, "client", p.client, frame(0x81, "hello", false))
	p.x.Tunnels().Cut(observe.TunnelByShutdown, weirtest.Patience)
	wantClose(t, "client", p.client, 1012, "shutdown", false)
	p.client.Send(frame(0x82, "late", true) + closeFrame(1000, true))
	wantBytes(t, "backend", p.server, frame(0x82, "late", true))
	wantClose(t, "backend", p.server, 1001, "shutdown", true)
	p.server.Send(frame(0x81, "too late", false) + closeFrame(1001, false))
	_ = p.server.Close()
	if rest, err := p.client.End(); rest != "" || err != nil {
		t.Errorf("after its Close frame the client got %q, %v", rest, err)
	}
	if rec := p.want(101, message.DrainClosed, true); rec.Detail != "shutdown: both peers closed" {
		t.Errorf("detail %q", rec.Detail)
	}
	if n := p.x.CutCount(); n != 0 {
		t.Errorf("%d counted as cut", n)
	}
	if n := p.x.Tunnels().Ended(observe.TunnelByShutdown); n != (TunnelsEnded{1, 0, 0}) {
		t.Errorf("ended %v", n)
	}
}

// TestMessagesStayWhole ends tunnels in the midst of a message, of a frame, of a
// header: what has begun is passed on to its end, and only then the Close frame.
func TestMessagesStayWhole(t *testing.T) {
	big := frame(0x82, strings.Repeat("x", 1<<20), false)
	for name, c := range map[string][2]string{
		"fragments": {frame(0x01, "a", false) + frame(0x89, "", false), frame(0x00, "b", false) + frame(0x80, "c", false)},
		"a frame":   {frame(0x81, "hello", false)[:4], frame(0x81, "hello", false)[4:]},
		"a header":  {frame(0x82, "x", false)[:1], frame(0x82, "x", false)[1:]},
		"spliced":   {big[:500_000], big[500_000:]},
	} {
		t.Run(name, func(t *testing.T) {
			p := openTunnel(t)
			p.server.Send(c[0])
			wantBytes(t, "client", p.client, c[0])
			p.x.Tunnels().Cut(observe.TunnelByDrain, 2*weirtest.Patience)
			p.server.Send(c[1] + frame(0x81, "dropped", false))
			wantBytes(t, "client", p.client, c[1])
			wantClose(t, "client", p.client, 1012, "drain", false)
			p.client.Send(closeFrame(1012, true))
			wantClose(t, "backend", p.server, 1001, "drain", true)
			p.server.Send(closeFrame(1001, false))
			p.want(101, message.DrainClosed, true)
		})
	}
}

// TestTunnelEndsUnanswered: who does not answer is cut, the other peer is told
// all the same, and the record says who it was.
func TestTunnelEndsUnanswered(t *testing.T) {
	const wait = 300 * time.Millisecond
	for _, c := range []struct {
		name, detail           string
		client, server, broken bool
	}{
		{"nobody", "drain: cut, neither peer answered the Close frame", false, false, false},
		{"the client", "drain: cut, the backend did not answer the Close frame", true, false, false},
		{"the backend", "drain: cut, the client did not answer the Close frame", false, true, false},
		{"impossible length", "drain: cut, the client had sent a frame of impossible length", false, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := openTunnel(t)
			if c.broken {
				junk := "\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff and whatever"
				p.client.Send(junk)
				wantBytes(t, "backend", p.server, junk)
			}
			p.x.Tunnels().EndOldest(p.pool.Snapshot().Backends[0].Backend, 1, 0, observe.TunnelByDrain, wait)
			wantClose(t, "client", p.client, 1012, "drain", false)
			if c.client {
				p.client.Send(closeFrame(1012, true))
			}
			if !c.broken {
				wantClose(t, "backend", p.server, 1001, "drain", true)
			}
			if c.server {
				p.server.Send(closeFrame(1001, false))
			}
			_, _ = p.client.End()
			if rec := p.want(101, message.DrainCut, true); rec.Detail != c.detail {
				t.Errorf("detail %q, want %q", rec.Detail, c.detail)
			}
		})
	}
}

// TestPeersCloseThemselves: a closing handshake of the peers that is under way
// when weir ends the tunnel is theirs.
func TestPeersCloseThemselves(t *testing.T) {
	for _, first := range []string{"client", "backend"} {
		t.Run(first, func(t *testing.T) {
			p := openTunnel(t)
			a, b := p.client, p.server
			if first == "backend" {
				a, b = b, a
			}
			a.Send(closeFrame(4000, first == "client"))
			wantBytes(t, "the other", b, closeFrame(4000, first == "client"))
			p.x.Tunnels().Cut(observe.TunnelByShutdown, weirtest.Patience)
			b.Send(closeFrame(4000, first != "client"))
			wantBytes(t, first, a, closeFrame(4000, first != "client"))
			_ = p.server.Close()
			p.want(101, message.DrainClosed, true)
		})
	}
}

// TestTunnelAge ends a tunnel at its age.
func TestTunnelAge(t *testing.T) {
	begin := time.Now()
	p := openTunnel(t, edit(func(r *rig) { r.rt.Timeouts.TunnelAge = 200 * time.Millisecond }))
	wantClose(t, "client", p.client, 1012, "max_age", false)
	if d := time.Since(begin); d < 180*time.Millisecond {
		t.Errorf("after %s", d)
	}
	p.client.Send(closeFrame(1012, true))
	wantClose(t, "backend", p.server, 1001, "max_age", true)
	p.server.Send(closeFrame(1001, false))
	if rec := p.want(101, message.MaxAge, true); rec.Detail != "max_age: both peers closed" {
		t.Errorf("detail %q", rec.Detail)
	}
}

// TestPace spreads any number evenly over any time, whatever the dice say.
func TestPace(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 7, 200, 5000, 100_000} {
		for _, spread := range []time.Duration{0, time.Millisecond, time.Second, time.Minute} {
			at, told, half := time.Duration(0), 0, time.Duration(-1)
			for told < n {
				more, gap := pace(spread-at, n-told-1, r.Float64())
				if more < 0 || more > n-told-1 || gap < 0 {
					t.Fatalf("%d over %s: %d more and %s", n, spread, more, gap)
				}
				told += 1 + more
				if half < 0 && told*2 >= n {
					half = at
				}
				if told < n {
					at += gap
				}
			}
			if at > spread+spread/2 {
				t.Errorf("%d over %s: the last after %s", n, spread, at)
			}
			// A wave of 200 has a standard deviation of 0.29 s / sqrt(100) around its
			// half; 10 % is more than three of it.
			if n >= 200 && spread >= time.Second && (half < spread*4/10 || half > spread*6/10) {
				t.Errorf("%d over %s: half of them after %s", n, spread, half)
			}
		}
	}
}
