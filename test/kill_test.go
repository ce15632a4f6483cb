// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Killing two of three backends under load, a second apart, is invisible to
// clients whose requests may be repeated.
func TestKilledBackendsShowNoError(t *testing.T) {
	t.Parallel()
	addrs := []string{freeAddr(t), freeAddr(t), freeAddr(t)}
	var ps []*process
	for _, a := range addrs {
		ps = append(ps, startBackend(t, a, "--delay", "2ms"))
	}
	w := startProxy(t, "--health-path", "/readyz", "http://"+addrs[0], "http://"+addrs[1], "http://"+addrs[2])
	var got tally
	stop := make(chan struct{})
	wg := clients{url: w.url("/"), n: 32, methods: []string{"GET"}, pause: 2 * time.Millisecond}.run(stop, &got)
	time.Sleep(time.Second)
	ps[0].signal(syscall.SIGKILL)
	time.Sleep(time.Second)
	ps[1].signal(syscall.SIGKILL)
	time.Sleep(2 * time.Second)
	close(stop)
	wg.Wait()
	if bad := got.bad(); bad != "" {
		t.Errorf("of %d answers: %s", got.total(), bad)
	}
	if got.total() < 1000 {
		t.Errorf("only %d answers: the load was not real", got.total())
	}
}

// A weir that starts while one of three backends is dead serves 32 clients at
// once without an error, from the first request on.
func TestStartWithDeadBackend(t *testing.T) {
	t.Parallel()
	a, b, dead := freeAddr(t), freeAddr(t), freeAddr(t)
	startBackend(t, a)
	startBackend(t, b)
	w := startProxy(t, "--health-path", "/readyz", "http://"+dead, "http://"+a, "http://"+b)
	var got tally
	stop := make(chan struct{})
	wg := clients{url: w.url("/"), n: 32, methods: []string{"GET", "POST"}, fresh: true}.run(stop, &got)
	time.Sleep(1500 * time.Millisecond)
	close(stop)
	wg.Wait()
	if bad := got.bad(); bad != "" {
		t.Errorf("of %d answers: %s", got.total(), bad)
	}
}

