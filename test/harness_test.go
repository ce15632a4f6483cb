// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// binary is the weir under test.
var binary string

func TestMain(m *testing.M) {
	if playRole() {
		return
	}
	os.Exit(func() int {
		binary = os.Getenv("WEIR")
		if binary == "" {
			dir, err := os.MkdirTemp("", "weir-test-")
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			defer os.RemoveAll(dir)
			binary = filepath.Join(dir, "weir")
			if out, err := exec.Command("go", "build", "-o", binary, "../cmd/weir").CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build weir: %v\n%s", err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// process is a program the test started; it is killed at the end if it still
// runs, and its output is shown when the test fails.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	out  *output
	done chan struct{} // closed when it has exited
	err  error         // valid after done
}

// output is a buffer that may be read while a process writes to it.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// spawn starts a program. Output goes to a file-backed pipe read by os/exec.
func spawn(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return spawnEnv(t, nil, name, args...)
}

func spawnEnv(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: filepath.Base(name), cmd: exec.Command(name, args...), out: &output{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.Env = append(os.Environ(), env...)
	// A group of its own: nginx's workers outlive a master that is killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p.cmd.WaitDelay = 2 * time.Second
	if err := startChild(p.cmd); err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("--- output of %s %s\n%s", p.name, strings.Join(args, " "), tail(p.out.String(), 1500))
		}
	})
	return p
}

// startChild starts a process that is to die with this one. What the kernel waits
// for is the end of the thread that starts it, and a thread that a test has moved
// into a namespace ends with that test: so there is one thread for all.
func startChild(cmd *exec.Cmd) error {
	err := make(chan error, 1)
	starter() <- func() { err <- cmd.Start() }
	return <-err
}

var starter = sync.OnceValue(func() chan<- func() {
	do := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range do {
			f()
		}
	}()
	return do
})

func tail(s string, n int) string {
	if len(s) > n {
		return "... " + s[len(s)-n:]
	}
	return s
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// wait returns when the process has exited, and its exit code.
func (p *process) wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		p.t.Fatalf("%s still runs after %s", p.name, limit)
		return -1
	}
}

// weir is a running balancer.
type weir struct {
	*process
	addr, admin string
}

func (w *weir) url(path string) string { return "http://" + w.addr + path }

// startProxy runs `weir proxy` with the flags and backends given.
func startProxy(t *testing.T, args ...string) *weir {
	t.Helper()
	w := &weir{addr: freeAddr(t), admin: freeAddr(t)}
	w.process = spawn(t, binary, append([]string{"proxy", "--listen", w.addr, "--admin", w.admin}, args...)...)
	waitListening(t, w.process, w.addr)
	waitListening(t, w.process, w.admin)
	return w
}

// startRun runs `weir run` on a configuration in which ${LISTEN} and ${ADMIN}
// stand for the addresses.
func startRun(t *testing.T, yaml string) *weir {
	t.Helper()
	return startRunUnder(t, nil, yaml)
}

// startRunUnder is startRun by a program that replaces itself by what it is
// given, such as prlimit --nofile=256.
func startRunUnder(t *testing.T, under []string, yaml string) *weir {
	t.Helper()
	w := &weir{addr: freeAddr(t), admin: freeAddr(t)}
	file := filepath.Join(t.TempDir(), "weir.yaml")
	yaml = strings.NewReplacer("${LISTEN}", w.addr, "${ADMIN}", w.admin).Replace(yaml)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(under, binary, "run", "-c", file)
	w.process = spawn(t, args[0], args[1:]...)
	waitListening(t, w.process, w.addr)
	waitListening(t, w.process, w.admin)
	return w
}

// startBackend runs `weir backend` on an address of its own.
func startBackend(t *testing.T, addr string, args ...string) *process {
	t.Helper()
	p := spawn(t, binary, append([]string{"backend", "--listen", addr, "--name", addr}, args...)...)
	waitListening(t, p, addr)
	return p
}

// freeAddr is an address on 127.0.0.1, which certificates and logs name.
func freeAddr(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + weirtest.FreePort(t)
}

func waitListening(t *testing.T, p *process, addr string) {
	t.Helper()
	eventually(t, 10*time.Second, addr+" accepts", func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s exited with %d\n%s", p.name, p.cmd.ProcessState.ExitCode(), p.out)
		default:
		}
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// eventually polls until the condition holds, or fails the test.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > limit {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begin)
}

