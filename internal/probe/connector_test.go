// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/health"
)

// mute returns an address on which connection attempts hang: its backlog is
// full, so that further SYNs are dropped. After release nobody listens there.
func mute(t testing.TB) (address string, release func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	closeOnce := sync.OnceFunc(func() { _ = unix.Close(fd) })
	t.Cleanup(closeOnce)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address = fmt.Sprintf("127.0.0.1:%d", own.(*unix.SockaddrInet4).Port)
	for i := 0; ; i++ {
		c, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			break
		}
		t.Cleanup(func() { c.Close() })
		if i == 10 {
			t.Fatal("the backlog has no end")
		}
	}
	return address, closeOnce
}

// both runs a test over the connector and over net.Dialer.
func both(t *testing.T, f func(t *testing.T, create func(Options) *Prober)) {
	for _, dialAll := range []bool{false, true} {
		t.Run(fmt.Sprintf("dialer=%v", dialAll), func(t *testing.T) {
			f(t, func(opt Options) *Prober {
				p := newProber(t, opt)
				p.dialAll = dialAll
				return p
			})
		})
	}
}

// TestConnectorSaysWhatTheDialerSays: the two ways are each other's oracle.
func TestConnectorSaysWhatTheDialerSays(t *testing.T) {
	six, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer six.Close()
	_, port, _ := net.SplitHostPort(scripted(t, silent))
	hung, _ := mute(t)
	reset := scripted(t, func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) })
	fast, slow := newProber(t, Options{}), newProber(t, Options{})
	slow.dialAll = true
	for _, c := range []struct {
		address string
		want    health.ProbeOutcome
		cause   health.ProbeCause
		either  bool // of pass and reset: a race in the kernel
	}{
		{address: "127.0.0.1:" + port},
		{address: "0.0.0.0:" + port},
		{address: "[::ffff:127.0.0.1]:" + port},
		{address: six.Addr().String()},
		{address: refusedAddress(t), want: health.NoAnswer, cause: health.CauseRefused},
		{address: "[::1]:1", want: health.NoAnswer, cause: health.CauseRefused},
		{address: "127.0.0.1:0", want: health.NoAnswer, cause: health.CauseRefused},
		{address: hung, want: health.NoAnswer, cause: health.CauseTimeout},
		{address: "255.255.255.255:80", want: health.NoAnswer, cause: health.CauseNoRoute},
		{address: reset, either: true},
	} {
		var got [2]health.ProbeResult
		for i, p := range []*Prober{fast, slow} {
			got[i] = one(t, p, Target{Address: c.address, OnTrafficPort: true}, short)
		}
		f, s := got[0], got[1]
		if c.either && (f.Outcome == health.Pass || f.Cause == health.CauseReset) {
			continue
		}
		if f.Sent > f.At {
			t.Errorf("%s: known before it was sent: %+v", c.address, f)
		}
		f.Sent, f.At, s.Sent, s.At = 0, 0, 0, 0
		if f != s {
			t.Errorf("%s: connector %+v, dialer %+v", c.address, f, s)
		}
		if c.address != "255.255.255.255:80" && (f.Outcome != c.want || f.Cause != c.cause || !f.OnTrafficPort) {
			t.Errorf("%s: %+v, want %v, %v", c.address, f, c.want, c.cause)
		}
	}
	if fast.conn == nil || slow.conn != nil {
		t.Error("the two were not two")
	}
}

// TestParsedAddress: Addr saves the parsing and decides.
func TestParsedAddress(t *testing.T) {
	address := scripted(t, silent)
	p := newProber(t, Options{})
	if r := one(t, p, Target{Address: "name.invalid:80", Addr: netip.MustParseAddrPort(address)}, long); r.Outcome != health.Pass {
		t.Errorf("%+v", r)
	}
}

