// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

func trustsWeirs(r *rig) {
	r.h.Trust = NewTrust(nil, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
}

// TestAttemptMark checks the number that backends get: in pools of weirs only,
// counted on from a trusted weir's, and never the client's own word.
func TestAttemptMark(t *testing.T) {
	const marked = "GET / HTTP/1.1\r\nHost: h\r\nX-Weir-Attempt: %s\r\nX-Weir-Else: x\r\n\r\n"
	for _, c := range []struct {
		name        string
		weir, trust bool
		said        string // by the client
		first       []string
		second      []string
		others      bool // X-Weir-Else passes
	}{
		{name: "to others nothing"},
		{name: "to weirs", weir: true, first: []string{"1"}, second: []string{"2"}},
		{name: "a stranger's number counts for nothing", weir: true, said: "7", first: []string{"1"}, second: []string{"2"}},
		{name: "nor goes on to others", said: "7"},
		{name: "a trusted weir's is gone on from", weir: true, trust: true, said: "2", first: []string{"2"}, second: []string{"3"}, others: true},
		{name: "but not to others", trust: true, said: "2", others: true},
		{name: "nonsense is the first", weir: true, trust: true, said: "-3", first: []string{"1"}, second: []string{"2"}, others: true},
		{name: "with an end", weir: true, trust: true, said: "99999999999999999999", first: []string{"99"}, second: []string{"99"}, others: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := weirtest.Always(t, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
			good := weirtest.Always(t, ok2)
			r := newRig(t, []string{bad.Addr(), good.Addr()}, firstPick, rigOptions{edit: func(r *rig) {
				r.rt.Weir = c.weir
				if c.trust {
					trustsWeirs(r)
				}
			}})
			request := get
			if c.said != "" {
				request = fmt.Sprintf(marked, c.said)
			}
			if m := r.roundTrip(request); m.Status() != 200 {
				t.Errorf("answer %+v", m)
			}
			r.want(200, message.OK, true)
			one, two := bad.Seen()[0], good.Seen()[0]
			if got := one.Values(attemptName); !slices.Equal(got, c.first) {
				t.Errorf("the first attempt says %q, want %q", got, c.first)
			}
			if got := two.Values(attemptName); !slices.Equal(got, c.second) {
				t.Errorf("the second attempt says %q, want %q", got, c.second)
			}
			if got := one.Has("X-Weir-Else"); got != c.others {
				t.Errorf("another X-Weir field passes: %v", got)
			}
		})
	}
}

// TestRetryMark checks which answers say that they are not to be retried, and to
// whom.
func TestRetryMark(t *testing.T) {
	const (
		plain  = get
		marked = "GET / HTTP/1.1\r\nHost: h\r\nX-Weir-Attempt: 1\r\n\r\n"
		posted = "POST / HTTP/1.1\r\nHost: h\r\nX-Weir-Attempt: 1\r\nContent-Length: 3\r\n\r\nabc"
		busy   = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
		told   = "HTTP/1.1 503 Busy\r\nX-Weir-Retry: no\r\nContent-Length: 0\r\n\r\n"
		maybe  = "HTTP/1.1 503 Busy\r\nX-Weir-Retry: yes\r\nContent-Length: 0\r\n\r\n"
		own    = "HTTP/1.1 500 Bug\r\nX-Weir-Retry: no\r\nContent-Length: 0\r\n\r\n"
	)
	noBudget := func(c *pool.Config) { c.Retry = pool.Budget{} }
	for _, c := range []struct {
		name       string
		request    string
		first      string
		second     string // empty: there is no second backend
		trust      bool
		attempts   int // of the rules; 0: 2
		pool       func(*pool.Config)
		status     int
		mark       bool
		onSecond   int
		firstWords string
	}{
		{name: "a good answer", request: marked, first: ok2, second: ok2, status: 200},
		{name: "after a retry", request: marked, first: busy, second: ok2, status: 200, mark: true, onSecond: 1},
		{name: "after one that failed", request: marked, first: busy, second: busy, status: 503, mark: true, onSecond: 1},
		{name: "to a stranger nothing", request: plain, first: busy, second: busy, status: 503, onSecond: 1},
		{name: "to a trusted weir", request: plain, trust: true, first: busy, second: busy, status: 503, mark: true, onSecond: 1},
		{name: "declined for the budget", request: marked, first: busy, second: ok2, pool: noBudget, status: 503, mark: true},
		{name: "declined as it may not run twice", request: posted, first: busy, second: ok2, status: 503, mark: true},
		{name: "what is not retried here may be above", request: marked, first: "HTTP/1.1 500 Bug\r\nContent-Length: 0\r\n\r\n", second: ok2, status: 500},
		{name: "so may everything by a layer without retries", request: marked, first: busy, second: ok2, attempts: 1, status: 503},
		{name: "and by one with nowhere else to go", request: marked, first: busy, status: 503},
		{name: "told from below", request: marked, first: told, second: ok2, status: 503, mark: true},
		{name: "which a stranger does not hear of", request: plain, first: told, second: ok2, status: 503},
		{name: "told about what is not retried here", request: marked, first: own, second: ok2, status: 500, mark: true},
		{name: "another word is none", request: marked, first: maybe, second: ok2, status: 200, mark: true, onSecond: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			addrs := []string{weirtest.Always(t, c.first).Addr()}
			var good *weirtest.Backend
			if c.second != "" {
				good = weirtest.Always(t, c.second)
				addrs = append(addrs, good.Addr())
			}
			r := newRig(t, addrs, firstPick, rigOptions{pool: c.pool, edit: func(r *rig) {
				if c.trust {
					trustsWeirs(r)
				}
				if c.attempts != 0 {
					r.rt.Retry.Attempts = c.attempts
				}
			}})
			m := r.roundTrip(c.request)
			want := []string(nil)
			if c.mark {
				want = []string{"no"}
			}
			if got := m.Values(retryName); m.Status() != c.status || !slices.Equal(got, want) {
				t.Errorf("answer %d with mark %q, want %d %q", m.Status(), got, c.status, want)
			}
			if good != nil && len(good.Seen()) != c.onSecond {
				t.Errorf("%d requests on the second backend, want %d", len(good.Seen()), c.onSecond)
			}
			r.record()
		})
	}
}

