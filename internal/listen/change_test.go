// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

// change puts other options into force.
func change(t *testing.T, l *Listener, opt Options) {
	t.Helper()
	commit, _, err := l.Change(opt)
	if err != nil {
		t.Fatal(err)
	}
	commit()
}

// named answers with a name and ends.
func named(name string) func(*netconn.Conn, Info) {
	return func(c *netconn.Conn, _ Info) {
		_, _ = io.WriteString(c, name)
		_ = c.Close()
	}
}

// knocker connects to an address as fast as it can, and counts what it gets.
type knocker struct {
	t       *testing.T
	network string
	addr    string
	stop    chan struct{}
	done    sync.WaitGroup
	served  atomic.Int64
}

func knock(t *testing.T, network, addr string, clients int) *knocker {
	k := &knocker{t: t, network: network, addr: addr, stop: make(chan struct{})}
	for range clients {
		k.done.Go(func() {
			for {
				select {
				case <-k.stop:
					return
				default:
				}
				c, err := net.Dial(k.network, k.addr)
				if err != nil {
					t.Errorf("refused: %v", err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(patience))
				got, err := io.ReadAll(c)
				if err != nil || len(got) == 0 {
					t.Errorf("lost: %q, %v", got, err)
				}
				_ = c.Close()
				k.served.Add(1)
			}
		})
	}
	return k
}

func (k *knocker) end() {
	close(k.stop)
	k.done.Wait()
}

// more returns when a number of clients has been served since.
func (k *knocker) more(n int64) {
	k.t.Helper()
	to := k.served.Load() + n
	eventually(k.t, "clients served", func() bool { return k.served.Load() >= to || k.t.Failed() })
}

// TestBindsChange: while clients connect without a pause, a bind becomes wider,
// narrower, is written otherwise, and gets and loses others: none is refused,
// none is lost.
func TestBindsChange(t *testing.T) {
	port := weirtest.FreePort(t)
	sock := "unix:" + filepath.Join(t.TempDir(), "s")
	base := "127.0.0.1:" + port
	l := start(t, Options{Bind: []string{base}}, named("x"))
	k := knock(t, "tcp", base, 2)
	defer k.end()
	for _, binds := range [][]string{
		{base, "127.0.0.2:" + port}, {"127.0.0.2:" + port, base}, {base}, {base, sock}, {base}, {base, sock},
		{"localhost:" + port}, {base}, {":" + port}, {base}, {"0.0.0.0:" + port}, {":" + port}, {base},
	} {
		k.more(20)
		change(t, l, Options{Bind: binds})
		if got := len(l.Addrs()); got != len(binds) {
			t.Errorf("%v: %d sockets", binds, got)
		}
		for _, a := range l.Addrs() {
			c, err := net.Dial(a.Network(), a.String())
			if err != nil {
				t.Errorf("%v: %v", binds, err)
				continue
			}
			if got, err := io.ReadAll(c); err != nil || string(got) != "x" {
				t.Errorf("%v: %v: %q, %v", binds, a, got, err)
			}
			_ = c.Close()
		}
	}
	k.more(20)
	if n := len(l.left); n > 2 {
		t.Errorf("%d sockets that were given up are remembered", n)
	}
}

// TestMoves: a socket goes from one listener to another, the first of which
// stops, to the net package, and back.
func TestMoves(t *testing.T) {
	for _, bind := range []string{"127.0.0.1:" + weirtest.FreePort(t), "unix:" + filepath.Join(t.TempDir(), "s")} {
		s := NewSockets()
		a := start(t, Options{Bind: []string{bind}, Sockets: s}, named("a"))
		at := a.Addrs()[0]
		k := knock(t, at.Network(), at.String(), 2)
		k.more(10)
		b := start(t, Options{Bind: []string{bind}, Sockets: s}, named("b"))
		eventually(t, "b serves", func() bool { return ask(t, at) == "b" })
		a.Stop()
		within(t, "a ends", a.Wait)
		k.more(10)
		hold, err := s.TakePrivate(bind)
		if err != nil {
			t.Fatal(err)
		}
		ln := hold.Listener()
		served := make(chan struct{})
		go func() {
			defer close(served)
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "net")
				_ = c.Close()
			}
		}()
		eventually(t, "net serves", func() bool { return ask(t, at) == "net" })
		b.Stop()
		within(t, "b ends", b.Wait)
		k.more(10)
		c := start(t, Options{Bind: []string{bind}, Sockets: s}, named("c"))
		eventually(t, "c serves", func() bool { return ask(t, at) == "c" })
		_ = ln.Close()
		<-served
		k.more(10)
		k.end()
		c.Stop()
		within(t, "c ends", c.Wait)
		if path, ok := strings.CutPrefix(bind, "unix:"); ok {
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the path is left: %v", err)
			}
		}
	}
}

