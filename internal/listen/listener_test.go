// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

func echo(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("echo: %q, %v", got, err)
	}
}

// TestServe: several binds of every family, what the handler is told, and the
// counts.
func TestServe(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "web.sock")
	var infos sync.Map
	l := start(t, Options{Name: "web", Bind: []string{"127.0.0.1:0", "[::1]:0", "unix:" + sock}}, func(c *netconn.Conn, i Info) {
		infos.Store(i.Remote, i)
		echoing(c, i)
	})
	for n, a := range l.Addrs() {
		c, err := net.Dial(a.Network(), a.String())
		if err != nil {
			t.Fatal(err)
		}
		echo(t, c, "hello")
		if got := l.Connections(); got != 1 {
			t.Errorf("bind %d: %d connections", n, got)
		}
		want := Info{Listener: "web", Local: addrPort(c.RemoteAddr()), Remote: addrPort(c.LocalAddr())}
		if got, _ := infos.Load(want.Remote); !reflect.DeepEqual(got, want) {
			t.Errorf("info %+v, want %+v", got, want)
		}
		_ = c.Close()
		eventually(t, "close", func() bool { return l.Connections() == 0 })
	}
}

// TestKeepAliveInherited: accepted sockets have the listener's options without
// a system call of their own.
func TestKeepAliveInherited(t *testing.T) {
	got := make(chan int, 2)
	l := start(t, Options{KeepAlive: 42 * time.Second}, func(c *netconn.Conn, _ Info) {
		defer c.Close()
		raw, err := c.TCP().SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		_ = raw.Control(func(fd uintptr) {
			for _, o := range [][2]int{{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE}} {
				v, err := syscall.GetsockoptInt(int(fd), o[0], o[1])
				if err != nil {
					t.Error(err)
				}
				got <- v
			}
		})
	})
	dial(t, l)
	if on, idle := <-got, <-got; on == 0 || idle != 42 {
		t.Errorf("keepalive %d after %d s", on, idle)
	}
}

// TestStop: accepting ends at once, connections go on, Wait waits for them.
func TestStop(t *testing.T) {
	l := start(t, Options{}, echoing)
	c := dial(t, l)
	echo(t, c, "before")
	l.Stop()
	l.Stop()
	if _, err := net.Dial("tcp", l.Addrs()[0].String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial after stop: %v", err)
	}
	echo(t, c, "after")
	waited := make(chan struct{})
	go func() { l.Wait(); close(waited) }()
	select {
	case <-waited:
		t.Fatal("wait returned with a connection open")
	case <-time.After(20 * time.Millisecond):
	}
	_ = c.Close()
	within(t, "wait", func() { <-waited })
}

// TestHandedOn: a connection counts until it is closed, not until the handler
// returns.
func TestHandedOn(t *testing.T) {
	conns := make(chan *netconn.Conn, 1)
	l := start(t, Options{}, func(c *netconn.Conn, _ Info) { conns <- c })
	dial(t, l)
	c := <-conns
	l.Stop()
	time.Sleep(10 * time.Millisecond)
	if l.Connections() != 1 {
		t.Errorf("%d connections", l.Connections())
	}
	_ = c.Close()
	within(t, "wait", l.Wait)
}

func TestPanic(t *testing.T) {
	var told atomic.Value
	var logs syncBuffer
	l := start(t, Options{
		Logger:  slog.New(slog.NewTextHandler(&logs, nil)),
		OnPanic: func(v any, stack []byte) { told.Store(fmt.Sprintf("%v, %v", v, len(stack) > 0)) },
	}, func(*netconn.Conn, Info) { panic("bug") })
	c := dial(t, l)
	if _, err := c.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // io.EOF is never wrapped
		t.Errorf("after a panic: %v", err)
	}
	eventually(t, "told", func() bool { return told.Load() == "bug, true" && strings.Contains(logs.String(), "panicked") })
}

