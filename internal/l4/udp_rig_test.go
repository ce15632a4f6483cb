// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// flowRig is Flows on sockets of their own, a pool without probes, and backends.
type flowRig struct {
	t     *testing.T
	s     *Flows
	relay *FlowRelay
	pool  *pool.Pool
	addr  string
	group *testGroup

	leases uint64

	mu      sync.Mutex
	rt      *Route
	most    int       // flows; 0: no bound
	full    Admission // what more of them hear; 0: FullListener
	entered int
	refused []Admission
	evicted []netip.AddrPort
	targets []*upstream.Target
	bugs    []string
	known   map[*Flow]bool
	records chan observe.Record
}

// testGroup is sockets of one address.
type testGroup struct {
	fds   []int
	bound netip.AddrPort
}

func (g *testGroup) Descriptors() []int    { return g.fds }
func (g *testGroup) Bound() netip.AddrPort { return g.bound }

// flowSetup is what a test may change before anything runs.
type flowSetup struct {
	*flowRig
	cfg     pool.Config
	ups     upstream.Options
	bind    string // 127.0.0.1 unless said
	sockets int    // 2
	plain   bool
	settle  time.Duration // 0: settledAfter
	expect  []FlowState   // of another rig, whose sockets these are
}

func newFlowRig(t *testing.T, addrs []string, edit func(*flowSetup)) *flowRig {
	t.Helper()
	r := &flowRig{t: t, leases: pool.LeaseBugs(), known: map[*Flow]bool{}, records: make(chan observe.Record, 1<<16)}
	r.rt = &Route{Listener: "dns", Protocol: "udp", Name: "r", PoolName: "app", Idle: time.Minute, Retry: pool.NewRetryRules(2, false, nil, 0)}
	set := &flowSetup{flowRig: r, cfg: pool.Config{Name: "app", Policy: balance.NewRoundRobin(), First: true}, bind: "127.0.0.1", sockets: 2}
	if edit != nil {
		edit(set)
	}
	d := &flowDriver{r, set.ups}
	r.pool = pool.New(set.cfg, d, clock.Now)
	var specs []pool.Spec
	for i, a := range addrs {
		specs = append(specs, pool.Spec{ID: fmt.Sprintf("b%d", i), URL: "udp://" + a, Weight: 1})
	}
	r.pool.Start()
	r.pool.Update(specs)
	r.rt.Pool = r.pool
	r.relay = NewFlowRelay(func(v any) { r.bug("loop", v) })
	r.relay.plain = set.plain
	if set.settle > 0 {
		r.relay.settle = set.settle
	}
	r.s = NewFlows(FlowOptions{
		Relay: r.relay, Sessions: flowRigSessions{r}, Door: r, Bug: r.bug,
		Route: func() *Route {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.rt
		},
		Backend: func(b *balance.Backend) *upstream.Target { return b.Attachment().(*upstream.Target) },
		Reserve: func(l *pool.Lease, _, backend, url string) bool { return r.pool.Adopt(l, backend, url, clock.Now()) },
	})
	r.s.tap = func(rec *observe.Record) {
		c := *rec
		c.Tried = append([]observe.Try(nil), rec.Tried...)
		r.records <- c
	}
	if r.group == nil {
		r.group = bindGroup(t, set.bind, set.sockets)
	}
	for i := range set.expect { // as another process gets them
		fd, err := unix.FcntlInt(uintptr(set.expect[i].FD), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		set.expect[i].FD = fd
	}
	r.relay.Expect(set.expect)
	r.addr = r.group.bound.String()
	if err := r.s.Open(r.group); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.check)
	return r
}

// bindGroup opens sockets of one address.
func bindGroup(t *testing.T, host string, n int) *testGroup {
	t.Helper()
	g := &testGroup{bound: netip.AddrPortFrom(netip.MustParseAddr(host), 0)}
	for range n {
		family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(g.bound.Port()), Addr: g.bound.Addr().As16()})
		if g.bound.Addr().Is4() {
			family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(g.bound.Port()), Addr: g.bound.Addr().As4()}
		}
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		if err := unix.Bind(fd, sa); err != nil {
			t.Fatal(err)
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		port := 0
		switch sa := name.(type) {
		case *unix.SockaddrInet4:
			port = sa.Port
		case *unix.SockaddrInet6:
			port = sa.Port
		}
		g.bound = netip.AddrPortFrom(g.bound.Addr(), uint16(port))
		g.fds = append(g.fds, fd)
	}
	return g
}