func ask(t *testing.T, at net.Addr) string {
	t.Helper()
	c, err := net.Dial(at.Network(), at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// TestQueueIsServed: who waits in the accept queue when a socket is given up is
// accepted and served, not reset.
func TestQueueIsServed(t *testing.T) {
	for _, bind := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "s")} {
		held := make(chan struct{})
		gate := NewGate(1) // one client is inside, the loop rests with each batch beyond it
		l := start(t, Options{Bind: []string{bind}, Gate: gate}, func(c *netconn.Conn, i Info) {
			<-held
			named("served")(c, i)
		})
		k := l.binds[0].sockets[0]
		eventually(t, "it serves", func() bool { return k.o.now.Load() != nil }) // a socket that nobody served yet drops its queue
		k.o.delivery.Lock()                                                      // nobody is handed over: the queue fills
		var clients []net.Conn
		for range 30 {
			clients = append(clients, dial(t, l))
		}
		gate.SetLimit(0)
		l.Stop()
		k.o.delivery.Unlock()
		close(held)
		for i, c := range clients {
			if got, err := io.ReadAll(c); err != nil || string(got) != "served" {
				t.Fatalf("%s: client %d: %q, %v", bind, i, got, err)
			}
		}
		within(t, "the end", l.Wait)
	}
}

// TestTakenAgain: a socket that is being given up and is wanted again is the same
// one, and lets new clients in.
func TestTakenAgain(t *testing.T) {
	bind := "127.0.0.1:" + weirtest.FreePort(t)
	s := NewSockets()
	a := start(t, Options{Bind: []string{bind}, Sockets: s}, named("a"))
	at := a.Addrs()[0]
	ask(t, at)
	a.Stop()
	b := start(t, Options{Bind: []string{bind}, Sockets: s}, named("b"))
	began := time.Now()
	eventually(t, "b serves", func() bool { return ask(t, at) == "b" })
	if d := time.Since(began); d > 900*time.Millisecond {
		t.Errorf("it took %v: a client was made to ask again", d)
	}
	within(t, "a ends", a.Wait)
	time.Sleep(2 * linger) // past the end that was planned
	if got := ask(t, at); got != "b" {
		t.Errorf("%q serves", got)
	}
	b.Stop()
}

// TestOptionsChange: ceilings hold for those who come, and counts stay.
func TestOptionsChange(t *testing.T) {
	l := start(t, Options{}, echoing)
	bind := []string{"127.0.0.1:0"}
	at := l.Addrs()[0].String()
	one := dial(t, l)
	echo(t, one, "in")
	change(t, l, Options{Name: "web", Bind: bind, MaxConnections: 1, RetryAfter: 7 * time.Second})
	if got := refusedAt(t, l); !strings.Contains(got, "Retry-After: 7") {
		t.Errorf("%q", got)
	}
	echo(t, one, "still in")
	change(t, l, Options{Name: "web", Bind: bind, MaxPerClient: 1})
	two := dial(t, l)
	echo(t, two, "counted from now on")
	if got := refusedAt(t, l); !strings.HasPrefix(got, "HTTP/1.1 503") {
		t.Errorf("%q", got)
	}
	change(t, l, Options{Name: "web", Bind: bind})
	three := dial(t, l)
	echo(t, three, "no limit")
	for _, c := range []net.Conn{one, two, three} {
		_ = c.Close()
	}
	eventually(t, "all gone", func() bool { return l.Connections() == 0 })
	if n := len(l.clients.n); n != 0 {
		t.Errorf("%d clients are still counted", n)
	}
	if got := l.Addrs()[0].String(); got != at || l.Name() != "web" {
		t.Errorf("%s on %s, before on %s", l.Name(), got, at)
	}
}

