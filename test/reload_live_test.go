// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// live is a weir that runs a file which the test changes, and that may be
// followed by another process of it. What they print goes to a file, as a pipe
// would end with the first of them.
type live struct {
	t           *testing.T
	dir         string
	config, log string // files
	admin       string // unix:PATH
	client      *http.Client
	pid         int // of the process that serves

	mu     sync.Mutex
	exits  map[int]int // of those that have ended
	waited map[int]bool
}

// startLive runs `weir run` on a configuration, in which ${DIR} is a directory of
// its own with the sockets, and waits until it is ready. Its admin address is
// ${DIR}/admin.sock.
func startLive(t *testing.T, bin string, text func(dir string) string, env ...string) *live {
	t.Helper()
	// Processes that lost their parent become the test's own: it learns how they end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "weir-live-") // t.TempDir is too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	w := &live{
		t: t, dir: dir, config: filepath.Join(dir, "weir.yaml"), log: filepath.Join(dir, "log"),
		admin: "unix:" + filepath.Join(dir, "admin.sock"), exits: map[int]int{}, waited: map[int]bool{},
	}
	w.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, // the next one asks whoever serves then
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "admin.sock"))
		},
	}}
	w.write(text(dir))
	log, err := os.OpenFile(w.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(bin, "run", "-c", w.config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := startChild(cmd); err != nil {
		t.Fatal(err)
	}
	w.pid = cmd.Process.Pid
	t.Cleanup(w.end)
	w.reap(w.pid)
	eventually(t, 10*time.Second, "weir is ready", func() bool {
		if code, over := w.exit(w.pid); over {
			t.Fatalf("weir exited with %d\n%s", code, w.said())
		}
		_, err := w.get("/readyz")
		return err == nil
	})
	return w
}

// end kills what is left, and shows the log if the test failed.
func (w *live) end() {
	for _, pid := range w.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		w.reap(pid)
	}
	eventually(w.t, 5*time.Second, "killed processes are gone", func() bool { return len(w.processes()) == 0 })
	if w.t.Failed() {
		w.t.Logf("--- log\n%s", tail(w.said(), 8000))
	}
	_ = os.RemoveAll(w.dir)
}

// reap notes how a process ends, once it is the test's own child.
func (w *live) reap(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waited[pid] {
		return
	}
	w.waited[pid] = true
	go func() {
		var s unix.WaitStatus
		for {
			_, err := unix.Wait4(pid, &s, 0, nil)
			if err == nil {
				break
			}
			if err == unix.EINTR {
				continue
			}
			if unix.Kill(pid, 0) != nil {
				s = reapedElsewhere
				break
			}
			time.Sleep(5 * time.Millisecond) // it still has another parent
		}
		code := s.ExitStatus()
		if s.Signaled() {
			code = -int(s.Signal())
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.exits[pid] = code
	}()
}

// reapedElsewhere stands for how a process ended whose parent, another weir,
// waited for it: nobody can know any more.
const reapedElsewhere unix.WaitStatus = 0

// exit returns the exit code of a process that has ended, or minus the signal.
func (w *live) exit(pid int) (code int, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	code, over = w.exits[pid]
	return code, over
}

// processes returns all that run this configuration.
func (w *live) processes() []int {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		w.t.Fatal(err)
	}
	var out []int
	for _, f := range all {
		text, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(text, []byte(w.config)) || !bytes.Contains(text, []byte("\x00run\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, pid)
	}
	return out
}

func (w *live) write(text string) {
	w.t.Helper()
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// said returns the log of all processes.
func (w *live) said() string {
	text, err := os.ReadFile(w.log)
	if err != nil {
		w.t.Error(err)
	}
	return string(text)
}

// run runs a command of weir against the live one.
func (w *live) run(args ...string) (out string, code int) {
	w.t.Helper()
	cmd := exec.Command(binary, append(args, "--admin", w.admin)...)
	text, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// must is run for a command that must succeed.
func (w *live) must(args ...string) string {
	w.t.Helper()
	out, code := w.run(args...)
	if code != 0 {
		w.t.Fatalf("weir %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// get asks the admin address.
func (w *live) get(path string) (string, error) {
	resp, err := w.client.Get("http://weir" + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %d: %s", path, resp.StatusCode, text)
	}
	return string(text), err
}

// liveStatus is what tests look at of /api/v1/status.
type liveStatus struct {
	PID        int    `json:"pid"`
	State      string `json:"state"`
	Generation int    `json:"generation"`
	Ready      bool   `json:"ready"`

	Predecessor *struct {
		PID         int `json:"pid"`
		Connections int `json:"connections"`
	} `json:"predecessor"`
	Successor *struct {
		PID int `json:"pid"`
	} `json:"successor"`
}

func (w *live) ask() (s liveStatus) {
	w.t.Helper()
	w.decode("/api/v1/status", &s)
	return s
}

// decode reads JSON from the admin address.
func (w *live) decode(path string, into any) {
	w.t.Helper()
	text, err := w.get(path)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		w.t.Fatalf("%s: %v\n%s", path, err, text)
	}
}

// sum adds up a metric over all label sets that contain the text.
func (w *live) sum(name, labels string) (total float64) {
	w.t.Helper()
	text, err := w.get("/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") || !strings.Contains(line, labels) {
			continue
		}
		f := strings.Fields(line)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			w.t.Fatalf("metric line %q: %v", line, err)
		}
		total += v
	}
	return total
}

// holding is what a process holds.
type holding struct {
	goroutines int
	files      int // descriptors without pipes
	pipes      int // ends of pipes: weir keeps up to 16 empty ones for its next splice
	heap       int
}

// sockets lists the process's sockets, for a test that finds one too many.
func (w *live) sockets() string {
	out, err := exec.Command("sh", "-c", fmt.Sprintf("ls -l /proc/%d/fd; ss -xtanp | grep pid=%[1]d,", w.pid)).CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}

// use measures the process that serves: descriptors by /proc, goroutines and the
// heap by the process' own profiles, the heap after a garbage collection.
func (w *live) use() (u holding) {
	w.t.Helper()
	field := func(path, before string) int {
		text, err := w.get(path)
		if err != nil {
			w.t.Fatal(err)
		}
		_, rest, _ := strings.Cut(text, before)
		n, err := strconv.Atoi(strings.Fields(rest + " ?")[0])
		if err != nil {
			w.t.Fatalf("%s has no number after %q: %v", path, before, err)
		}
		return n
	}
	u.goroutines = field("/debug/pprof/goroutine?debug=1", "goroutine profile: total ")
	for range 2 { // what a pool of buffers holds goes with the second collection
		u.heap = field("/debug/pprof/heap?gc=1&debug=1", "# HeapAlloc = ")
	}
	// Only now is the connection that asks there at each measurement.
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.pid))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, fd := range list {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", w.pid, fd.Name()))
		switch {
		case err != nil: // closed meanwhile
		case strings.HasPrefix(to, "pipe:"):
			u.pipes++
		default:
			u.files++
		}
	}
	return u
}
