// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// TestMain checks that nothing runs on. The process's poller ends by itself a
// while after its last watch.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/weirlb/weir/internal/netconn.(*Poller).run"))
}

const patience = 10 * time.Second

// rig is a listener, a Proxy, a pool without probes, and scripted backends, all
// on loopback.
type rig struct {
	t      *testing.T
	px     *Proxy
	relay  *Relay
	rt     *Route
	pool   *pool.Pool
	addr   string
	prefix []byte
	serve  func(*netconn.Conn, *Client) // nil: Proxy.Serve
	wrap   func(net.Conn) *netconn.Conn // nil: netconn.New

	ups    upstream.Options
	open   atomic.Int64 // client connections that were not given back
	leases uint64

	mu      sync.Mutex
	targets []*upstream.Target
	bugs    []string
	known   map[*Session]bool
	records chan observe.Record
}

// newRig starts one. edit may change what is not in use yet.
func newRig(t *testing.T, addrs []string, edit func(*rig, *pool.Config)) *rig {
	t.Helper()
	r := &rig{t: t, leases: pool.LeaseBugs(), known: map[*Session]bool{}, records: make(chan observe.Record, 4096)}
	r.ups = upstream.Options{ConnectTimeout: 2 * time.Second}
	cfg := pool.Config{
		Name: "app", Policy: balance.NewRoundRobin(), First: true,
		Limits: pool.Limits{Queue: 8, QueueTimeout: 2 * time.Second},
	}
	r.rt = &Route{Listener: "db", Protocol: "tcp", Name: "r", PoolName: "app", Idle: time.Minute, Retry: pool.NewRetryRules(2, false, nil, 0)}
	if edit != nil {
		edit(r, &cfg)
	}
	r.pool = pool.New(cfg, r, clock.Now)
	var specs []pool.Spec
	for i, a := range addrs {
		specs = append(specs, pool.Spec{ID: fmt.Sprintf("b%d", i), URL: "tcp://" + a, Weight: 1})
	}
	r.pool.Start()
	r.pool.Update(specs)
	r.rt.Pool = r.pool
	r.relay = NewRelay(func(v any) { r.bug("loop", v) })
	r.px = New(Options{
		Relay: r.relay, Sessions: r, Bug: r.bug,
		Backend: func(b *balance.Backend) *upstream.Target { return b.Attachment().(*upstream.Target) },
		Failed:  func(*observe.Record) {},
	})
	r.px.tap = func(rec *observe.Record) {
		c := *rec
		c.Tried = append([]observe.Try(nil), rec.Tried...)
		r.records <- c
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = ln.Addr().String()
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for n := 0; ; n++ {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			r.open.Add(1)
			if n%2 == 0 && r.serve == nil && r.wrap == nil && r.prefix == nil {
				r.serveBare(nc)
				continue
			}
			accepting.Go(func() {
				c := netconn.New(nc)
				if r.wrap != nil {
					c = r.wrap(nc)
				}
				c.SetOnClose(func() { r.open.Add(-1) })
				peer := nc.RemoteAddr().(*net.TCPAddr).AddrPort()
				if r.serve != nil {
					r.serve(c, &Client{Peer: peer})
					return
				}
				r.px.Serve(c, &Client{Peer: peer}, r.rt, r.prefix)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		r.px.Quit()
		r.relay.Close()
		accepting.Wait()
		r.px.Wait()
		r.pool.Close()
		for _, u := range r.targets {
			if n := u.Stats().Open; n != 0 {
				t.Errorf("%d connections to a backend are still counted", n)
			}
			u.Close()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.bugs) > 0 {
			t.Errorf("defects: %q", r.bugs)
		}
		if n := pool.LeaseBugs() - r.leases; n > 0 {
			t.Errorf("%d leases were finished twice", n)
		}
		if n := r.open.Load(); n != 0 {
			t.Errorf("%d client connections were not given back", n)
		}
		if len(r.known) > 0 || r.px.Open() != 0 {
			t.Errorf("%d sessions are still known, %d open", len(r.known), r.px.Open())
		}
		s := r.pool.Snapshot()
		for _, b := range s.Backends {
			if b.InFlight != 0 {
				t.Errorf("%s holds %d slots at the end", b.ID, b.InFlight)
			}
		}
	})
	return r
}

// serveBare serves every other connection, as an accept loop does.
func (r *rig) serveBare(nc net.Conn) {
	peer := nc.RemoteAddr().(*net.TCPAddr).AddrPort()
	fd, _, err := netconn.New(nc).Detach(nil)
	if err != nil {
		r.bug("detach", err)
		return
	}
	r.px.ServeBare(netconn.Bare{FD: fd, Closed: func() { r.open.Add(-1) }, Adopt: adopted}, &Client{Peer: peer}, r.rt)
}

func adopted(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	return net.FileConn(f)
}

func (r *rig) bug(where string, v any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bugs = append(r.bugs, fmt.Sprintf("%s: %v", where, v))
}

// Enter and Leave implement Sessions.
func (r *rig) Enter(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[s] = true
}

func (r *rig) Leave(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known[s] {
		r.bugs = append(r.bugs, "a session left that is not known")
	}
	delete(r.known, s)
}

// session returns the only one, once it is there.
func (r *rig) session() *Session {
	r.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		for s := range r.known {
			r.mu.Unlock()
			return s
		}
		r.mu.Unlock()
		if time.Now().After(end) {
			r.t.Fatal("there is no session")
		}
	}
}

// The pool's driver.
func (r *rig) Attach(b *balance.Backend) any {
	opt := r.ups
	opt.Address = b.Address()[len("tcp://"):]
	u := upstream.NewTarget(opt)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets = append(r.targets, u)
	return u
}
func (r *rig) Probe(*balance.Backend, time.Duration, func(health.ProbeResult)) {}
func (r *rig) CloseIdle(*balance.Backend)                                      {}
func (r *rig) Gone(*balance.Backend)                                           {}
func (r *rig) Notice(pool.Notice)                                              {}

// dial connects to the listener.
func (r *rig) dial() *net.TCPConn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

// turnedAway connects and expects a reset, which may come before connecting has
// returned.
func (r *rig) turnedAway() {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err == nil {
		defer c.Close() //nolint:errcheck // a test's
		_ = c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		r.t.Fatalf("%v, want a reset", err)
	}
}

// record returns the next session that ended.
func (r *rig) record() observe.Record {
	r.t.Helper()
	select {
	case rec := <-r.records:
		return rec
	case <-time.After(patience):
		r.t.Fatal("no session ended")
		return observe.Record{}
	}
}

// want checks how the next session ended.
func (r *rig) want(reason message.Reason, in, out int64) observe.Record {
	r.t.Helper()
	rec := r.record()
	if rec.Reason != reason || rec.BytesIn != in || rec.BytesOut != out {
		r.t.Errorf("the session ended %s (%s) with %d in, %d out; want %s, %d, %d", rec.Reason, rec.Detail, rec.BytesIn, rec.BytesOut, reason, in, out)
	}
	return rec
}

// server is a backend whose connections a function has.
func server(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			all.Go(func() {
				defer func() {
					mu.Lock()
					delete(open, c)
					mu.Unlock()
					_ = c.Close()
				}()
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return ln.Addr().String()
}

func echo(c *net.TCPConn) {
	_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	_ = c.CloseWrite()
}

// deadPort is an address on which nothing listens.
func deadPort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // a test's
	return ln.Addr().String()
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v; want %q", got[:n], err, text)
	}
}

// ends checks that reading ends in order, or by a reset.
func ends(t *testing.T, c net.Conn, reset bool) {
	t.Helper()
	var b [1]byte
	n, err := c.Read(b[:])
	if want := map[bool]error{true: syscall.ECONNRESET, false: io.EOF}[reset]; n != 0 || !errors.Is(err, want) {
		t.Fatalf("read %d bytes and %v, want %v", n, err, want)
	}
}