func TestListenErrors(t *testing.T) {
	l := start(t, Options{}, echoing)
	taken := l.Addrs()[0].String()
	for name, opt := range map[string]Options{
		"taken":           {Bind: []string{"127.0.0.1:0", taken}},
		"no port":         {Bind: []string{"127.0.0.1"}},
		"empty path":      {Bind: []string{"unix:"}},
		"no directory":    {Bind: []string{"unix:/nonexistent/x/y"}},
		"no certificates": {Bind: []string{"127.0.0.1:0"}, TLS: &TLSOptions{}},
		"missing file":    {Bind: []string{"127.0.0.1:0"}, TLS: &TLSOptions{Certificates: []CertFile{{"/nonexistent", "/nonexistent"}}}},
	} {
		opt.Name = "web"
		if l, err := Listen(opt); err == nil || !strings.Contains(err.Error(), "web") {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
}

// TestUnixLeftover: a socket file that a dead process left is replaced, one in
// use and a plain file are not.
func TestUnixLeftover(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Options{Bind: []string{"unix:" + path}}); err == nil {
		t.Error("bound over a socket in use")
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
	l := start(t, Options{Bind: []string{"unix:" + path}}, echoing)
	echo(t, dial(t, l), "x")
	plain := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(plain, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Options{Bind: []string{"unix:" + plain}}); err == nil {
		t.Error("bound over a file")
	}
}

// TestCheckBind: it refuses what Listen would, apart from what is in use, and
// leaves nothing behind.
func TestCheckBind(t *testing.T) {
	taken := start(t, Options{}, echoing).Addrs()[0].String()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for where, want := range map[string]string{
		taken: "", "127.0.0.1:0": "", "0.0.0.0:1": "", "unix:" + dir + "/s": "", "unix:@weir": "",
		"192.0.2.1:80": "assign", "unix:" + dir + "/file": "no socket", "unix:" + dir + "/file/s": "no directory",
		"unix:" + dir + "/x/s": "no such file", "127.0.0.1": "port",
	} {
		err := CheckBind(where)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", where, err, want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestFamily: 0.0.0.0 is IPv4 only, [::] both.
func TestFamily(t *testing.T) {
	for where, want := range map[string]string{"0.0.0.0:0": "0.0.0.0", "[::]:0": "::", ":0": "::"} {
		l, err := Listen(Options{Name: "web", Bind: []string{where}})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Addrs()[0].(*net.TCPAddr).IP.String(); got != want {
			t.Errorf("%s listens on %s, want %s", where, got, want)
		}
		l.Stop()
	}
}

// TestQueues: connections that nobody accepts are counted.
func TestQueues(t *testing.T) {
	l, err := Listen(Options{Bind: []string{"127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Stop()
	for range 3 {
		dial(t, l)
	}
	eventually(t, "queue", func() bool {
		q := l.Queues()
		return len(q) == 1 && q[0].Length == 3 && q[0].Limit > 3
	})
}

// TestNoFiles runs itself in a process with few descriptors: connections near
// the limit are refused with an answer, the reserve stays free, an exhausted
// process neither spins nor dies, and all is well afterwards.
func TestNoFiles(t *testing.T) {
	if os.Getenv("LISTEN_NO_FILES") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestNoFiles$", "-test.v")
		cmd.Env = append(os.Environ(), "LISTEN_NO_FILES=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	const limit = 256
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	var logs syncBuffer
	l := start(t, Options{Logger: slog.New(slog.NewTextHandler(&logs, nil))}, echoing)
	// Both ends live in this process, so a pair costs two descriptors.
	var good []net.Conn
	for l.Refused(NoFiles) == 0 {
		if len(good) > limit {
			t.Fatal("nothing was refused")
		}
		good = append(good, dial(t, l))
		eventually(t, "verdict", func() bool { return l.Connections() == len(good) || l.Refused(NoFiles) > 0 })
	}
	if l.Connections() < (limit-netconn.Reserve)/2-20 {
		t.Errorf("refused after only %d connections", l.Connections())
	}
	free := takeFiles(t, limit)
	if len(free) < netconn.Reserve-8 {
		t.Errorf("only %d descriptors were left", len(free))
	}
	// Now none is left. One client waits in the accept queue: made with the
	// last descriptor, so accept has none.
	_ = free[0].Close()
	c, err := net.Dial("tcp", l.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := l.Refused(NoFiles)
	eventually(t, "failed accept", func() bool { return l.Refused(NoFiles) > before })
	time.Sleep(300 * time.Millisecond)
	if n := l.Refused(NoFiles) - before; n > 20 {
		t.Errorf("%d failed accepts in 300 ms: it spins", n)
	}
	if n := strings.Count(logs.String(), "local_files"); n == 0 || n > 3 {
		t.Errorf("logged %d times:\n%s", n, logs.String())
	}
	echo(t, good[0], "those inside go on")
	for _, f := range free[1:] {
		_ = f.Close()
	}
	for _, g := range good[1:] {
		_ = g.Close()
	}
	eventually(t, "recovery", func() bool { return l.Connections() <= 2 })
	echo(t, dial(t, l), "all is well")
}

// takeFiles opens files until none can be opened.
func takeFiles(t *testing.T, most int) []*os.File {
	var files []*os.File
	for range most {
		f, err := os.Open("/dev/null")
		if err != nil {
			break
		}
		files = append(files, f)
	}
	t.Cleanup(func() {
		for _, f := range files {
			_ = f.Close()
		}
	})
	return files
}

type syncBuffer = weirtest.Log
