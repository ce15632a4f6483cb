// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

// kind returns the kind of a dial error; anything else ends the test.
func kind(t *testing.T, err error) DialErrorKind {
	t.Helper()
	var d *DialError
	if !errors.As(err, &d) {
		t.Fatalf("%v is no DialError", err)
	}
	return d.Kind
}

// deaf returns an address that answers no connection attempt: a listener whose
// queue is full.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port)
	for range 8 { // a queue of 0 holds one or two
		c, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the queue does not fill")
	return ""
}

// silent accepts connections and says nothing until the test ends.
func silent(t *testing.T) *weirtest.Backend {
	stop := make(chan struct{})
	b := weirtest.NewBackend(t, func(*weirtest.Conn) { <-stop })
	t.Cleanup(func() { close(stop) })
	return b
}

func TestDialErrors(t *testing.T) {
	opt := func(addr string) Options {
		o := options(addr)
		o.ConnectTimeout = 200 * time.Millisecond
		return o
	}
	secure := func(addr string, cfg *tls.Config) Options {
		o := opt(addr)
		o.TLS, o.TLSTimeout = cfg, 200*time.Millisecond
		return o
	}
	bound := opt(weirtest.Always(t, okAnswer).Addr())
	bound.Bind = []netip.Addr{netip.MustParseAddr("192.0.2.1")} // not this machine's
	family := bound
	family.Bind = []netip.Addr{netip.MustParseAddr("::1")}
	for name, c := range map[string]struct {
		opt  Options
		want DialErrorKind
	}{
		"refused":        {opt(weirtest.Dead(t)), Refused},
		"no answer":      {opt(deaf(t)), Timeout},
		"no such path":   {opt("unix:/nonexistent/sock"), Refused},
		"no such name":   {opt("does-not-exist.invalid:80"), DNS},
		"tls to plain":   {secure(weirtest.Always(t, okAnswer).Addr(), &tls.Config{}), TLS},
		"tls silence":    {secure(silent(t).Addr(), &tls.Config{}), TLS},
		"foreign source": {bound, LocalPorts},
		"source family":  {family, LocalPorts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.want == DNS {
				c.opt.ConnectTimeout = 0
				r := newResolver(askSystem(weirtest.Dead(t)))
				t.Cleanup(r.Close)
				c.opt.Resolver = r
			}
			target := newTarget(t, c.opt)
			_, err := target.Dial(clock.Now(), 0, nil)
			if got := kind(t, err); got != c.want {
				t.Errorf("%v: %v", got, err)
			}
			if s := target.Stats(); s.Open != 0 || s.Failed != 1 || s.Fresh != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestKinds: errors that are hard to bring about on loopback.
func TestKinds(t *testing.T) {
	for errno, want := range map[syscall.Errno]DialErrorKind{
		syscall.ECONNREFUSED: Refused, syscall.ECONNRESET: Refused,
		syscall.EHOSTUNREACH: Unreachable, syscall.ENETUNREACH: Unreachable, syscall.EHOSTDOWN: Unreachable, syscall.EACCES: Unreachable,
		syscall.ETIMEDOUT: Timeout, syscall.EADDRNOTAVAIL: LocalPorts,
		syscall.EMFILE: LocalFiles, syscall.ENFILE: LocalFiles, syscall.ENOMEM: LocalMemory, syscall.ENOBUFS: LocalMemory,
	} {
		err := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
		if got := kindOf(err); got != want {
			t.Errorf("%v: %v, want %v", errno, got, want)
		}
	}
	for k := Refused; k <= Canceled; k++ {
		if local := k == DNS || k == LocalPorts || k == LocalFiles || k == LocalMemory || k == Limit || k == DrainOver || k == Canceled; k.Local() != local {
			t.Errorf("%v: local %v", k, k.Local())
		}
	}
}

// TestDialEnds: the deadline and abort end a dial at every stage.
func TestDialEnds(t *testing.T) {
	asking := make(chan struct{})
	r := newResolver(func(ctx contextLike, _ string) ([]netip.Addr, time.Duration, error) {
		select {
		case <-asking:
		case <-ctx.Done():
		}
		return nil, -1, ctx.Err()
	})
	defer r.Close()
	tlsOpt := options(silent(t).Addr())
	tlsOpt.TLS = &tls.Config{}
	named := options("slow.test:80")
	named.Resolver = r
	for name, opt := range map[string]Options{"connect": options(deaf(t)), "handshake": tlsOpt, "name": named} {
		opt.ConnectTimeout, opt.TLSTimeout = time.Hour, time.Hour
		target := newTarget(t, opt)
		t.Run(name+" abort", func(t *testing.T) {
			abort := make(chan struct{})
			time.AfterFunc(30*time.Millisecond, func() { close(abort) })
			within(t, "dial", func() {
				if _, err := target.Dial(clock.Now(), 0, abort); kind(t, err) != Canceled {
					t.Error(err)
				}
			})
		})
		t.Run(name+" deadline", func(t *testing.T) {
			want := map[string]DialErrorKind{"connect": Timeout, "handshake": TLS, "name": DNS}[name]
			for _, abort := range []chan struct{}{nil, make(chan struct{})} {
				at := clock.Now().Add(50 * time.Millisecond)
				within(t, "dial", func() {
					if _, err := target.Dial(clock.Now(), at, abort); kind(t, err) != want || clock.Now() < at {
						t.Error(err)
					}
				})
			}
		})
	}
}

func TestBind(t *testing.T) {
	peers := make(chan string, 4)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			peers <- c.RemoteAddr().(*net.TCPAddr).IP.String()
			_ = c.Close()
		}
	}()
	opt := options(ln.Addr().String())
	opt.Bind = []netip.Addr{netip.MustParseAddr("127.0.0.7"), netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.8")}
	target := newTarget(t, opt)
	seen := map[string]int{}
	for range 6 {
		c := mustDial(t, target)
		raw, err := c.nc.TCP().SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) {
			late, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT)
			user, err2 := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			if late != 1 || user != 30_000 || err != nil || err2 != nil {
				t.Errorf("port chosen late: %d, user timeout %d ms, %v, %v", late, user, err, err2)
			}
		})
		seen[<-peers]++
		c.Close()
	}
	if seen["127.0.0.7"] == 0 || seen["127.0.0.8"] == 0 || len(seen) != 2 {
		t.Errorf("sources %v", seen)
	}
}