// TestRetryMarkOfCalls: of a call's status that comes alone the mark is a negative
// pushback as well, which nobody but a weir in front gets to see, unless the server
// has said so itself.
func TestRetryMarkOfCalls(t *testing.T) {
	const never, no = "grpc-retry-pushback-ms: -1", "X-Weir-Retry: no"
	for name, c := range map[string]struct {
		answer   string
		above    bool
		attempts int
		pushback []string
		mark     []string
	}{
		"after a retry":            {alone(14), true, 2, []string{"-1"}, []string{"no"}},
		"in place of the server's": {alone(14, "grpc-retry-pushback-ms: 1"), true, 2, []string{"-1"}, []string{"no"}},
		"to a stranger nothing":    {alone(14), false, 2, nil, nil},
		"without a retry":          {alone(14), true, 1, nil, nil},
		"told from below":          {alone(14, never, no), true, 2, []string{"-1"}, []string{"no"}},
		"and not passed on":        {alone(14, never, no), false, 2, nil, nil},
		"the server's own":         {alone(14, never), false, 2, []string{"-1"}, nil},
		"that says it to weirs":    {alone(14, never), true, 2, []string{"-1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, []string{weirtest.Always(t, c.answer).Addr(), weirtest.Always(t, c.answer).Addr()}, edit(func(r *rig) {
				r.rt.Retry.Attempts = c.attempts
				r.rt.Retry.OnGRPC.Add(uint8(message.GRPCUnavailable))
			}))
			var fields []string
			if c.above {
				fields = []string{"X-Weir-Attempt: 1"}
			}
			got := r.calls().call(one(), fields...)
			if push, mark := got.header.Values(grpcPushbackName), got.header.Values(retryName); got.status != "UNAVAILABLE" || !slices.Equal(push, c.pushback) || !slices.Equal(mark, c.mark) {
				t.Errorf("got %+v, want pushback %q and mark %q", got, c.pushback, c.mark)
			}
			r.record()
		})
	}
}

// TestRetryMarkOnOwnAnswer: an answer that weir makes itself is marked as well,
// unless nothing was sent, which the layer above may then try elsewhere.
func TestRetryMarkOnOwnAnswer(t *testing.T) {
	const marked = "GET / HTTP/1.1\r\nHost: h\r\nX-Weir-Attempt: 1\r\n\r\n"
	reset := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		_ = s.ReadHead()
		s.Reset()
	})
	r := newRig(t, []string{reset.Addr(), reset.Addr()})
	if m := r.roundTrip(marked); m.Status() != 502 || m.Get(retryName) != "no" {
		t.Errorf("after two resets: %q", m.Head())
	}
	r.want(502, message.ResetBeforeResponse, true)

	r = newRig(t, []string{weirtest.Dead(t), weirtest.Dead(t)})
	if m := r.roundTrip(marked); m.Status() != 502 || m.Has(retryName) {
		t.Errorf("when nobody was reached: %q", m.Head())
	}
	r.want(502, message.ConnectRefused, false)
}

// TestMarkedFailuresEjectNobody: a weir that tells of what failed behind it is
// itself at work. Of others the mark is not believed.
func TestMarkedFailuresEjectNobody(t *testing.T) {
	for _, weir := range []bool{true, false} {
		told := weirtest.Always(t, "HTTP/1.1 502 Bad Gateway\r\nX-Weir-Retry: no\r\nContent-Length: 0\r\n\r\n")
		r := newRig(t, []string{told.Addr()}, rigOptions{
			pool: func(c *pool.Config) {
				c.Passive = health.Passive{Enabled: true, Consecutive: 5, Eject: time.Minute, MaxEject: time.Minute, MaxEjected: 1}
			},
			edit: func(r *rig) { r.rt.Weir = weir },
		})
		for range 8 {
			if m := r.roundTrip(get); weir && m.Status() != 502 {
				t.Errorf("answer %+v", m)
			}
		}
		ejected := func() bool { return r.pool.Snapshot().Ejected > 0 }
		if !weir {
			eventually(t, "an ejection", ejected)
		} else if ejected() {
			t.Error("it was ejected")
		}
	}
}

// TestMarksCostNothing: a request to a pool of weirs allocates no more than
// another one.
func TestMarksCostNothing(t *testing.T) {
	e := &exchange{rt: &Route{Weir: true}, req: &message.Request{}, ci: &ClientInfo{}}
	e.req.Fields.Grow(64, 4096)
	e.rec.Attempts = 1
	if n := testing.AllocsPerRun(20, e.attemptMark); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
