// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/route"
	"github.com/weirlb/weir/pool"
)

// memoryClient is a Downstream without a connection: the exchange alone is
// measured.
type memoryClient struct {
	Downstream
	req  message.Request
	body []byte
	done bool
	head []byte
}

func (c *memoryClient) Request() *message.Request { return &c.req }
func (c *memoryClient) BodyDone() bool            { return c.done }
func (c *memoryClient) ReadBody() ([]byte, error) {
	if c.done {
		return nil, io.EOF
	}
	c.done = true
	return c.body, nil
}
func (c *memoryClient) Conn() *netconn.Conn { return nil }
func (c *memoryClient) MarkClose()          {}
func (c *memoryClient) WriteHead(h *message.Response, body []byte, _ bool) error {
	c.head = append(http1.AppendResponse(c.head[:0], h), body...)
	return nil
}

// memoryServer is an Upstream and its Target, without a connection.
type memoryServer struct {
	Upstream
	answer []byte
	n      int
	taken  bool
	wrote  []byte
}

func (s *memoryServer) Get(balance.Instant, bool) Upstream { return s }
func (s *memoryServer) Dial(_, _ balance.Instant, _ <-chan struct{}) (Upstream, error) {
	return s, nil
}
func (s *memoryServer) Put(Upstream, balance.Instant)    {}
func (s *memoryServer) Conn() *netconn.Conn              { return nil }
func (s *memoryServer) SetReadDeadline(balance.Instant)  {}
func (s *memoryServer) SetWriteDeadline(balance.Instant) {}
func (s *memoryServer) Cut()                             {}
func (s *memoryServer) Reused() bool                     { return true }
func (s *memoryServer) Release()                         {}
func (s *memoryServer) Reusable() bool                   { return true }
func (s *memoryServer) AwaitBy(balance.Instant)          {}

func (s *memoryServer) WriteHead(r *message.Request, body []byte, _ bool) error {
	s.wrote = append(http1.AppendRequest(s.wrote[:0], r), body...)
	s.taken = false
	return nil
}
func (s *memoryServer) ReadHead(r *message.Response, toHEAD bool, _ balance.Instant) (err error) {
	s.n, err = http1.ParseResponse(s.answer, &http1.Limits{}, r, toHEAD)
	return err
}
func (s *memoryServer) Buffered() bool { return true }
func (s *memoryServer) BodyDone() bool { return s.taken }
func (s *memoryServer) ReadBody() ([]byte, error) {
	s.taken = true
	return s.answer[s.n:], nil
}

type memoryDriver struct {
	rig
	s *memoryServer
}

func (d *memoryDriver) Attach(*balance.Backend) any { return d.s }

// memoryRig returns a function that carries one exchange, all in memory.
func memoryRig(tb testing.TB, request, body string, edits ...func(*Route, *memoryServer)) func() {
	table, err := route.New([]route.Rule{{}})
	if err != nil {
		tb.Fatal(err)
	}
	s := &memoryServer{answer: []byte("HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n" +
		"Content-Type: text/plain\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello")}
	p := pool.New(pool.Config{Name: "app", Policy: balance.NewP2C(2), First: true}, &memoryDriver{s: s}, clock.Now)
	p.Start()
	tb.Cleanup(p.Close)
	p.Update([]pool.Spec{{ID: "a", URL: "http://a", Weight: 1}, {ID: "b", URL: "http://b", Weight: 1}, {ID: "c", URL: "http://c", Weight: 1}})
	m := observe.NewMetrics(observe.MetricsOptions{})
	rt := &Route{
		Name: "r", Pool: p, PoolName: "app", Retry: pool.NewRetryRules(2, true, []int{502, 503, 504}, 5*time.Second), RetryBody: 64 << 10,
		Timeouts: Timeouts{Request: time.Minute, ResponseHeader: 30 * time.Second, StreamIdle: time.Minute},
		Series:   m.Route("web", "r", "app"), PoolSeries: m.Pool("app"),
	}
	for _, edit := range edits {
		edit(rt, s)
	}
	h := &Handler{Listener: "web", Routes: table, Targets: []*Route{rt}}
	x := New(Options{Handler: func() *Handler { return h }, Bug: func(where string, v any) { tb.Errorf("%s: %v", where, v) }})
	c := &memoryClient{body: []byte(body)}
	ci := &ClientInfo{Peer: netip.MustParseAddrPort("192.0.2.7:5555"), Local: netip.MustParseAddrPort("192.0.2.1:80")}
	raw := []byte(request)
	var lim http1.Limits
	return func() {
		if _, err := http1.ParseRequest(raw, &lim, &c.req); err != nil {
			tb.Fatal(err)
		}
		c.done = body == ""
		x.Serve(c, ci)
		if len(c.head) == 0 || c.head[9] != '2' {
			tb.Fatalf("answer %q", c.head)
		}
	}
}

