// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// short is the timeout of probes that are meant to hit it; long that of those
// that are not.
const (
	short = 150 * time.Millisecond
	long  = 20 * time.Second
)

// scripted serves each connection with f and returns its address.
func scripted(t testing.TB, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// readHead reads a request's head.
func readHead(c net.Conn) string {
	var b strings.Builder
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		b.WriteString(line)
		if err != nil || line == "\r\n" {
			return b.String()
		}
	}
}

// answers reads a request and writes text.
func answers(text string) func(net.Conn) {
	return func(c net.Conn) {
		readHead(c)
		io.WriteString(c, text)
	}
}

func silent(c net.Conn) { io.Copy(io.Discard, c) }

func refusedAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func one(t testing.TB, p *Prober, target Target, timeout time.Duration) health.ProbeResult {
	t.Helper()
	got := make(chan health.ProbeResult, 2)
	p.Probe(target, timeout, func(r health.ProbeResult) { got <- r })
	select {
	case r := <-got:
		return r
	case <-time.After(timeout + 10*time.Second):
		t.Fatal("no result")
		panic("unreachable")
	}
}

func newProber(t testing.TB, opt Options) *Prober {
	t.Helper()
	p := New(opt)
	t.Cleanup(p.Close)
	return p
}

func get() *HTTP { return &HTTP{Path: "/readyz", Host: "app.example"} }