// TestPlainToTLS and back: who is connected goes on as it began; nobody is
// refused.
func TestPlainToTLS(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	cert, key := ca.Write(dir, "a", ca.Issue("a.test"))
	plain := Options{Bind: []string{"127.0.0.1:0"}}
	secure := plain
	secure.TLS = &TLSOptions{Certificates: []CertFile{{cert, key}}}
	l := start(t, plain, echoing)
	old := dial(t, l)
	echo(t, old, "plain")
	hello := func(cfg *tls.Config) (*tls.Conn, error) {
		cfg.RootCAs, cfg.ServerName = ca.Pool(), "a.test"
		c := tls.Client(dial(t, l), cfg)
		return c, c.Handshake()
	}
	for range 3 {
		change(t, l, secure)
		c, err := hello(&tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		echo(t, c, "secure")
		echo(t, old, "still plain")
		change(t, l, plain)
		echo(t, c, "still secure")
		echo(t, dial(t, l), "plain again")
	}
	change(t, l, secure)
	before := l.set.Load().certs
	change(t, l, secure)
	if l.set.Load().certs != before {
		t.Error("the same options made another store, whose files are watched anew")
	}
	// Clients resume over a change of options, and not to a version that is too old.
	sessions := tls.NewLRUClientSessionCache(1)
	c, err := hello(&tls.Config{ClientSessionCache: sessions})
	if err != nil {
		t.Fatal(err)
	}
	echo(t, c, "ticket")
	strict := secure
	strict.TLS = &TLSOptions{Certificates: secure.TLS.Certificates, MinVersion: tls.VersionTLS13}
	change(t, l, strict)
	if c, err = hello(&tls.Config{ClientSessionCache: sessions}); err != nil || !c.ConnectionState().DidResume {
		t.Errorf("after a change: resumed %v, %v", c.ConnectionState().DidResume, err)
	}
	if _, err := hello(&tls.Config{MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is still spoken")
	}
}

// TestChangeFails: nothing is different when a change cannot be had, or is given
// up.
func TestChangeFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := NewSockets()
	l := start(t, Options{Bind: []string{"127.0.0.1:0"}, Sockets: s}, named("x"))
	free := "127.0.0.1:" + weirtest.FreePort(t)
	for name, opt := range map[string]Options{
		"taken":           {Bind: []string{free, taken.Addr().String()}},
		"no certificates": {Bind: []string{free}, TLS: &TLSOptions{}},
	} {
		if _, _, err := l.Change(opt); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	_, undo, err := l.Change(Options{Bind: []string{free}, MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	undo()
	if _, err := net.Dial("tcp", free); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("what was taken is still open: %v", err)
	}
	if n := len(s.all); n != 1 {
		t.Errorf("%d sockets are open", n)
	}
	if got := ask(t, l.Addrs()[0]); got != "x" {
		t.Errorf("%q", got)
	}
}

// TestSocketsCheck: it says what Take says, in the same words, and has nothing
// listen.
func TestSocketsCheck(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	dir := t.TempDir()
	used, err := net.Listen("unix", dir+"/used")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	own := NewSockets()
	k, err := own.Take("127.0.0.1:" + weirtest.FreePort(t))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	_, ours, _ := net.SplitHostPort(k.Addr().String())
	for _, bind := range []string{
		taken.Addr().String(), "localhost:" + port, ":" + port, "0.0.0.0:" + port, "127.0.0.2:" + port,
		k.Addr().String(), ":" + ours, "127.0.0.2:" + ours, "127.0.0.1:0", "192.0.2.1:80", "[2001:db8::1]:80", "[::1]:0",
		"unix:" + dir + "/used", "unix:" + dir + "/file", "unix:" + dir + "/new", "unix:" + dir + "/none/s", "unix:", "unix:@weir-test",
		"systemd:web", "nowhere.invalid:80",
	} {
		for _, private := range []bool{false, true} {
			if private && strings.HasPrefix(bind, "unix:@") {
				continue
			}
			said := own.Check(bind, private)
			k, err := own.take(bind, private)
			if err == nil {
				_ = k.Close()
			}
			if plain(said) != plain(err) {
				t.Errorf("%s, private %v: Check says\n%v\nand Take\n%v", bind, private, said, err)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// plain is an error's text without what differs from one try to the next.
func plain(err error) string {
	text := fmt.Sprint(err)
	if i := strings.Index(text, "/.weir-"); i >= 0 {
		text = text[:i]
	}
	return text
}