const browser = "Host: example.com\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n" +
	"Accept: text/html,application/xhtml+xml\r\nAccept-Language: en\r\nAccept-Encoding: gzip, br\r\nConnection: keep-alive\r\nCookie: a=b; c=d\r\n"

// TestNoAllocations holds the plain path to zero allocations, from parsed head
// to record.
func TestNoAllocations(t *testing.T) {
	keyed := func(rt *Route, s *memoryServer) {
		rt.Key = NewKeyFunc([]KeyPart{{From: KeyClient}, {KeyCookie, "c"}, {KeyQuery, "c"}})
		rt.LoadReports = true
		s.answer = []byte("HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 5\r\n" +
			"Endpoint-Load-Metrics: TEXT cpu_utilization=0.35,application_utilization=0.5\r\n\r\nhello")
	}
	sessions := NewSessions("app")
	sessions.SetMembers(stickyBackends("a", "b", "c"))
	sessions.SetKeys([][]byte{stickyKeyA, stickyKeyB})
	sticky := func(rt *Route, _ *memoryServer) { rt.Sticky = NewSticky(StickyOptions{Name: "c"}, sessions) }
	session := strings.Replace(browser, "c=d", "c="+valueOf(sessions, stickyBackends("b")[0], 0)+"; e=f", 1)
	for name, run := range map[string]func(){
		"session":     memoryRig(t, "GET / HTTP/1.1\r\n"+session+"\r\n", "", sticky),
		"new session": memoryRig(t, "GET / HTTP/1.1\r\n"+browser+"\r\n", "", sticky),
		"key, load":   memoryRig(t, "GET /a/b?c=d HTTP/1.1\r\n"+browser+"\r\n", "", keyed),
		"get":         memoryRig(t, "GET /a/b?c=d HTTP/1.1\r\n"+browser+"\r\n", ""),
		"post":        memoryRig(t, "POST /a HTTP/1.1\r\n"+browser+"Content-Length: 5\r\n\r\n", "hello"),
	} {
		for range 100 {
			run()
		}
		if raceEnabled {
			continue // sync.Pool forgets at random under the race detector
		}
		if n := testing.AllocsPerRun(1000, run); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkSticky is an exchange of a session, and one that begins a session.
func BenchmarkSticky(b *testing.B) {
	sessions := NewSessions("app")
	sessions.SetMembers(stickyBackends("a", "b", "c"))
	sessions.SetKeys([][]byte{stickyKeyA, stickyKeyB})
	sticky := func(rt *Route, _ *memoryServer) {
		rt.Sticky = NewSticky(StickyOptions{Name: "c", TTL: time.Hour}, sessions)
	}
	value := valueOf(sessions, stickyBackends("b")[0], time.Now().Unix())
	for name, fields := range map[string]string{"kept": strings.Replace(browser, "c=d", "c="+value, 1), "new": browser} {
		b.Run(name, func(b *testing.B) {
			run := memoryRig(b, "GET /a/b?c=d HTTP/1.1\r\n"+fields+"\r\n", "", sticky)
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}

// BenchmarkExchange is one exchange between in-memory codecs' ends, parsing and
// writing of heads included.
func BenchmarkExchange(b *testing.B) {
	run := memoryRig(b, "GET /a/b?c=d HTTP/1.1\r\n"+browser+"\r\n", "")
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
}