// TestTimeoutsAmongOthers: attempts that hang end at their own times while
// others come and go.
func TestTimeoutsAmongOthers(t *testing.T) {
	both(t, func(t *testing.T, create func(Options) *Prober) {
		hung, _ := mute(t)
		well := scripted(t, silent)
		p := create(Options{})
		var wg sync.WaitGroup
		for i := range 20 {
			timeout := time.Duration(i+1) * 20 * time.Millisecond
			wg.Add(1)
			begin := time.Now()
			p.Probe(Target{Address: hung}, timeout, func(r health.ProbeResult) {
				defer wg.Done()
				if took := time.Since(begin); r.Cause != health.CauseTimeout || r.Retry || took < timeout || took > timeout+5*time.Second {
					t.Errorf("timeout %v: after %v %+v", timeout, took, r)
				}
				if want := fmt.Sprintf("timeout: no connection to %s within %v", hung, timeout); r.Error != want {
					t.Errorf("%q, want %q", r.Error, want)
				}
			})
		}
		for range 200 {
			if r := one(t, p, Target{Address: well}, long); r.Outcome != health.Pass {
				t.Fatalf("%+v", r)
			}
		}
		wg.Wait()
	})
}

// TestLateAnswers: what has not answered at the first look is waited for by
// epoll: the SYN that was dropped is sent again after a second, and is refused.
func TestLateAnswers(t *testing.T) {
	hung, release := mute(t)
	p := newProber(t, Options{})
	const n = 8
	results := make(chan health.ProbeResult, n)
	for range n {
		p.Probe(Target{Address: hung}, long, func(r health.ProbeResult) { results <- r })
	}
	// Other work meanwhile rouses the connector again and again.
	well := scripted(t, silent)
	for range 50 {
		one(t, p, Target{Address: well}, long)
	}
	release() // nobody listens any more: the next SYN is refused
	for range n {
		if r := <-results; r.Cause != health.CauseRefused {
			t.Errorf("%+v", r)
		}
	}
}

// TestLimitAndTurnsOfConnections: attempts that hang count toward the limit,
// what waits takes turns by pool, and both kinds of probes share the room.
func TestLimitAndTurnsOfConnections(t *testing.T) {
	both(t, func(t *testing.T, create func(Options) *Prober) {
		hung, _ := mute(t)
		var open atomic.Int64
		web := scripted(t, answers("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"))
		well := scripted(t, silent)
		p := create(Options{MaxAtOnce: 1})
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		ask := func(pool, address string, http *HTTP, timeout time.Duration) {
			wg.Add(1)
			p.Probe(Target{Pool: pool, Address: address, HTTP: http}, timeout, func(r health.ProbeResult) {
				mu.Lock()
				order = append(order, pool)
				mu.Unlock()
				if n := open.Add(1); n > 1 {
					t.Errorf("%d at once", n)
				}
				if r.Retry {
					t.Errorf("%+v", r)
				}
				open.Add(-1)
				wg.Done()
			})
		}
		ask("large", hung, nil, short)
		for range 3 {
			ask("large", well, nil, long)
		}
		ask("large", web, get(), long)
		ask("small", web, get(), long)
		ask("small", well, nil, long)
		ask("other", well, nil, long)
		wg.Wait()
		if got, want := strings.Join(order, " "), "large large small other large small large large"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
	})
}

