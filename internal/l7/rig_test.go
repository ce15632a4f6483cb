// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/route"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// TestMain checks that nothing runs on. The process's poller ends by itself a
// while after its last watch.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/weirlb/weir/internal/netconn.(*Poller).run"))
}

// rig is a whole data plane on loopback: a listener, the codec, an exchanger, a
// pool without probes, and real connections to scripted backends.
type rig struct {
	short func() bool // nil, or Options.Short
	grow  func(int64) bool
	t     *testing.T
	x     *Exchanger
	h     *Handler
	rt    *Route
	pool  *pool.Pool
	srv   *http1.Server
	addr  string

	upstreams upstream.Options
	wrap      func(Target) Target
	peer      netip.AddrPort // what ClientInfo says; the real one when invalid
	tls       bool

	conns   sync.WaitGroup
	targets []*upstream.Target
	leases  uint64 // pool.LeaseBugs at the start

	mu      sync.Mutex
	bugs    []string
	records []observe.Record
	done    chan struct{} // one element per record
}

// rigOptions change a rig before it starts.
type rigOptions struct {
	pool func(*pool.Config)
	edit func(*rig)
}

// newRig starts a rig whose pool holds the addresses, in order: those that begin with
// h2c:// are spoken to in HTTP/2.
func newRig(t *testing.T, addrs []string, opts ...rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, done: make(chan struct{}, 1024), leases: pool.LeaseBugs()}
	r.upstreams = upstream.Options{
		ConnectTimeout: 2 * time.Second, TLSTimeout: 2 * time.Second, KeepAlive: 55 * time.Second,
		MaxIdle: 16, ReuseUnsafeWithin: 500 * time.Millisecond,
	}
	cfg := pool.Config{
		Name: "app", Policy: balance.NewRoundRobin(), First: true,
		Limits: pool.Limits{Queue: 8, QueueTimeout: 2 * time.Second},
		Retry:  pool.Budget{Share: 1, Window: 10 * time.Second, MinPerSecond: 100, Base: time.Millisecond, Max: 2 * time.Millisecond},
	}
	r.rt = &Route{
		Name: "r", PoolName: "app",
		Timeouts: Timeouts{
			Request: 10 * time.Second, Connect: 2 * time.Second, ResponseHeader: 8 * time.Second,
			StreamIdle: 8 * time.Second, TunnelIdle: 8 * time.Second,
		},
		Retry:     pool.NewRetryRules(2, true, []int{502, 503, 504}, 5*time.Second),
		RetryBody: 64 << 10,
	}
	table, err := route.New([]route.Rule{{}})
	if err != nil {
		t.Fatal(err)
	}
	r.h = &Handler{Listener: "web", Routes: table, Targets: []*Route{r.rt}}
	r.srv = &http1.Server{Timeouts: http1.Timeouts{
		Header: 5 * time.Second, Idle: 5 * time.Second, Write: 5 * time.Second,
		BodyMinRate: 240, BodyGrace: 5 * time.Second, Linger: time.Second,
	}}
	for _, o := range opts {
		if o.pool != nil {
			o.pool(&cfg)
		}
		if o.edit != nil {
			o.edit(r)
		}
	}
	r.pool = pool.New(cfg, r, clock.Now)
	var specs []pool.Spec
	for i, a := range addrs {
		if !strings.Contains(a, "://") {
			a = "http://" + a
		}
		specs = append(specs, pool.Spec{ID: fmt.Sprintf("b%d", i), URL: a, Weight: 1})
	}
	r.pool.Start()
	r.pool.Update(specs)
	if r.rt.Pool == nil && r.rt.Respond == nil && r.rt.Redirect == nil {
		r.rt.Pool = r.pool
	}
	r.x = New(Options{
		Handler: func() *Handler { return r.h },
		Short:   r.short,
		Grow:    r.grow,
		Bug: func(where string, v any) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.bugs = append(r.bugs, fmt.Sprintf("%s: %v", where, v))
		},
		Record: func(rec *observe.Record) {
			c := *rec
			c.RequestID = append([]byte(nil), rec.RequestID...)
			c.Path = append([]byte(nil), rec.Path...)
			c.Tried = append([]observe.Try(nil), rec.Tried...)
			c.Host, c.Method, c.Query, c.UserAgent = nil, nil, nil, nil
			r.mu.Lock()
			r.records = append(r.records, c)
			r.mu.Unlock()
			r.done <- struct{}{}
		},
	})
	r.serve()
	return r
}