// TestReserve: near the limit of descriptors a dial gives its own back, unless
// somebody gives another one for it.
func TestReserve(t *testing.T) {
	opt := options(always(t).Addr())
	spare, asked := 0, 0
	opt.Relieve = func() bool {
		asked++
		spare--
		return spare >= 0
	}
	target := newTarget(t, opt)
	var was, low unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	low = was
	limit := func(n uint64) {
		low.Cur = n
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
			t.Fatal(err)
		}
	}
	probe, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	most := max(int(probe.Fd()), 2*netconn.Reserve+1) + 8
	limit(uint64(most))
	defer limit(was.Cur)
	var files []*os.File
	for last := probe; int(last.Fd()) < most-netconn.Reserve; files = append(files, last) {
		if last, err = os.Open("/dev/null"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := target.Dial(clock.Now(), 0, nil); kind(t, err) != LocalFiles || asked != 1 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	spare = 1
	mustDial(t, target).Close()
	limit(3) // now there is none at all
	spare = 0
	if _, err := target.Dial(clock.Now(), 0, nil); kind(t, err) != LocalFiles {
		t.Error(err)
	}
	limit(was.Cur) // whoever raises it is believed at once
	spare = 0
	mustDial(t, target).Close()
	for _, f := range append(files, probe) {
		_ = f.Close()
	}
	mustDial(t, target).Close()
}

// TestThin: of the kept connections half goes, those that were used longest ago.
func TestThin(t *testing.T) {
	target := newTarget(t, options(always(t).Addr()))
	if n := target.Thin(); n != 0 {
		t.Errorf("%d of none closed", n)
	}
	var kept []*Conn
	for range 3 {
		kept = append(kept, mustDial(t, target))
	}
	for _, c := range kept {
		use(t, target, c, clock.Now())
	}
	if n := target.Thin(); n != 2 || target.Stats().Idle != 1 || target.Get(clock.Now(), false) != kept[2] {
		t.Errorf("%d closed, %+v", n, target.Stats())
	}
	kept[2].Close()
}

func TestUnixBackend(t *testing.T) {
	path := t.TempDir() + "/s"
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err == nil {
			w := weirtest.Wrap(t, c)
			for w.Request() != nil {
				w.Send(okAnswer)
			}
			_ = c.Close()
		}
	}()
	target := newTarget(t, options("unix:"+path))
	use(t, target, mustDial(t, target), clock.Now())
	if c := target.Get(clock.Now(), true); c == nil {
		t.Error("not kept")
	} else {
		use(t, target, c, clock.Now())
	}
	target.Close()
}

// TestDialAddressesInTurn: addresses of one name are tried in turn within one
// timeout, and the one that worked comes first the next time.
func TestDialAddressesInTurn(t *testing.T) {
	b := always(t) // on 127.0.0.1; nothing listens on the others
	_, port, err := net.SplitHostPort(b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var addrs []netip.Addr
	for _, a := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.1", "127.0.0.4"} {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	r := newResolver(func(contextLike, string) ([]netip.Addr, time.Duration, error) { return addrs, time.Minute, nil })
	defer r.Close()
	opt := options("app.test:" + port)
	opt.Resolver = r
	target := newTarget(t, opt)
	c := mustDial(t, target)
	if c.RemoteAddr().String() != "127.0.0.1" {
		t.Errorf("connected to %v", c.RemoteAddr())
	}
	use(t, target, c, clock.Now())
	if got := target.goodFirst(addrs); got[0] != addrs[2] || got[1] != addrs[3] || got[2] != addrs[0] || len(got) != 4 {
		t.Errorf("next time: %v", got)
	}
	b.Close()
	target.CloseIdle()
	if _, err := target.Dial(clock.Now(), 0, nil); kind(t, err) != Refused {
		t.Error(err)
	}
	var none balance.Instant
	if s := target.Stats(); len(s.Addresses) != 4 || earlier(none, 5, 0) != 0 || earlier(7, 5, 1) != 6 || earlier(7, 5, 9) != 7 {
		t.Errorf("%+v", s)
	}
}