// TestCloseAmidConnections: every done is called once, with Retry, and nothing
// is left behind.
func TestCloseAmidConnections(t *testing.T) {
	both(t, func(t *testing.T, create func(Options) *Prober) {
		hung, _ := mute(t)
		before := descriptors(t)
		p := create(Options{MaxAtOnce: 16})
		calls := [40]atomic.Int64{}
		for i := range calls {
			p.Probe(Target{Pool: fmt.Sprint(i % 3), Address: hung}, long, func(r health.ProbeResult) {
				calls[i].Add(1)
				if !r.Retry || r.Outcome != health.NoAnswer {
					t.Errorf("%+v", r)
				}
			})
		}
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(p.Close) // twice at the same time
		p.Close()
		wg.Wait()
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("Close took %v", took)
		}
		for i := range calls {
			if n := calls[i].Load(); n != 1 {
				t.Errorf("done of probe %d was called %d times", i, n)
			}
		}
		if after := descriptors(t); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

// TestRacingConnections asks, from several goroutines and from within done,
// until Close cuts in.
func TestRacingConnections(t *testing.T) {
	well, gone := scripted(t, silent), refusedAddress(t)
	web := scripted(t, answers("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"))
	p := New(Options{MaxAtOnce: 8})
	var asked, told atomic.Int64
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				target := Target{Pool: fmt.Sprint(g), Address: []string{well, gone, web}[i%3]}
				if i%3 == 2 {
					target.HTTP = get()
				}
				asked.Add(1)
				p.Probe(target, long, func(r health.ProbeResult) {
					told.Add(1)
					if !r.Retry && (r.Outcome == health.Pass) == (i%3 == 1) {
						t.Errorf("%s: %+v", target.Address, r)
					}
					if i%10 == 0 {
						asked.Add(1)
						p.Probe(Target{Address: well}, long, func(health.ProbeResult) { told.Add(1) })
					}
				})
				if g == 0 && i == 150 {
					wg.Go(p.Close)
				}
			}
		})
	}
	wg.Wait()
	for deadline := time.Now().Add(10 * time.Second); asked.Load() != told.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("asked %d, told %d", asked.Load(), told.Load())
		}
	}
}

// TestResetOnClose: a probe's connection ends by a reset, so that no socket is
// left in TIME_WAIT.
func TestResetOnClose(t *testing.T) {
	both(t, func(t *testing.T, create func(Options) *Prober) {
		ends := make(chan error, 1)
		address := scripted(t, func(c net.Conn) {
			_, err := c.Read([]byte{0})
			ends <- err
		})
		p := create(Options{})
		if r := one(t, p, Target{Address: address}, long); r.Outcome != health.Pass {
			t.Fatalf("%+v", r)
		}
		if err := <-ends; err == nil || !strings.Contains(err.Error(), syscall.ECONNRESET.Error()) {
			t.Errorf("the backend saw %v, want a reset", err)
		}
	})
}

// TestNoDescriptors: without descriptors the probe is weir's own fault.
func TestNoDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	address := scripted(t, silent)
	both(t, func(t *testing.T, create func(Options) *Prober) {
		p := create(Options{})
		one(t, p, Target{Address: address}, long)
		low := was
		low.Cur = 3
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
			t.Fatal(err)
		}
		r := one(t, p, Target{Address: address}, long)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		if !r.Retry || !strings.Contains(r.Error, "too many open files") {
			t.Errorf("%+v", r)
		}
	})
}

// TestConnectionToItself: a socket that met its own SYN is no backend.
func TestConnectionToItself(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, own); err != nil {
		t.Fatal(err)
	}
	port := uint16(own.(*unix.SockaddrInet4).Port)
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	if !toItself(fd, to) {
		t.Error("not recognised")
	}
	if toItself(fd, netip.AddrPortFrom(to.Addr(), port+1)) {
		t.Error("another port is another end")
	}
	if r := localPorts(); !r.has(port) {
		t.Errorf("the kernel chose %d, outside %v", port, r)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestConnectorBlamesNobodyWhenStarved: a process that had no processor time for
// longer than a probe may take finds the connection made and its time over.
func TestConnectorBlamesNobodyWhenStarved(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hung, _ := mute(t)
	p := newProber(t, Options{})
	for address, want := range map[string]health.ProbeOutcome{l.Addr().String(): health.Pass, hung: health.NoAnswer} {
		got := health.Overloaded
		c := &connector{p: p, ports: localPorts()}
		c.start(&job{timeout: time.Hour, to: netip.MustParseAddrPort(address), done: func(r health.ProbeResult) { got = r.Outcome }})
		look := []unix.PollFd{{Fd: int32(c.slots[0].fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(look, 0); want == health.Pass && (n != 1 || err != nil) {
			t.Fatalf("a listener on loopback has not answered: %v", err)
		}
		c.slots[0].start = time.Now().Add(-2 * time.Hour)
		c.expire()
		c.closeSpent()
		if got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}