// serve accepts until the test ends, and then checks that nothing is left.
func (r *rig) serve() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.addr = ln.Addr().String()
	r.srv.Handler = func(c *http1.ServerConn) { r.x.Serve(c, c.Info().(*ClientInfo)) }
	r.srv.OnBadRequest = func(c *http1.ServerConn, e *http1.Error) { r.x.BadRequest(c, c.Info().(*ClientInfo), e) }
	r.conns.Add(1)
	go func() {
		defer r.conns.Done()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			peer := c.RemoteAddr().(*net.TCPAddr).AddrPort()
			if r.peer.IsValid() {
				peer = r.peer
			}
			info := &ClientInfo{Peer: peer, Local: netip.MustParseAddrPort("127.0.0.1:8080"), TLS: r.tls}
			r.conns.Add(1)
			go func() {
				defer r.conns.Done()
				r.srv.Serve(netconn.New(c), info)
			}()
		}
	}()
	r.t.Cleanup(func() {
		_ = ln.Close()
		r.x.Tunnels().Cut(observe.TunnelByShutdown, 1)
		r.srv.CloseAll()
		r.srv.Wait()
		r.conns.Wait()
		for _, b := range r.pool.Snapshot().Backends {
			if b.InFlight != 0 {
				r.t.Errorf("backend %s has %d in flight at the end", b.ID, b.InFlight)
			}
		}
		r.pool.Close()
		for _, t := range r.targets {
			t.Close()
		}
		if n := pool.LeaseBugs(); n != r.leases {
			r.t.Errorf("%d leases were finished twice", n-r.leases)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, b := range r.bugs {
			r.t.Errorf("bug: %s", b)
		}
	})
}

// The rig is the pool's driver: no probes.

func (r *rig) Attach(b *balance.Backend) any {
	o := r.upstreams
	o.Address = strings.TrimPrefix(b.Address(), "http://")
	if a, ok := strings.CutPrefix(o.Address, "h2c://"); ok {
		o.Address, o.Protocol = a, upstream.HTTP2
	}
	u := upstream.NewTarget(o)
	r.targets = append(r.targets, u)
	t := OverHTTP1(u)
	if o.Protocol != upstream.HTTP1 {
		t = OverHTTP2(u)
	}
	if r.wrap != nil {
		t = r.wrap(t)
	}
	return t
}

func (r *rig) Probe(b *balance.Backend, _ time.Duration, done func(health.ProbeResult)) {
	now := clock.Now()
	done(health.ProbeResult{Outcome: health.Pass, Sent: now, At: now})
}
func (r *rig) CloseIdle(*balance.Backend) {}
func (r *rig) Gone(*balance.Backend)      {}
func (r *rig) Notice(pool.Notice)         {}

// dial connects a client.
func (r *rig) dial() *weirtest.Conn {
	r.t.Helper()
	return weirtest.Dial(r.t, r.addr)
}

// record waits for the next record.
func (r *rig) record() observe.Record {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(weirtest.Patience):
		r.t.Fatal("no record")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.records[0]
	r.records = r.records[1:]
	return rec
}

// want checks the parts of a record that every failure fills.
func (r *rig) want(status int, reason message.Reason, sent bool) observe.Record {
	r.t.Helper()
	rec := r.record()
	if rec.Status != status || rec.Reason != reason || rec.Sent != sent {
		r.t.Errorf("record says status %d reason %s sent %v (%s), want %d %s %v", rec.Status, rec.Reason, rec.Sent, rec.Detail, status, reason, sent)
	}
	return rec
}

// roundTrip sends a request and reads its answer on a new connection.
func (r *rig) roundTrip(request string) *weirtest.Message {
	r.t.Helper()
	c := r.dial()
	defer func() { _ = c.Close() }()
	c.Send(request)
	method, _, _ := strings.Cut(request, " ")
	m := c.Final(method)
	if m == nil {
		r.t.Fatal("no answer")
	}
	return m
}

var (
	reID    = regexp.MustCompile(`(?i)(x-request-id: |request )[0-9a-f]{32}`)
	reTrace = regexp.MustCompile(`00-[0-9a-f]{32}-[0-9a-f]{16}-01`)
	reDate  = regexp.MustCompile(`Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT`)
)

// steady replaces what differs from run to run.
func steady(s string) string {
	s = reID.ReplaceAllString(s, "${1}ID")
	s = reTrace.ReplaceAllString(s, "TRACE")
	return reDate.ReplaceAllString(s, "Date: DATE")
}

var eventually = weirtest.Eventually

// counting is a Target that counts and can be told to fail.
type counting struct {
	Target
	gets, dials atomic.Int64
	dialErr     func() error
	onGet       func()
}

func (c *counting) Get(now balance.Instant, unsafe bool) Upstream {
	c.gets.Add(1)
	if c.onGet != nil {
		c.onGet()
	}
	return c.Target.Get(now, unsafe)
}

func (c *counting) Dial(now, deadline balance.Instant, abort <-chan struct{}) (Upstream, error) {
	c.dials.Add(1)
	if c.dialErr != nil {
		if err := c.dialErr(); err != nil {
			return nil, err
		}
	}
	return c.Target.Dial(now, deadline, abort)
}

const ok2 = "HTTP/1.1 200 OK\r\nDate: D\r\nContent-Length: 2\r\n\r\nok"