// reasons returns weir_requests_total by reason.
func (w *weir) reasons(t *testing.T) map[string]int {
	t.Helper()
	out := map[string]int{}
	re := regexp.MustCompile(`^weir_requests_total\{.*reason="([a-z0-9_]+)".*\} ([0-9.e+]+)$`)
	for line := range strings.Lines(w.metrics(t)) {
		if m := re.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			v, _ := strconv.ParseFloat(m[2], 64)
			out[m[1]] += int(v)
		}
	}
	return out
}

func (w *weir) metrics(t *testing.T) string {
	t.Helper()
	resp, err := http.Get("http://" + w.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("/metrics: %d %v", resp.StatusCode, err)
	}
	return string(text)
}

// sum adds up a metric over all label sets that contain the text.
func (w *weir) sum(t *testing.T, name, labels string) (total float64) {
	t.Helper()
	for line := range strings.Lines(w.metrics(t)) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") || !strings.Contains(line, labels) {
			continue
		}
		f := strings.Fields(line)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			t.Fatalf("metric line %q: %v", line, err)
		}
		total += v
	}
	return total
}

// backendState is the part of a backend's JSON that tests look at.
type backendState struct {
	ID       string  `json:"id"`
	URL      string  `json:"url"`
	Admin    string  `json:"admin"`
	Health   string  `json:"health"`
	Share    float64 `json:"share"`
	Reason   string  `json:"reason"`
	InFlight int     `json:"in_flight"`
	Streams  int     `json:"streams"`
	Requests int     `json:"requests"`
	Failures int     `json:"failures"`
	Flips    int     `json:"flips"`
}

// backends asks the admin API for a pool.
func (w *weir) backends(t *testing.T, pool string) map[string]backendState {
	t.Helper()
	resp, err := http.Get("http://" + w.admin + "/api/v1/pools/" + pool)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body struct {
		Backends []backendState `json:"backends"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	out := map[string]backendState{}
	for _, b := range body.Backends {
		out[b.ID] = b
	}
	return out
}

// tally counts answers of many clients.
type tally struct {
	mu     sync.Mutex
	codes  map[string]int // "200", "502 reset_...", "error: ..."
	slow   time.Duration
	sample map[string]string
}

func (c *tally) add(key, detail string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.codes == nil {
		c.codes, c.sample = map[string]int{}, map[string]string{}
	}
	c.codes[key]++
	if _, ok := c.sample[key]; !ok {
		c.sample[key] = detail
	}
	c.slow = max(c.slow, took)
}

func (c *tally) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.codes {
		n += v
	}
	return n
}

// bad returns a description of everything that was not 200, or "".
func (c *tally) bad() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for k, v := range c.codes {
		if k != "200" {
			fmt.Fprintf(&b, "%d x %s (%s); ", v, k, c.sample[k])
		}
	}
	return b.String()
}

// clients runs n clients until stop is closed. Each alternates as shape says:
// with fresh, a new connection per request now and then; methods in turn.
type clients struct {
	url     string
	n       int
	methods []string
	fresh   bool // every fourth request on a new connection
	pause   time.Duration
}

func (c clients) run(stop <-chan struct{}, t *tally) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range c.n {
		wg.Go(func() {
			tr := &http.Transport{MaxIdleConnsPerHost: 1}
			defer tr.CloseIdleConnections()
			hc := &http.Client{Transport: tr, Timeout: 90 * time.Second}
			for r := i; ; r++ {
				select {
				case <-stop:
					return
				default:
				}
				method := c.methods[r%len(c.methods)]
				var body io.Reader
				if method == "POST" {
					body = strings.NewReader("payload " + strconv.Itoa(r))
				}
				req, _ := http.NewRequest(method, c.url, body)
				if c.fresh && r%4 == 0 {
					tr.CloseIdleConnections()
				}
				begin := time.Now()
				resp, err := hc.Do(req)
				if err != nil {
					t.add("error: "+err.Error(), method, time.Since(begin))
					continue
				}
				text, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				key := strconv.Itoa(resp.StatusCode)
				if err != nil {
					key = "error in body: " + err.Error()
				}
				t.add(key, method+": "+strings.TrimSpace(string(text)), time.Since(begin))
				if c.pause > 0 {
					time.Sleep(c.pause)
				}
			}
		})
	}
	return &wg
}

// tool finds a program that the tests need; deps.sh installs it.
func tool(t *testing.T, name string) string {
	t.Helper()
	for _, p := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	t.Fatalf("%s is not installed: run `make deps` (of a long case: `make deps-long`)", name)
	return ""
}
