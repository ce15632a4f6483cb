// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// namespace is a network of its own, in which nothing happens but what the test
// does: what weir says of it can be compared with the kernel's word exactly.
type namespace struct {
	t    *testing.T
	name string
}

func newNamespace(t *testing.T, sysctls ...string) *namespace {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	n := &namespace{t, fmt.Sprintf("weir-metrics-%d", os.Getpid())}
	n.ip("netns", "add", n.name)
	t.Cleanup(func() { _ = exec.Command(tool(t, "ip"), "netns", "del", n.name).Run() })
	n.ip("-n", n.name, "link", "set", "lo", "up")
	n.inside(func() {
		for _, s := range sysctls {
			name, value, _ := strings.Cut(s, "=")
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

func (n *namespace) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command(tool(n.t, "ip"), args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %v: %v %s", args, err, out)
	}
}

// inside runs f on a thread that is in the namespace and ends with it.
func (n *namespace) inside(f func()) {
	n.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is not used again
		fd, err := unix.Open("/run/netns/"+n.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		n.t.Fatal(err)
	}
}

func (n *namespace) spawn(args ...string) *process {
	n.t.Helper()
	return spawn(n.t, tool(n.t, "ip"), append([]string{"netns", "exec", n.name}, args...)...)
}

// ss asks the kernel for sockets.
func (n *namespace) ss(args ...string) [][]string {
	n.t.Helper()
	out, err := exec.Command(tool(n.t, "ip"), append([]string{"netns", "exec", n.name, "ss", "-tnH"}, args...)...).Output()
	if err != nil {
		n.t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Fields(line))
	}
	return rows
}

// dial opens a connection to 127.0.0.1 without waiting for it.
func (n *namespace) dial(port int) (fd int) {
	n.t.Helper()
	n.inside(func() {
		var err error
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			n.t.Error(err)
			return
		}
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		if err != nil && err != unix.EINPROGRESS {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// netstat reads a number from /proc/net/netstat as the process sees it: of two
// lines with a prefix the first has the names, the second the numbers.
func netstat(t *testing.T, pid int, prefix, name string) float64 {
	t.Helper()
	var names []string
	for _, f := range procNet(t, pid, "netstat", prefix) {
		for i := range f {
			if names != nil && i < len(names) && names[i] == name {
				return parse(t, f[i])
			}
		}
		names = f
	}
	t.Fatalf("netstat has no %s %s", prefix, name)
	return 0
}

// sockstat reads a number from /proc/net/sockstat: names and numbers alternate.
func sockstat(t *testing.T, pid int, prefix, name string) float64 {
	t.Helper()
	for _, f := range procNet(t, pid, "sockstat", prefix) {
		for i := 1; i+1 < len(f); i += 2 {
			if f[i] == name {
				return parse(t, f[i+1])
			}
		}
	}
	t.Fatalf("sockstat has no %s %s", prefix, name)
	return 0
}

// procNet returns the words of the lines that begin with the prefix.
func procNet(t *testing.T, pid int, file, prefix string) (lines [][]string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == prefix {
			lines = append(lines, f)
		}
	}
	return lines
}

func parse(t *testing.T, number string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestHostMetrics compares what weir says of its host with what the kernel
// says: accept queues, connections lost to them, TIME_WAIT, local ports.
func TestHostMetrics(t *testing.T) {
	n := newNamespace(t, "core/somaxconn=8", "ipv4/ip_local_port_range=20000 20099", "ipv4/ip_local_reserved_ports=20010-20014")
	dir := t.TempDir()
	sock := filepath.Join(dir, "admin.sock")
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
admin: {bind: "unix:%s"}
log: {access: off}
listeners: {web: {bind: "127.0.0.1:8080", pool: app}}
pools: {app: {backends: ["http://127.0.0.1:9001"], health: {active: off}}}
`, sock), 0o600); err != nil {
		t.Fatal(err)
	}
	n.spawn(binary, "backend", "--listen", "127.0.0.1:9001")
	w := n.spawn(binary, "run", "-c", file) // ip replaces itself by it
	pid := w.cmd.Process.Pid
	hc := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", sock) }}}
	defer hc.CloseIdleConnections()
	scrape := func() map[string]*family {
		t.Helper()
		resp, err := hc.Get("http://weir/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%d, %v: %s", resp.StatusCode, err, text)
		}
		return parseMetrics(t, string(text))
	}
	eventually(t, 10*time.Second, "weir listens", func() bool {
		_, err := os.Stat(sock)
		return err == nil && len(n.ss("-l", "sport = :8080")) == 1 && len(n.ss("-l", "sport = :9001")) == 1
	})
	queue := func() (length, limit float64) {
		t.Helper()
		var rows [][]string
		eventually(t, 5*time.Second, "ss shows the socket", func() bool { // it misses some, at times
			rows = n.ss("-l", "sport = :8080")
			return len(rows) == 1 && len(rows[0]) > 2
		})
		return parse(t, rows[0][1]), parse(t, rows[0][2])
	}
	one := func(f *family) float64 {
		t.Helper()
		if f == nil || len(f.series) != 1 {
			t.Fatalf("not one series: %+v", f)
		}
		return f.series[0].value
	}

	t.Run("accept queue", func(t *testing.T) {
		m := scrape()
		if _, limit := queue(); limit != 8 || one(m["weir_accept_queue_limit"]) != limit || one(m["weir_accept_queue_length"]) != 0 {
			t.Fatalf("the limit is %v, the kernel's %v; the length %v", one(m["weir_accept_queue_limit"]), limit, one(m["weir_accept_queue_length"]))
		}
		// Without a descriptor to spare weir cannot accept, and what it reads for
		// this needs none.
		var before unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
			t.Fatal(err)
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}, nil); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			n.dial(8080)
		}
		eventually(t, 10*time.Second, "five wait", func() bool { l, _ := queue(); return l == 5 })
		if l := one(scrape()["weir_accept_queue_length"]); l != 5 {
			t.Errorf("the length is %v, not 5", l)
		}
		for range 15 {
			n.dial(8080)
		}
		eventually(t, 10*time.Second, "the queue overflows", func() bool {
			l, limit := queue()
			return l > limit && netstat(t, pid, "TcpExt:", "ListenOverflows") > 0
		})
		if got, _ := queue(); one(scrape()["weir_accept_queue_length"]) != got {
			t.Errorf("the length is %v, the kernel's %v", one(scrape()["weir_accept_queue_length"]), got)
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, "the queue is empty again", func() bool {
			l, _ := queue()
			return l == 0 && one(scrape()["weir_accept_queue_length"]) == 0
		})
		exactly(t, func() (said, is float64) {
			return one(scrape()["weir_accept_overflows_total"]), netstat(t, pid, "TcpExt:", "ListenOverflows")
		}, "connections lost", 1)
	})

	t.Run("TIME_WAIT and ports", func(t *testing.T) {
		for range 12 {
			fd, err := unix.Dup(n.dial(8080))
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), "client")
			c, err := net.FileConn(f)
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			if text, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200") {
				t.Fatalf("%v: %s", err, text)
			}
			c.Close()
		}
		exactly(t, func() (said, is float64) {
			return one(scrape()["weir_time_wait"]), sockstat(t, pid, "TCP:", "tw")
		}, "connections in TIME_WAIT", 1)
		exactly(t, func() (said, is float64) {
			used := map[string]bool{}
			for _, row := range n.ss("-a", "dst 127.0.0.1:9001") {
				used[row[3]] = true
			}
			if len(used) == 0 {
				t.Fatal("no connection to the backend")
			}
			return one(scrape()["weir_ephemeral_ports_free"]), 100 - 5 - float64(len(used))
		}, "local ports left", 1)
	})

	t.Run("status", func(t *testing.T) {
		out, err := exec.Command(binary, "status", "--admin", "unix:"+sock).CombinedOutput()
		for _, want := range []string{"in TIME_WAIT", "local ports left towards 127.0.0.1:9001", "connections lost to full accept queues"} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("status does not say %q: %v\n%s", want, err, out)
			}
		}
	})
}

// exactly waits until what weir says is what the kernel says, which is at least
// so much. A look at ports is good for five seconds.
func exactly(t *testing.T, look func() (said, is float64), what string, least float64) {
	t.Helper()
	var said, is float64
	deadline := time.Now().Add(15 * time.Second)
	for time.Now().Before(deadline) {
		if said, is = look(); said == is && is >= least {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("%s: weir says %v, the kernel %v (at least %v are expected)", what, said, is, least)
}
