// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/weirlb/weir/internal/clock"
)

type contextLike = context.Context

// TestResolverTimes drives the resolver in virtual time: an answer is asked for
// again when its time is over, not before, never waited for while there is a
// good one, and kept while the servers fail.
func TestResolverTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		var fail atomic.Bool
		var last atomic.Int32
		last.Store(1)
		ttl := atomic.Int64{}
		ttl.Store(int64(30 * time.Second))
		r := newResolver(func(context.Context, string) ([]netip.Addr, time.Duration, error) {
			asked.Add(1)
			time.Sleep(100 * time.Millisecond) // the servers' delay
			if fail.Load() {
				return nil, -1, &net.DNSError{Err: "server misbehaving", IsTemporary: true}
			}
			return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(last.Load())})}, time.Duration(ttl.Load()), nil
		})
		defer r.Close()
		look := func(want byte, wait time.Duration, questions int32) {
			t.Helper()
			start := time.Now()
			got, err := r.lookup("app.test", 0, nil)
			if err != nil || len(got) != 1 || got[0] != netip.AddrFrom4([4]byte{10, 0, 0, want}) || time.Since(start) != wait {
				t.Errorf("got %v, %v after %v, want .%d after %v", got, err, time.Since(start), want, wait)
			}
			time.Sleep(150 * time.Millisecond)
			if asked.Load() != questions {
				t.Errorf("%d questions, want %d", asked.Load(), questions)
			}
		}
		look(1, 100*time.Millisecond, 1)
		look(1, 0, 1)
		last.Store(2)
		time.Sleep(29 * time.Second)
		look(1, 0, 1)
		time.Sleep(time.Second)
		look(1, 0, 2) // old: given once more while it is renewed
		look(2, 0, 2)
		fail.Store(true)
		time.Sleep(31 * time.Second)
		look(2, 0, 3)
		look(2, 0, 3) // not asked again at once
		time.Sleep(time.Second)
		look(2, 0, 4)
		fail.Store(false)
		for _, k := range []struct{ ttl, held time.Duration }{
			{0, ttlFloor}, {time.Hour, ttlCap}, {-1, ttlUnknown}, {7 * time.Second, 7 * time.Second},
		} {
			ttl.Store(int64(k.ttl))
			time.Sleep(2 * ttlCap)
			n := asked.Load()
			look(2, 0, n+1)
			time.Sleep(k.held - 300*time.Millisecond)
			look(2, 0, n+1)
			time.Sleep(250 * time.Millisecond)
			look(2, 0, n+2)
		}
	})
}

// TestResolverFailure: without any good answer callers wait for the one
// question that runs, and a failure is not asked about again at once.
func TestResolverFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		r := newResolver(func(context.Context, string) ([]netip.Addr, time.Duration, error) {
			asked.Add(1)
			time.Sleep(time.Second)
			if asked.Load() > 1 {
				return nil, time.Minute, nil // an empty answer
			}
			return nil, -1, &net.DNSError{Err: "no such host", IsNotFound: true}
		})
		defer r.Close()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				var d *net.DNSError
				if _, err := r.lookup("x", 0, nil); !errors.As(err, &d) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if _, err := r.lookup("x", 0, nil); err == nil || asked.Load() != 1 {
			t.Errorf("%v, %d questions", err, asked.Load())
		}
		time.Sleep(2 * time.Second)
		if _, err := r.lookup("x", 0, nil); err == nil || asked.Load() != 2 {
			t.Errorf("an empty answer: %v, %d questions", err, asked.Load())
		}
		start := clock.Now()
		time.Sleep(2 * time.Second)
		if _, err := r.lookup("x", clock.Now().Add(100*time.Millisecond), nil); !errors.Is(err, context.DeadlineExceeded) || clock.Now().Sub(start) != 2100*time.Millisecond {
			t.Errorf("deadline: %v after %v", err, clock.Now().Sub(start))
		}
		r.Close()
		if _, err := r.lookup("y", 0, nil); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// dnsServer answers from a zone: name to records in text form.
func dnsServer(t *testing.T, truncate bool, zone map[string][]string) string {
	t.Helper()
	handle := func(udp bool) dns.HandlerFunc {
		return func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg)
			m.SetReply(q)
			found := false
			for name := q.Question[0].Name; ; {
				records, ok := zone[name]
				found = found || ok
				next := ""
				for _, text := range records {
					rr, err := dns.NewRR(text)
					if err != nil {
						t.Error(err)
						continue
					}
					if c, ok := rr.(*dns.CNAME); ok {
						next = c.Target
					} else if rr.Header().Rrtype != q.Question[0].Qtype {
						continue
					}
					m.Answer = append(m.Answer, rr)
				}
				if name = next; name == "" {
					break
				}
			}
			if !found {
				m.Rcode = dns.RcodeNameError
			}
			if udp && truncate {
				m.Answer, m.Truncated = nil, true
			}
			if err := w.WriteMsg(m); err != nil {
				t.Error(err)
			}
		}
	}
	pc, ln := samePort(t)
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: handle(true)}, {Listener: ln, Handler: handle(false)}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		done := make(chan struct{})
		go func() { defer close(done); _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown(); <-done })
	}
	return pc.LocalAddr().String()
}

