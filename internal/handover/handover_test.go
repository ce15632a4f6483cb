// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const patience = 20 * time.Second

func start(t *testing.T, p Program, socks ...Socket) (*Successor, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return Start(ctx, p, Offer{Version: "old", Sockets: socks})
}

// through takes a successor through all steps.
func through(t *testing.T, p Program, state []byte, socks ...Socket) (*Successor, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := Start(ctx, p, Offer{Version: "old", Sockets: socks})
	if err != nil {
		return nil, err
	}
	if err := s.Built(ctx); err != nil {
		return s, err
	}
	return s, s.Ready(ctx, state)
}

func TestHandover(t *testing.T) {
	l, sock := socket(t)
	s, err := through(t, program(t, "serve"), []byte("remember"), sock)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	if s.Version() != "new" || s.PID() == os.Getpid() || !alive(s.PID()) {
		t.Errorf("successor %d says it is %q", s.PID(), s.Version())
	}
	// The socket here is closed, and the connections go there.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := ask(t, l.Addr(), "who"), `state "remember" orphan false`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := s.Report(Report{Connections: 3}); err != nil {
		t.Error(err)
	}
	// Words end when the successor does; its exit is seen.
	ask(t, l.Addr(), "end")
	for range s.Words() { //nolint:revive // until it is closed
	}
	<-s.Exited()
	if got := s.How(); got != "exit status 0" {
		t.Errorf("it ended with %q", got)
	}
}