// A stopped process still accepts TCP. It must be out of rotation within the
// detection time that `weir check` prints for the same configuration.
func TestStoppedBackendIsDetectedInTime(t *testing.T) {
	t.Parallel()
	a, b := freeAddr(t), freeAddr(t)
	startBackend(t, a)
	frozen := startBackend(t, b)
	yaml := fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools:
  app:
    backends: [{url: "http://%s", id: good}, {url: "http://%s", id: frozen}]
    health: {active: {path: /readyz, interval: 2s, timeout: 700ms, fast_interval: 500ms}}
`, a, b)
	limit := detectionPrinted(t, yaml)
	w := startRun(t, yaml)
	eventually(t, 10*time.Second, "both healthy", func() bool {
		bs := w.backends(t, "app")
		return bs["good"].Health == "healthy" && bs["frozen"].Health == "healthy"
	})
	frozen.signal(syscall.SIGSTOP)
	took := eventually(t, 5*limit, "frozen backend out of rotation", func() bool {
		return w.backends(t, "app")["frozen"].Share == 0
	})
	if took > limit+500*time.Millisecond {
		t.Errorf("out of rotation after %s; weir check promises %s", took, limit)
	}
	frozen.signal(syscall.SIGCONT)
	eventually(t, 30*time.Second, "back in rotation", func() bool { // its slow start takes longer
		b := w.backends(t, "app")["frozen"]
		return b.Health == "healthy" && b.Share > 0
	})
}

// detectionPrinted runs weir check and reads the detection time of the pool.
func detectionPrinted(t *testing.T, yaml string) time.Duration {
	t.Helper()
	file := filepath.Join(t.TempDir(), "weir.yaml")
	yaml = strings.NewReplacer("${LISTEN}", "127.0.0.1:1", "${ADMIN}", "127.0.0.1:2").Replace(yaml)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(binary, "check", "-c", file).CombinedOutput()
	if err != nil {
		t.Fatalf("weir check: %v\n%s", err, out)
	}
	m := regexp.MustCompile(`(?i)detect[a-z ]*[^0-9\n]*([0-9.]+m?s)`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("weir check prints no detection time:\n%s", out)
	}
	d, err := time.ParseDuration(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A host that neither refuses nor answers costs a request at most the connect
// timeout for each attempt, plus a second; connections that were open when it
// vanished included.
func TestUnreachableHost(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	ip := tool(t, "ip")
	tag := fmt.Sprintf("w%d", os.Getpid()%100000)
	near, far := tag+"a", tag+"b"
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(ip, args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	for _, ns := range []string{near, far} {
		run("netns", "add", ns)
		t.Cleanup(func() { _ = exec.Command(ip, "netns", "del", ns).Run() })
		run("-n", ns, "link", "set", "lo", "up")
	}
	run("-n", near, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", far)
	run("-n", near, "addr", "add", "10.77.0.1/24", "dev", "v0")
	run("-n", far, "addr", "add", "10.77.0.2/24", "dev", "v1")
	run("-n", near, "link", "set", "v0", "up")
	run("-n", far, "link", "set", "v1", "up")

	inNS := func(ns string, args ...string) *process {
		return spawn(t, ip, append([]string{"netns", "exec", ns}, args...)...)
	}
	// Both are there before weir looks: who refuses its first probe is out for
	// longer than this test takes.
	for _, b := range []*process{
		inNS(far, binary, "backend", "--listen", "10.77.0.2:9001", "--name", "far"),
		inNS(near, binary, "backend", "--listen", "127.0.0.1:9001", "--name", "near"),
	} {
		eventually(t, 10*time.Second, "a backend listens", func() bool { return strings.Contains(b.out.String(), "listening on") })
	}
	dir := t.TempDir()
	sock := filepath.Join(dir, "web.sock")
	conf := filepath.Join(dir, "weir.yaml")
	// A slow check, so that requests and not probes have to find out.
	yaml := fmt.Sprintf(`
admin: {bind: "unix:%s/admin.sock"}
listeners: {web: {bind: "unix:%s", pool: app}}
pools:
  app:
    backends: ["http://127.0.0.1:9001", "http://10.77.0.2:9001"]
    timeouts: {connect: 1s}
    health: {active: {path: /readyz, interval: 60s, timeout: 2s, fast_interval: 30s}}
`, dir, sock)
	if err := os.WriteFile(conf, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	weir := inNS(near, binary, "run", "-c", conf)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", sock)
	}, MaxIdleConnsPerHost: 8}
	defer tr.CloseIdleConnections()
	hc := &http.Client{Transport: tr, Timeout: 60 * time.Second}
	get := func(got *tally) {
		begin := time.Now()
		resp, err := hc.Get("http://app/")
		if err != nil {
			got.add("error: "+err.Error(), "", time.Since(begin))
			return
		}
		defer resp.Body.Close()
		got.add(fmt.Sprint(resp.StatusCode), resp.Header.Get("X-Served-By"), time.Since(begin))
	}
	eventually(t, 10*time.Second, "weir answers", func() bool {
		var one tally
		get(&one)
		return one.bad() == ""
	})
	var warm, cold tally
	load := func(got *tally, d time.Duration) {
		var wg sync.WaitGroup
		until := time.Now().Add(d)
		for range 8 {
			wg.Go(func() {
				for time.Now().Before(until) {
					get(got)
					time.Sleep(time.Millisecond)
				}
			})
		}
		wg.Wait()
	}
	load(&warm, time.Second)
	if bad := warm.bad(); bad != "" {
		t.Fatalf("before the fault: %s", bad)
	}
	for _, b := range []string{`"backend":"127.0.0.1:9001"`, `"backend":"10.77.0.2:9001"`} {
		if !strings.Contains(weir.out.String(), b) {
			t.Fatalf("before the fault no request went to %s", b)
		}
	}
	// Frames for the far host go to a hardware address that nobody has.
	run("-n", near, "neigh", "replace", "10.77.0.2", "lladdr", "02:00:00:00:00:99", "dev", "v0", "nud", "permanent")
	load(&cold, 6*time.Second)
	if bad := cold.bad(); bad != "" {
		t.Errorf("of %d answers: %s\n%s", cold.total(), bad, grep(weir.out.String(), `"status":5`))
	}
	if limit := 2*time.Second + time.Second; cold.slow > limit {
		t.Errorf("the slowest request took %s; connect timeout x attempts + 1 s = %s", cold.slow, limit)
	}
}

// grep returns the lines of text that contain what is looked for.
func grep(text, what string) string {
	var found strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, what) {
			found.WriteString(line)
		}
	}
	return found.String()
}