// samePort listens on one port for datagrams and streams.
func samePort(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 50 { // the other kind's port may be taken
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if pc, err := net.ListenPacket("udp", ln.Addr().String()); err == nil {
			return pc, ln
		}
		_ = ln.Close()
	}
	t.Fatal("no port is free for both")
	return nil, nil
}

// TestOverheard asks a real server through the standard library's resolver and
// expects the lowest time to live of aliases and addresses, over UDP and TCP.
func TestOverheard(t *testing.T) {
	zone := map[string][]string{
		"app.test.":   {"app.test. 60 IN A 10.0.0.1", "app.test. 40 IN A 10.0.0.2", "app.test. 90 IN AAAA 2001:db8::1"},
		"alias.test.": {"alias.test. 7 IN CNAME app.test."},
		"long.test.":  {"long.test. 300 IN CNAME app.test."},
	}
	for _, truncate := range []bool{false, true} {
		ask := askSystem(dnsServer(t, truncate, zone))
		for name, want := range map[string]time.Duration{"app.test.": 40 * time.Second, "alias.test.": 7 * time.Second, "long.test.": 40 * time.Second} {
			addrs, ttl, err := ask(t.Context(), name)
			if err != nil || len(addrs) != 3 || ttl != want {
				t.Errorf("%s, truncated %v: %v for %v, %v", name, truncate, addrs, ttl, err)
			}
		}
		var d *net.DNSError
		if _, _, err := ask(t.Context(), "none.test."); !errors.As(err, &d) || !d.IsNotFound {
			t.Errorf("none.test: %v", err)
		}
	}
	addrs, ttl, err := askSystem("")(t.Context(), "localhost")
	if err != nil || len(addrs) == 0 || ttl != -1 {
		t.Errorf("localhost from the hosts file: %v for %v, %v", addrs, ttl, err)
	}
}

// TestMoved: when a name comes to stand for another address, connections to the
// old one are not kept or handed out any more.
func TestMoved(t *testing.T) {
	b := always(t)
	_, port, _ := net.SplitHostPort(b.Addr())
	var moved atomic.Bool
	r := newResolver(func(context.Context, string) ([]netip.Addr, time.Duration, error) {
		if moved.Load() {
			return []netip.Addr{netip.MustParseAddr("127.0.0.9")}, time.Hour, nil
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, 0, nil
	})
	defer r.Close()
	opt := options("app.test:" + port)
	opt.Resolver = r
	target := newTarget(t, opt)
	busy, idle := mustDial(t, target), mustDial(t, target)
	use(t, target, idle, clock.Now())
	if s := target.Stats(); s.Idle != 1 {
		t.Fatalf("%+v", s)
	}
	moved.Store(true)
	eventually(t, "the new answer", func() bool {
		// Using connections is what finds that the answer is old.
		if c := target.Get(clock.Now(), false); c != nil {
			use(t, target, c, clock.Now())
			return false
		}
		return true
	})
	use(t, target, busy, clock.Now())
	if s := target.Stats(); s.Open != 0 || s.Addresses[0].String() != "127.0.0.9" {
		t.Errorf("%+v", s)
	}
}

func FuzzLowestTTL(f *testing.F) {
	m := new(dns.Msg)
	m.SetQuestion("app.test.", dns.TypeA)
	m.Response = true
	for _, text := range []string{"app.test. 60 IN CNAME b.test.", "b.test. 40 IN A 10.0.0.2", "b.test. 30 IN TXT x"} {
		rr, err := dns.NewRR(text)
		if err != nil {
			f.Fatal(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	seed, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{})
	if p, err := hex.DecodeString(strings.Repeat("ff", 12)); err == nil {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		ttl, ok := lowestTTL(p)
		if !ok {
			return
		}
		if ttl < 0 {
			t.Errorf("negative: %v", ttl)
		}
		// A second parser must see an address in whatever is believed.
		var m dns.Msg
		if m.Unpack(p) != nil {
			return
		}
		for _, rr := range m.Answer {
			if k := rr.Header().Rrtype; k == dns.TypeA || k == dns.TypeAAAA {
				return
			}
		}
		t.Errorf("%v from an answer without addresses: %v", ttl, m.Answer)
	})
}

// TestLookup: probes share what traffic has learned, and their context bounds
// the wait.
func TestLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		answer := netip.MustParseAddr("10.0.0.1")
		r := newResolver(func(ctx context.Context, host string) ([]netip.Addr, time.Duration, error) {
			asked.Add(1)
			if host == "hangs.test" {
				<-ctx.Done()
				return nil, -1, ctx.Err()
			}
			return []netip.Addr{answer}, time.Minute, nil
		})
		defer r.Close()
		if _, err := r.lookup("app.test", 0, nil); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got, err := r.Lookup(t.Context(), "app.test"); err != nil || len(got) != 1 || got[0] != answer {
				t.Errorf("%v, %v", got, err)
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%d questions, want 1", n)
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := r.Lookup(ctx, "hangs.test"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if got, err := r.Lookup(ctx, "app.test"); err != nil || len(got) != 1 {
			t.Errorf("what is known needs no wait: %v, %v", got, err)
		}
	})
}