// check ends everything and looks for what was not given back.
func (r *flowRig) check() {
	t := r.t
	r.relay.Close()
	r.pool.Close()
	for _, u := range r.targets {
		if n := u.Stats().Open; n != 0 {
			t.Errorf("%d sockets to a backend are still counted", n)
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
	if len(r.known) > 0 || r.s.Count() != 0 || r.entered != 0 {
		t.Errorf("%d flows are still known, %d open, %d places taken", len(r.known), r.s.Count(), r.entered)
	}
	s := r.pool.Snapshot()
	for _, b := range s.Backends {
		if b.InFlight != 0 {
			t.Errorf("%s holds %d slots at the end", b.ID, b.InFlight)
		}
	}
}

// targetAddr is the address of a backend.
func (r *flowRig) targetAddr(i int) string {
	s := r.pool.Snapshot()
	return s.Backends[i].Backend.Address()[len("udp://"):]
}

func (r *flowRig) bug(where string, v any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bugs = append(r.bugs, fmt.Sprintf("%s: %v", where, v))
}

// Evict, Refuse, Enter and Leave implement Doorkeeper.
func (r *flowRig) Evict(client netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.evicted = append(r.evicted, client)
}

func (r *flowRig) Refuse(_ netip.AddrPort, why Admission) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = append(r.refused, why)
}

// flowRigSessions is the rig as FlowSessions.
type flowRigSessions struct{ *flowRig }

func (r flowRigSessions) Enter(f *Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[f] = true
}

func (r flowRigSessions) Leave(f *Flow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known[f] {
		r.bugs = append(r.bugs, "a flow left that is not known")
	}
	delete(r.known, f)
}

func (r *flowRig) Enter(netip.Addr) (Place, Admission) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most > 0 && r.entered >= r.most {
		return Place{}, max(r.full, FullListener)
	}
	r.entered++
	return Place{}, Admitted
}

func (r *flowRig) Leave(netip.Addr, Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entered--
}

// flow returns the only one, once it is there.
func (r *flowRig) flow() *Flow {
	r.t.Helper()
	var found *Flow
	r.eventually("there is a flow", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for f := range r.known {
			found = f
		}
		return found != nil
	})
	return found
}

func (r *flowRig) eventually(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal("not so: " + what)
		}
	}
}

// flowDriver is the pool's driver.
type flowDriver struct {
	*flowRig
	ups upstream.Options
}

func (d *flowDriver) Attach(b *balance.Backend) any {
	opt := d.ups
	opt.Address = b.Address()[len("udp://"):]
	u := upstream.NewTarget(opt)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.targets = append(d.targets, u)
	return u
}
func (d *flowDriver) Probe(*balance.Backend, time.Duration, func(health.ProbeResult)) {}
func (d *flowDriver) CloseIdle(*balance.Backend)                                      {}
func (d *flowDriver) Gone(*balance.Backend)                                           {}
func (d *flowDriver) Notice(pool.Notice)                                              {}

// client sends to the listener from a socket of its own.
func (r *flowRig) client() *net.UDPConn {
	r.t.Helper()
	c, err := net.Dial("udp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*net.UDPConn)
}

// asks sends a text and wants it back from a backend, whose name it returns.
func asks(t *testing.T, c net.Conn, text string) string {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 70000)
	n, err := c.Read(b)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	if n < 2 || string(b[2:n]) != text {
		t.Fatalf("answered %.60q of %d bytes, want %.60q", b[:n], n, text)
	}
	return string(b[:2])
}

// want checks how the next flow ended.
func (r *flowRig) want(reason message.Reason, in, out int64) observe.Record {
	r.t.Helper()
	select {
	case rec := <-r.records:
		if rec.Reason != reason || rec.DatagramsIn != in || rec.DatagramsOut != out {
			r.t.Errorf("a flow ended %s (%s) with %d in, %d out; want %s, %d, %d", rec.Reason, rec.Detail, rec.DatagramsIn, rec.DatagramsOut, reason, in, out)
		}
		return rec
	case <-time.After(patience):
		r.t.Fatal("no flow ended")
		return observe.Record{}
	}
}

// replier answers each datagram with its name, of two letters, before it.
func replier(t *testing.T, name string) string {
	t.Helper()
	return replierAt(t, name, "127.0.0.1:0").LocalAddr().String()
}

func replierAt(t *testing.T, name, addr string) net.PacketConn {
	t.Helper()
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { _ = c.Close(); running.Wait() })
	_ = c.(*net.UDPConn).SetReadBuffer(4 << 20)
	running.Go(func() {
		b := make([]byte, 70000)
		copy(b, name)
		for {
			n, from, err := c.ReadFrom(b[len(name):])
			if err != nil {
				return
			}
			_, _ = c.WriteTo(b[:len(name)+n], from)
		}
	})
	return c
}

// deadUDP is an address on which nothing listens.
func deadUDP(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test's
	return c.LocalAddr().String()
}
