// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// roleEnv makes the test binary play one side of a handover.
const roleEnv = "HANDOVER_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play is the successor, or the predecessor, that a test asked for.
func play(role string) error {
	switch role {
	case "predecessor":
		return playPredecessor()
	case "path":
		path, err := Invoked()
		fmt.Println(path)
		return err
	case "exit":
		os.Exit(7)
	case "hang":
		time.Sleep(time.Hour)
	case "raw":
		return playRaw()
	}
	p, err := Join("new")
	if err != nil {
		return err
	}
	switch role {
	case "fail":
		err := errors.New("no such file: weir.yaml")
		p.Fail("new", err)
		return err
	case "die":
		return errors.New("panic before built")
	}
	state, err := p.Built("new")
	orphan := errors.Is(err, ErrOrphaned)
	if err != nil && !orphan {
		return err
	}
	switch role {
	case "die after built":
		return errors.New("panic after built")
	case "fail after built":
		err := errors.New("the state cannot be restored")
		p.Fail("new", err)
		return err
	case "hang after built":
		time.Sleep(time.Hour)
	}
	return serve(p, fmt.Sprintf("state %q orphan %v", state, orphan), role)
}

// serve answers each connection with a line, until it is told to end.
func serve(p *Predecessor, line, role string) error {
	ls := map[string]net.Listener{}
	for _, s := range p.Sockets() {
		l, err := net.FileListener(s.File)
		if err != nil {
			return err
		}
		_ = s.File.Close()
		ls[s.Bind] = l
	}
	p.Ready()
	var left atomic.Pointer[string]
	left.Store(new(string))
	go p.Follow(func(r Report) {
		text := *left.Load() + fmt.Sprintf(" left %d", r.Connections)
		left.Store(&text)
	})
	if role == "words" {
		p.Say(Settled)
		p.Say(Stopping)
	}
	fds, err := descriptors()
	if err != nil {
		return err
	}
	l := ls["web"]
	if l == nil {
		return fmt.Errorf("no socket web among %d", len(ls))
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		word, _ := bufio.NewReader(c).ReadString('\n')
		switch strings.TrimSpace(word) {
		case "end":
			_ = c.Close()
			return nil
		case "fds":
			fmt.Fprintln(c, strings.Join(fds, " "))
		case "count":
			fmt.Fprintln(c, len(ls))
		default:
			fmt.Fprintln(c, line+*left.Load())
		}
		_ = c.Close()
	}
}

// descriptors lists what is open, as links of /proc.
func descriptors() ([]string, error) {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range dir {
		to, err := os.Readlink("/proc/self/fd/" + d.Name())
		if err == nil && !strings.HasPrefix(to, "/proc/") && !strings.HasPrefix(to, "/sys/fs/cgroup/") { // the runtime's own
			out = append(out, d.Name()+"="+strings.Split(to, ":")[0])
		}
	}
	return out, nil
}

// playRaw writes what HANDOVER_TEST_RAW says on the pair, and waits.
func playRaw() error {
	fd, err := strconv.Atoi(os.Getenv(Env))
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "pair")
	raw, err := strconv.Unquote(os.Getenv("HANDOVER_TEST_RAW"))
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, raw)
	if err != nil {
		return err
	}
	time.Sleep(time.Hour)
	return nil
}

// playPredecessor hands the socket on descriptor 3 to the role that
// HANDOVER_TEST_SUCCESSOR names, and stops before the step HANDOVER_TEST_STEP,
// telling its caller so on standard output, to be killed there.
func playPredecessor() error {
	l, err := net.FileListener(os.NewFile(3, "web"))
	if err != nil {
		return err
	}
	stop := os.Getenv("HANDOVER_TEST_STEP")
	at := func(step string) {
		if step == stop {
			fmt.Println("at", step)
			time.Sleep(time.Hour)
		}
	}
	sock, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	s, err := Start(context.Background(), Program{
		Path: "/proc/self/exe", Args: os.Args[:1],
		Env: withRole(os.Getenv("HANDOVER_TEST_SUCCESSOR")),
	}, Offer{Version: "old", Sockets: []Socket{{"web", sock}}})
	if err != nil {
		return err
	}
	at("start")
	if err := s.Built(context.Background()); err != nil {
		return err
	}
	at("built")
	if err := s.Ready(context.Background(), []byte("s")); err != nil {
		return err
	}
	at("ready")
	return nil
}

// program is the test binary in a role.
func program(t *testing.T, role string, env ...string) Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Program{Path: self, Args: []string{self}, Env: withRole(role, env...)}
}

// withRole is the environment of a process that plays a role: the first of two
// values would win.
func withRole(role string, env ...string) []string {
	own := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, roleEnv+"=") })
	return append(append(own, env...), roleEnv+"="+role)
}

// socket makes a listening socket as it is handed over.
func socket(t *testing.T) (net.Listener, Socket) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.(*net.TCPListener).File() // a duplicate
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); _ = f.Close() })
	return l, Socket{"web", f}
}

// ask sends a word and returns the line that comes back.
func ask(t *testing.T, addr net.Addr, word string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr.String(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintln(c, word); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil && word != "end" {
		t.Fatalf("%s: %v", word, err)
	}
	return strings.TrimSpace(line)
}

// open counts the descriptors of this process.
func open(t *testing.T) int {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(dir)
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(rest, "Z") && syscall.Kill(pid, 0) == nil
}