// TestDescriptors holds that a successor gets the standard three, the pair and
// the sockets, and nothing else that is open here.
func TestDescriptors(t *testing.T) {
	secret, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	extra, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	l, sock := socket(t)
	before := open(t)
	s, err := through(t, program(t, "serve"), nil, sock)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	_ = l.Close()
	sockets := 0
	for _, fd := range strings.Fields(ask(t, l.Addr(), "fds")) {
		n, kind, _ := strings.Cut(fd, "=")
		switch {
		case n == "0" || n == "1" || n == "2" || strings.HasPrefix(kind, "anon_inode"):
		case kind == "socket":
			sockets++
		default:
			t.Errorf("the successor has %s", fd)
		}
	}
	if sockets != 2 { // the pair and the one handed over
		t.Errorf("the successor has %d sockets, want 2", sockets)
	}
	s.Kill()
	if after := open(t); after > before { // the listener was closed
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestNonblocking holds that both processes keep O_NONBLOCK on the shared
// socket: without it an accept that somebody else was faster for hangs.
func TestNonblocking(t *testing.T) {
	l, sock := socket(t)
	s, err := through(t, program(t, "serve"), nil, sock)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0)
		if flags&syscall.O_NONBLOCK == 0 {
			t.Error("O_NONBLOCK is gone")
		}
	}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // sent by File.Fd, it would be gone by now
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	_ = l.(*net.TCPListener).SetDeadline(time.Unix(1, 0))
	if _, err := l.Accept(); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// TestManySockets needs more than one message of descriptors.
func TestManySockets(t *testing.T) {
	l, sock := socket(t)
	socks := []Socket{sock}
	for i := range 2*maxRights + 1 {
		_, more := socket(t)
		more.Bind = fmt.Sprintf("more %d", i)
		socks = append(socks, more)
	}
	s, err := through(t, program(t, "serve"), make([]byte, 1<<20), socks...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	_ = l.Close()
	if got, want := ask(t, l.Addr(), "count"), fmt.Sprint(len(socks)); got != want {
		t.Errorf("%s sockets came, %s were handed over", got, want)
	}
}

// TestFailures takes each way in which a successor does not take over: it is
// dead afterwards, nothing is left open, and the reason is told.
func TestFailures(t *testing.T) {
	garbage := func(raw string) []string { return []string{"HANDOVER_TEST_RAW=" + fmt.Sprintf("%q", raw)} }
	for _, c := range []struct {
		name, role    string
		env           []string
		outcome, step string
		says          string
		limit         time.Duration
	}{
		{name: "exits", role: "exit", outcome: OutcomeExited, step: "built", says: "exit status 7"},
		{name: "says failed", role: "fail", outcome: OutcomeFailed, step: "built", says: "no such file: weir.yaml"},
		{name: "dies before built", role: "die", outcome: OutcomeExited, step: "built", says: "exit status 1"},
		{name: "dies after built", role: "die after built", outcome: OutcomeExited, step: "ready", says: "exit status 1"},
		{name: "fails after built", role: "fail after built", outcome: OutcomeFailed, step: "ready", says: "cannot be restored"},
		{name: "hangs", role: "hang", outcome: OutcomeTimeout, step: "built", says: "not built within", limit: 300 * time.Millisecond},
		{name: "hangs after built", role: "hang after built", outcome: OutcomeTimeout, step: "ready", says: "not ready within", limit: 2 * time.Second},
		{name: "writes text", role: "raw", env: garbage("HTTP/1.1 400 Bad Request\r\n\r\n"), outcome: OutcomeForeign, step: "built", says: "not a handover message"},
		{name: "writes no JSON", role: "raw", env: garbage("\x00\x00\x00\x03abc"), outcome: OutcomeForeign, step: "built", says: "not a handover message"},
		{name: "names sockets", role: "raw", env: garbage(packet(`{"kind":"built","protocol":1,"oldest":1,"binds":["x"]}`)), outcome: OutcomeForeign, step: "built", says: "names 1 sockets"},
		{name: "is too new", role: "raw", env: garbage(packet(`{"kind":"built","protocol":9,"oldest":8,"version":"v9"}`)), outcome: OutcomeForeign, step: "built", says: "protocol 8 to 9"},
		{name: "is ready at once", role: "raw", env: garbage(packet(`{"kind":"ready"}`)), outcome: OutcomeForeign, step: "built", says: "ready before"},
		{name: "writes half", role: "raw", env: garbage("\x00\x00\x00\x09{\"kind"), outcome: OutcomeTimeout, step: "built", says: "not built", limit: 300 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, sock := socket(t)
			before := open(t)
			limit := c.limit
			if limit == 0 {
				limit = patience
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			s, err := Start(ctx, program(t, c.role, c.env...), Offer{Version: "old", Sockets: []Socket{sock}})
			if err == nil {
				if err = s.Built(ctx); err == nil {
					err = s.Ready(ctx, []byte("state"))
				}
			}
			var f *Failure
			if !errors.As(err, &f) {
				t.Fatalf("no failure: %v", err)
			}
			if f.Outcome != c.outcome || f.Step != c.step || !strings.Contains(f.Error(), c.says) {
				t.Errorf("%s at %s: %v; want %s at %s: %s", f.Outcome, f.Step, f, c.outcome, c.step, c.says)
			}
			if alive(s.PID()) {
				t.Error("it lives")
			}
			if after := open(t); after > before { // a connection of the test before may just have closed
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			// The predecessor's socket is as it was.
			go func() {
				if c, err := l.Accept(); err == nil {
					fmt.Fprintln(c, "the old one")
					_ = c.Close()
				}
			}()
			if got := ask(t, l.Addr(), "who"); got != "the old one" {
				t.Errorf("answered by %q", got)
			}
		})
	}
}

func packet(text string) string {
	return string([]byte{0, 0, 0, byte(len(text))}) + text
}

func TestNoProgram(t *testing.T) {
	before := open(t)
	_, err := start(t, Program{Path: filepath.Join(t.TempDir(), "gone"), Args: []string{"gone"}})
	var f *Failure
	if !errors.As(err, &f) || f.Outcome != OutcomeStart || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("not a program\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err = start(t, Program{Path: text, Args: []string{text}}); !errors.Is(err, syscall.ENOEXEC) {
		t.Errorf("got %v", err)
	}
	if after := open(t); after > before { // a connection of the test before may just have closed
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestAborted holds that a predecessor that is told to stop meanwhile says so.
func TestAborted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := Start(ctx, program(t, "hang"), Offer{})
	if err != nil {
		t.Fatal(err)
	}
	cancel(errors.New("told to stop"))
	err = s.Built(ctx)
	var f *Failure
	if !errors.As(err, &f) || f.Outcome != OutcomeAborted || err.Error() != "told to stop" || alive(s.PID()) {
		t.Errorf("got %v", err)
	}
}

// TestUnknownPassedOver holds that a newer side may say more than this one
// knows.
func TestUnknownPassedOver(t *testing.T) {
	raw := packet(`{"kind":"progress","of":3}`) + packet(`{"kind":"built","protocol":7,"oldest":1,"version":"v7","mood":{"good":true}}`)
	s, err := start(t, program(t, "raw", fmt.Sprintf("HANDOVER_TEST_RAW=%q", raw)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	if err := s.Built(t.Context()); err != nil || s.Version() != "v7" {
		t.Errorf("version %q: %v", s.Version(), err)
	}
}

// TestWords holds that a successor is heard once it serves.
func TestWords(t *testing.T) {
	_, sock := socket(t)
	s, err := through(t, program(t, "words"), nil, sock)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	if a, b := <-s.Words(), <-s.Words(); a != Settled || b != Stopping {
		t.Errorf("heard %q and %q", a, b)
	}
}

// TestPredecessorDies kills the predecessor at each step: whoever holds the
// sockets serves them, and connections that came meanwhile are answered.
func TestPredecessorDies(t *testing.T) {
	for _, c := range []struct{ step, want string }{
		{"start", `state "" orphan true`},
		{"built", `state "" orphan true`},
		{"ready", `state "s" orphan false`},
	} {
		t.Run(c.step, func(t *testing.T) {
			l, sock := socket(t)
			p := program(t, "predecessor")
			cmd := exec.Command(p.Path)
			cmd.Env = append(p.Env, "HANDOVER_TEST_STEP="+c.step, "HANDOVER_TEST_SUCCESSOR=serve")
			cmd.ExtraFiles = []*os.File{sock.File}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "at "+c.step+"\n" {
				t.Fatalf("%q: %v", line, err)
			}
			_ = l.Close()
			_ = sock.File.Close()
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if got := ask(t, l.Addr(), "who"); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			ask(t, l.Addr(), "end")
		})
	}
}

// TestJoinNothing holds what a process finds that nobody hands over to.
func TestJoinNothing(t *testing.T) {
	if p, err := Join("v"); p != nil || err != nil {
		t.Errorf("got %v, %v", p, err)
	}
	file, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, value := range []string{"", "x", "-1", "1", "99999", fmt.Sprint(file.Fd())} {
		t.Setenv(Env, value)
		if p, err := Join("v"); p != nil || err == nil || !strings.Contains(err.Error(), Env) {
			t.Errorf("%s=%q: %v, %v", Env, value, p, err)
		}
		if _, ok := os.LookupEnv(Env); ok {
			t.Errorf("%s is still set", Env)
		}
	}
	if _, err := file.Stat(); err != nil {
		t.Errorf("a descriptor that is no pair was closed: %v", err)
	}
}

// TestJoinRefuses holds what a successor says to a predecessor that it does not
// understand.
func TestJoinRefuses(t *testing.T) {
	for _, c := range []struct{ raw, says string }{
		{packet(`{"kind":"hello","protocol":9,"oldest":9,"version":"v9"}`), "v9"},
		{packet(`{"kind":"hello","protocol":1,"oldest":1,"sockets":1}`), "0 of 1 sockets"},
		{"GET / HTTP/1.1\r\n\r\n", "not a handover message"},
		{"", "EOF"},
	} {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		old := os.NewFile(uintptr(fds[0]), "old")
		if _, err := old.WriteString(c.raw); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Shutdown(fds[0], syscall.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		p, err := join(os.NewFile(uintptr(fds[1]), "new"), "v1")
		if p != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, %v", c.raw, p, err)
		}
		ch, err := newChannel(old)
		if err != nil {
			t.Fatal(err)
		}
		m, _, err := ch.receive()
		if err != nil || m.Kind != kindFailed || m.Why == "" {
			t.Errorf("%q: told the old process %+v, %v", c.raw, m, err)
		}
		ch.close()
	}
}

func TestEnvironment(t *testing.T) {
	got := environ([]string{"PATH=/bin", "LISTEN_FDS=2", "LISTEN_PID=1", "LISTEN_FDNAMES=a:b", "WATCHDOG_PID=1", "WATCHDOG_USEC=3", "NOTIFY_SOCKET=/n", Env + "=3"})
	if want := []string{"PATH=/bin", "WATCHDOG_USEC=3", "NOTIFY_SOCKET=/n"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestInvoked holds that the path stays as it was given: a link that is
// switched is followed, and a file that is replaced is not "(deleted)".
func TestInvoked(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	link := filepath.Join(dir, "weir")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	run := func(path string, args []string, wd string, env ...string) string {
		cmd := &exec.Cmd{Path: path, Args: args, Dir: wd, Env: append(append(os.Environ(), roleEnv+"=path"), env...)}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := run(link, []string{link}, dir); got != link {
		t.Errorf("by its path: %q, want %q", got, link)
	}
	if got := run("./weir", []string{"./weir"}, dir); got != link {
		t.Errorf("by a relative path: %q, want %q", got, link)
	}
	if got := run(link, []string{"weir"}, "/", "PATH="+dir); got != link {
		t.Errorf("by its name: %q, want %q", got, link)
	}
	if got := run(link, []string{"made up"}, dir); got != self {
		t.Errorf("by another name: %q, want %q", got, self)
	}
}

func TestExecutable(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{"weir": "whole path", dir: "not a file", filepath.Join(dir, "gone"): "no such file"} {
		if err := Executable(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := Executable(plain); err == nil { // root may execute only what anybody may
		t.Error("a file without x")
	}
	if err := os.Chmod(plain, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Executable(plain); err != nil {
		t.Error(err)
	}
}
