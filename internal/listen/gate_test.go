// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// refusedAt opens a connection that must be refused, and returns what came.
func refusedAt(t *testing.T, l *Listener) string {
	t.Helper()
	c := dial(t, l)
	// A client usually sends before it reads: its bytes must not turn the
	// answer into a reset.
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	got, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("a refused client sees %v after %q", err, got)
	}
	return string(got)
}

func TestCeilings(t *testing.T) {
	gate := NewGate(3)
	var mu sync.Mutex
	seen := map[Refusal]int{}
	opt := Options{Gate: gate, MaxConnections: 2, RetryAfter: 1500 * time.Millisecond, OnRefused: func(r Refusal) {
		mu.Lock()
		defer mu.Unlock()
		seen[r]++
	}}
	a, b := start(t, opt, echoing), start(t, opt, echoing)
	conns := []net.Conn{dial(t, a), dial(t, a), dial(t, b)}
	for _, c := range conns {
		echo(t, c, "in")
	}
	for _, l := range []*Listener{a, b} {
		got := refusedAt(t, l)
		head, body, _ := strings.Cut(got, "\r\n\r\n")
		if !strings.HasPrefix(head, "HTTP/1.1 503 ") || !strings.Contains(head, "\r\nRetry-After: 2\r\n") ||
			!strings.Contains(head, "\r\nConnection: close\r\n") || !strings.Contains(head, fmt.Sprintf("\r\nContent-Length: %d", len(body))) {
			t.Errorf("answer at a ceiling: %q", got)
		}
	}
	mu.Lock()
	if seen[ListenerLimit] != 1 || seen[ProcessLimit] != 1 || a.Refused(ListenerLimit) != 1 || b.Refused(ProcessLimit) != 1 {
		t.Errorf("refusals: %v", seen)
	}
	mu.Unlock()
	echo(t, conns[0], "still in")
	_ = conns[0].Close()
	eventually(t, "place", func() bool { return gate.Open() == 2 })
	c := dial(t, b)
	echo(t, c, "the next one")
	if gate.Open() != 3 || a.Connections() != 1 || b.Connections() != 2 {
		t.Errorf("gate %d, a %d, b %d", gate.Open(), a.Connections(), b.Connections())
	}
}

// TestCeilingRests: a flood at the ceiling is refused in batches with pauses,
// and a place that becomes free ends the pause.
func TestCeilingRests(t *testing.T) {
	l := start(t, Options{MaxConnections: 1}, echoing)
	in := dial(t, l)
	echo(t, in, "in")
	startAt := time.Now()
	for range 2*batch + 1 {
		refusedAt(t, l)
	}
	if d := time.Since(startAt); d < 2*pause {
		t.Errorf("%d refusals took %v: no pause", 2*batch+1, d)
	}
	if n := l.Refused(ListenerLimit); n != 2*batch+1 {
		t.Errorf("%d refusals counted", n)
	}
}

func TestPerClient(t *testing.T) {
	var logs syncBuffer
	l := start(t, Options{MaxPerClient: 2, Bind: []string{"127.0.0.1:0"}, Logger: slog.New(slog.NewTextHandler(&logs, nil))}, echoing)
	one, two := dial(t, l), dial(t, l)
	echo(t, one, "1")
	echo(t, two, "2")
	if got := refusedAt(t, l); !strings.HasPrefix(got, "HTTP/1.1 503") {
		t.Errorf("third of one client: %q", got)
	}
	if s := logs.String(); !strings.Contains(s, "reason=client_limit total=1 peer=127.0.0.1:") {
		t.Errorf("the log does not say whom: %s", s)
	}
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := other.Dial("tcp", l.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echo(t, c, "another client")
	_ = one.Close()
	eventually(t, "place", func() bool { return l.Connections() == 2 })
	echo(t, dial(t, l), "again")
	_ = two.Close()
}

// TestCeilingHolds: however many are refused at once, the count is never above its
// ceiling.
func TestCeilingHolds(t *testing.T) {
	for name, opt := range map[string]Options{
		"listener": {MaxConnections: 2, Gate: NewGate(8)},
		"process":  {MaxConnections: 8, Gate: NewGate(2)},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t, opt, echoing)
			set := l.set.Load()
			for range 2 {
				if _, _, ok := l.enter(set, netip.Addr{}); !ok {
					t.Fatal("there was room")
				}
			}
			var all sync.WaitGroup
			var over atomic.Bool
			for range 2 {
				all.Go(func() {
					for !over.Load() {
						if _, _, ok := l.enter(set, netip.Addr{}); ok {
							t.Error("one too many has come in")
							return
						}
					}
				})
			}
			for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
				if n := opt.Gate.Open(); n > 2 && name == "process" {
					t.Errorf("%d in the process, whose ceiling is 2", n)
					break
				}
				if n := l.Connections(); n > 2 && name == "listener" {
					t.Errorf("%d on the listener, whose ceiling is 2", n)
					break
				}
			}
			over.Store(true)
			all.Wait()
			for range 2 {
				l.leave(set, netip.Addr{}, false)
			}
		})
	}
}

func TestClientKey(t *testing.T) {
	same := [][2]string{{"10.0.0.1", "::ffff:10.0.0.1"}, {"2001:db8:1:2::1", "2001:db8:1:2:ffff::9"}, {"fe80::1%eth0", "fe80::2%eth1"}}
	for _, p := range same {
		if a, b := clientKey(netip.MustParseAddr(p[0])), clientKey(netip.MustParseAddr(p[1])); a != b {
			t.Errorf("%s and %s: %v and %v", p[0], p[1], a, b)
		}
	}
	if clientKey(netip.MustParseAddr("2001:db8:1:2::1")) == clientKey(netip.MustParseAddr("2001:db8:1:3::1")) {
		t.Error("two sites share a key")
	}
	if clientKey(netip.MustParseAddr("10.0.0.1")) == clientKey(netip.MustParseAddr("10.0.0.2")) {
		t.Error("two IPv4 addresses share a key")
	}
}

// TestGateLimitChange: a lowered ceiling keeps what is open; a raised one lets
// the next in at once.
func TestGateLimitChange(t *testing.T) {
	gate := NewGate(2)
	l := start(t, Options{Gate: gate}, echoing)
	a, b := dial(t, l), dial(t, l)
	echo(t, a, "a")
	echo(t, b, "b")
	gate.SetLimit(1)
	echo(t, a, "a")
	_ = b.Close()
	eventually(t, "b gone", func() bool { return gate.Open() == 1 })
	if got := refusedAt(t, l); !strings.HasPrefix(got, "HTTP/1.1 503") {
		t.Errorf("%q", got)
	}
	gate.SetLimit(0)
	echo(t, dial(t, l), "no limit")
}

// TestRefusedDuringChange: a client that is refused while no other is open does
// not wait for a change of the listener, which waits for it.
func TestRefusedDuringChange(t *testing.T) {
	gate := NewGate(1)
	full := start(t, Options{Gate: gate}, echoing)
	c := dial(t, full)
	echo(t, c, "in")
	port := weirtest.FreePort(t)
	ways := [2]Options{
		{Gate: gate, Bind: []string{":" + port}},
		{Gate: gate, Bind: []string{"[::]:" + port}}, // the same socket
	}
	l := start(t, ways[0], echoing)
	stop := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(stop)
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if nc, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
					_ = nc.Close()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 400 {
			commit, _, err := l.Change(ways[(i+1)%2])
			if err != nil {
				t.Error(err)
				return
			}
			commit()
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("a change waits for a refused client, and that for the change")
	}
}