func TestAnswers(t *testing.T) {
	tlsServer := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	tlsServer.Config.ErrorLog = discard()
	tlsServer.StartTLS()
	t.Cleanup(tlsServer.Close)
	roots := x509.NewCertPool()
	roots.AddCert(tlsServer.Certificate())
	verified := func(name string) *tls.Config { return &tls.Config{RootCAs: roots, ServerName: name} }
	secure := tlsServer.Listener.Addr().String()

	const head = "HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n"
	reset := func(c net.Conn) { readHead(c); c.(*net.TCPConn).SetLinger(0) }
	for _, c := range []struct {
		name    string
		target  Target
		timeout time.Duration // 0: long
		outcome health.ProbeOutcome
		cause   health.ProbeCause
		status  int
		text    string // contained in Error
	}{
		{name: "tcp", target: Target{Address: scripted(t, silent)}},
		{name: "tcp refused", target: Target{Address: refusedAddress(t)}, outcome: health.NoAnswer, cause: health.CauseRefused, text: "refused: nothing listens on 127.0.0.1:"},
		{name: "http refused", target: Target{Address: refusedAddress(t), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseRefused},
		{name: "200", target: Target{Address: scripted(t, answers(fmt.Sprintf(head, "200 OK"))), HTTP: get()}, status: 200},
		{name: "no reason phrase", target: Target{Address: scripted(t, answers(fmt.Sprintf(head, "204 "))), HTTP: get()}, status: 204},
		{name: "HTTP/1.0", target: Target{Address: scripted(t, answers("HTTP/1.0 200 OK\r\n\r\nhello")), HTTP: get()}, status: 200},
		{name: "long content", target: Target{Address: scripted(t, answers(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", 1<<20, strings.Repeat("x", 1<<20)))), HTTP: get()}, status: 200},
		{name: "content that does not come", target: Target{Address: scripted(t, func(c net.Conn) {
			answers("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")(c)
			silent(c)
		}), HTTP: get()}, status: 200},
		{name: "early hints", target: Target{Address: scripted(t, answers("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")), HTTP: get()}, status: 200},
		{name: "503", target: Target{Address: scripted(t, answers("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n\r\n")), HTTP: get()}, outcome: health.NotReady, cause: health.CauseStatus, status: 503, text: "status: 503, expected 200-299"},
		{name: "redirect", target: Target{Address: scripted(t, answers("HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n")), HTTP: get()}, outcome: health.NotReady, cause: health.CauseStatus, status: 302},
		{name: "404 expected", target: Target{Address: scripted(t, answers(fmt.Sprintf(head, "404 Not Found"))), HTTP: &HTTP{Path: "/", Host: "x", Expect: []Range{{200, 299}, {404, 404}}}}, status: 404},
		{name: "200 unexpected", target: Target{Address: scripted(t, answers(fmt.Sprintf(head, "200 OK"))), HTTP: &HTTP{Path: "/", Host: "x", Expect: []Range{{204, 204}, {300, 301}}}}, outcome: health.NotReady, cause: health.CauseStatus, status: 200, text: "expected 204, 300-301"},
		{name: "garbage", target: Target{Address: scripted(t, answers("SSH-2.0-OpenSSH_9.6\r\n")), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseMalformed, text: "malformed: "},
		{name: "binary garbage", target: Target{Address: scripted(t, answers("\x15\x03\x01\x00\x02\x02\x46\n")), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseMalformed},
		{name: "lengths that differ", target: Target{Address: scripted(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n")), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseMalformed},
		{name: "endless head", target: Target{Address: scripted(t, func(c net.Conn) {
			answers("HTTP/1.1 200 OK\r\n")(c)
			for {
				if _, err := io.WriteString(c, "X: "+strings.Repeat("y", 1000)+"\r\n"); err != nil {
					return
				}
			}
		}), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseMalformed},
		{name: "endless line", target: Target{Address: scripted(t, func(c net.Conn) {
			answers("HTTP/1.1 200 ")(c)
			for {
				if _, err := io.WriteString(c, strings.Repeat("y", 1000)); err != nil {
					return
				}
			}
		}), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseMalformed},
		{name: "endless interim answers", target: Target{Address: scripted(t, answers(strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100))), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseMalformed, text: "102"},
		{name: "protocol switched unasked", target: Target{Address: scripted(t, answers("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseMalformed},
		{name: "silent", target: Target{Address: scripted(t, silent), HTTP: get()}, timeout: short, outcome: health.NoAnswer, cause: health.CauseTimeout, text: "timeout: no answer within 150ms"},
		{name: "half a head", target: Target{Address: scripted(t, func(c net.Conn) { answers("HTTP/1.1 200 OK\r\nA: b\r\n")(c); silent(c) }), HTTP: get()}, timeout: short, outcome: health.NoAnswer, cause: health.CauseTimeout, text: "incomplete within 150ms"},
		{name: "slow trickle", target: Target{Address: scripted(t, func(c net.Conn) {
			readHead(c)
			for _, b := range []byte("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 10000)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}), HTTP: get()}, timeout: short, outcome: health.NoAnswer, cause: health.CauseTimeout},
		{name: "closed unanswered", target: Target{Address: scripted(t, func(c net.Conn) { readHead(c) }), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseReset, text: "reset: no answer: connection closed"},
		{name: "reset unanswered", target: Target{Address: scripted(t, reset), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseReset, text: "reset: no answer: connection reset"},
		{name: "closed within the head", target: Target{Address: scripted(t, answers("HTTP/1.1 200 OK\r\nA")), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseReset, text: "incomplete"},
		{name: "tls", target: Target{Address: secure, TLS: verified("example.com"), HTTP: get()}, status: 200},
		{name: "tls alone", target: Target{Address: secure, TLS: verified("example.com")}},
		{name: "tls wrong name", target: Target{Address: secure, TLS: verified("other.test"), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseTLS, text: "other.test"},
		{name: "tls unknown authority", target: Target{Address: secure, TLS: &tls.Config{ServerName: "example.com", RootCAs: x509.NewCertPool()}, HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseTLS, text: "unknown authority"},
		{name: "tls to a plain server", target: Target{Address: scripted(t, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }), TLS: verified("example.com"), HTTP: get()}, outcome: health.NoAnswer, cause: health.CauseTLS},
		{name: "tls silent", target: Target{Address: scripted(t, silent), TLS: verified("example.com")}, timeout: short, outcome: health.NoAnswer, cause: health.CauseTimeout, text: "TLS handshake"},
		{name: "tls closed", target: Target{Address: scripted(t, func(c net.Conn) { c.Read(make([]byte, 1000)) }), TLS: verified("example.com")}, outcome: health.NoAnswer, cause: health.CauseReset, text: "during the TLS handshake"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newProber(t, Options{})
			if c.timeout == 0 {
				c.timeout = long
			}
			c.target.OnTrafficPort = true
			start := time.Now()
			r := one(t, p, c.target, c.timeout)
			if r.Outcome != c.outcome || r.Cause != c.cause || r.Status != c.status || !strings.Contains(r.Error, c.text) || r.Retry || !r.OnTrafficPort {
				t.Errorf("got %+v; want %v, %v, status %d, error with %q", r, c.outcome, c.cause, c.status, c.text)
			}
			if (r.Outcome == health.Pass) != (r.Error == "") {
				t.Errorf("%v with error %q", r.Outcome, r.Error)
			}
			if r.Error != "" && !strings.HasPrefix(r.Error, r.Cause.String()+": ") {
				t.Errorf("error %q does not begin with its cause %v", r.Error, r.Cause)
			}
			if r.At.Before(r.Sent) {
				t.Errorf("known at %d before it was sent at %d", r.At, r.Sent)
			}
			if c.timeout == short && time.Since(start) > short+5*time.Second {
				t.Errorf("took %v with a timeout of %v", time.Since(start), short)
			}
		})
	}
}

func TestRequestBytes(t *testing.T) {
	heads := make(chan string, 1)
	address := scripted(t, func(c net.Conn) {
		heads <- readHead(c)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
	})
	p := newProber(t, Options{Version: "1.2.3"})
	for _, c := range []struct {
		ask  HTTP
		want string
	}{
		{HTTP{Path: "/readyz?full=1", Host: "app.example:8080"}, "GET /readyz?full=1 HTTP/1.1\r\nHost: app.example:8080\r\nUser-Agent: weir-probe/1.2.3\r\nAccept: */*\r\nConnection: close\r\n\r\n"},
		{HTTP{Method: "HEAD", Path: "/", Host: "h"}, "HEAD / HTTP/1.1\r\nHost: h\r\nUser-Agent: weir-probe/1.2.3\r\nAccept: */*\r\nConnection: close\r\n\r\n"},
	} {
		if r := one(t, p, Target{Address: address, HTTP: &c.ask}, long); r.Outcome != health.Pass {
			t.Errorf("%+v", r)
		}
		if got := <-heads; got != c.want {
			t.Errorf("sent %q, want %q", got, c.want)
		}
	}
}

// TestNames: a backend given by name is tried at each of its addresses. That
// there is no such name is an answer; that the servers fail says nothing about
// the backend.
func TestNames(t *testing.T) {
	_, port, err := net.SplitHostPort(scripted(t, silent))
	if err != nil {
		t.Fatal(err)
	}
	ips := func(all ...string) func(context.Context, string) ([]netip.Addr, error) {
		return func(context.Context, string) (out []netip.Addr, _ error) {
			for _, s := range all {
				out = append(out, netip.MustParseAddr(s))
			}
			return out, nil
		}
	}
	fails := func(err error) func(context.Context, string) ([]netip.Addr, error) {
		return func(context.Context, string) ([]netip.Addr, error) { return nil, fmt.Errorf("resolve: %w", err) }
	}
	for _, c := range []struct {
		name    string
		resolve func(context.Context, string) ([]netip.Addr, error)
		outcome health.ProbeOutcome
		retry   bool
	}{
		{"second address", ips("127.0.0.77", "127.0.0.1"), health.Pass, false},
		{"no address listens", ips("127.0.0.77", "127.0.0.78"), health.NoAnswer, false},
		{"no address", ips(), health.NoAnswer, false},
		{"no such name", fails(&net.DNSError{Err: "no such host", Name: "app.internal", IsNotFound: true}), health.NoAnswer, false},
		{"servers fail", fails(&net.DNSError{Err: "server misbehaving", Name: "app.internal", IsTemporary: true}), health.NoAnswer, true},
		{"fails", fails(errors.New("broken")), health.NoAnswer, true},
		{"hangs", func(ctx context.Context, _ string) ([]netip.Addr, error) { <-ctx.Done(); return nil, ctx.Err() }, health.NoAnswer, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProber(t, Options{Resolve: c.resolve})
			timeout := long
			if c.name == "hangs" {
				timeout = short
			}
			r := one(t, p, Target{Address: net.JoinHostPort("app.internal", port)}, timeout)
			if r.Outcome != c.outcome || r.Retry != c.retry {
				t.Errorf("%+v", r)
			}
		})
	}
	p := newProber(t, Options{})
	for _, bad := range []string{"", "host", "host:http", "host:99999", ":"} {
		if r := one(t, p, Target{Address: bad}, short); !r.Retry || r.Error == "" {
			t.Errorf("address %q: %+v", bad, r)
		}
	}
}

func TestDialFailed(t *testing.T) {
	sys := func(e syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", e)}
	}
	for _, c := range []struct {
		err   error
		cause health.ProbeCause
		retry bool
	}{
		{sys(syscall.ECONNREFUSED), health.CauseRefused, false},
		{sys(syscall.EHOSTUNREACH), health.CauseNoRoute, false},
		{sys(syscall.ENETUNREACH), health.CauseNoRoute, false},
		{sys(syscall.ETIMEDOUT), health.CauseTimeout, false},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, health.CauseTimeout, false},
		{sys(syscall.ECONNRESET), health.CauseReset, false},
		{sys(syscall.EMFILE), health.CauseNone, true},
		{sys(syscall.EADDRNOTAVAIL), health.CauseNone, true},
		{sys(syscall.ENOBUFS), health.CauseNone, true},
		{sys(syscall.EPERM), health.CauseNone, true},
	} {
		v := dialFailed(c.err, netip.MustParseAddrPort("10.0.0.1:80"), time.Second)
		if v.cause != c.cause || v.retry != c.retry || v.outcome != health.NoAnswer || v.text == "" {
			t.Errorf("%v: %+v, want %v, retry %v", c.err, v, c.cause, c.retry)
		}
	}
	if got := oneLine("a\nb\x1b[31m\xff" + strings.Repeat("é", 400)); strings.ContainsAny(got, "\n\x1b") || len(got) > 310 {
		t.Errorf("oneLine: %q", got)
	}
}

// TestTurns: a large pool that waits does not starve a small one, and a probe's
// timeout runs from its own start, not from when it was asked for.
func TestTurns(t *testing.T) {
	release := make(chan struct{})
	held := scripted(t, func(c net.Conn) { <-release })
	p := newProber(t, Options{MaxAtOnce: 1})
	var mu sync.Mutex
	var order []string
	var wg sync.WaitGroup
	ask := func(pool string) {
		wg.Add(1)
		p.Probe(Target{Pool: pool, Address: held, HTTP: get()}, long, func(r health.ProbeResult) {
			mu.Lock()
			order = append(order, pool)
			mu.Unlock()
			if r.At.Sub(r.Sent) > 10*time.Second || r.Cause == health.CauseTimeout {
				t.Errorf("%s waited in its own time: %+v", pool, r)
			}
			wg.Done()
		})
	}
	for range 7 {
		ask("large")
	}
	ask("small")
	ask("small")
	ask("other")
	close(release)
	wg.Wait()
	want := "large large small other large small large large large large"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("order %s, want %s", got, want)
	}
}

// TestAtOnce: no more than the limit run at the same time.
func TestAtOnce(t *testing.T) {
	var running, most atomic.Int64
	release := make(chan struct{})
	held := scripted(t, func(c net.Conn) {
		n := running.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		running.Add(-1)
	})
	p := newProber(t, Options{MaxAtOnce: 4})
	var wg sync.WaitGroup
	for range 40 {
		wg.Add(1)
		p.Probe(Target{Address: held, HTTP: get()}, long, func(health.ProbeResult) { wg.Done() })
	}
	for end := time.Now().Add(10 * time.Second); running.Load() < 4; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the first four do not run")
		}
	}
	if n := most.Load(); n != 4 {
		t.Errorf("%d probes at once, want 4", n)
	}
	close(release)
	wg.Wait()
}

// TestClose: what runs is cut, what waits is answered, and each done is called
// once; none of it speaks against a backend.
func TestClose(t *testing.T) {
	hung := scripted(t, silent)
	for range 20 {
		closeOnce(t, hung)
	}
}

func closeOnce(t *testing.T, hung string) {
	t.Helper()
	p := New(Options{MaxAtOnce: 3})
	var calls [20]atomic.Int32
	for i := range calls {
		p.Probe(Target{Pool: fmt.Sprint(i % 3), Address: hung, HTTP: get()}, long, func(r health.ProbeResult) {
			calls[i].Add(1)
			if !r.Retry {
				t.Errorf("%+v", r)
			}
		})
	}
	start := time.Now()
	p.Close()
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
	for i := range calls {
		if n := calls[i].Load(); n != 1 {
			t.Errorf("done of probe %d was called %d times", i, n)
		}
	}
	late := make(chan health.ProbeResult)
	p.Probe(Target{Address: hung}, long, func(r health.ProbeResult) { late <- r })
	if r := <-late; !r.Retry {
		t.Errorf("after Close: %+v", r)
	}
	p.Close()
}

func TestObserved(t *testing.T) {
	var seen []string
	p := New(Options{Observe: func(outcome string, took time.Duration) { seen = append(seen, outcome) }})
	one(t, p, Target{Address: scripted(t, silent)}, long)
	one(t, p, Target{Address: refusedAddress(t)}, long)
	one(t, p, Target{Address: scripted(t, answers("HTTP/1.1 503 No\r\n\r\n")), HTTP: get()}, long)
	one(t, p, Target{Address: "bad"}, long)
	p.Close()
	if got := strings.Join(seen, " "); got != "pass no_answer not_ready" {
		t.Errorf("observed %q", got)
	}
}
