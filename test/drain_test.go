// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A backend that is stopped in the right order costs nobody an error: not the
// curl user of every second, not 32 busy clients with GET and POST on kept and
// on new connections. With --drain 0 the same test sees errors: it can fail.
func TestGracefulStop(t *testing.T) {
	t.Run("curl", func(t *testing.T) {
		t.Parallel()
		a, b := freeAddr(t), freeAddr(t)
		leaver := startBackend(t, a)
		startBackend(t, b)
		w := startProxy(t, "--health-path", "/readyz", "--retries", "0", "http://"+a, "http://"+b)
		for i := range 300 {
			if i == 100 {
				leaver.signal(syscall.SIGTERM)
			}
			out, err := exec.Command(tool(t, "curl"), "-s", "-o", "/dev/null", "-w", "%{http_code}", w.url("/")).CombinedOutput()
			if err != nil || string(out) != "200" {
				t.Fatalf("request %d: %s %v", i, out, err)
			}
		}
		noConnectionFaults(t, w)
		leftInOrder(t, leaver)
	})
	t.Run("clients", func(t *testing.T) {
		t.Parallel()
		w, got, leaver := stopUnderLoad(t, "20s")
		if bad := got.bad(); bad != "" {
			t.Errorf("of %d answers: %s", got.total(), bad)
		}
		noConnectionFaults(t, w)
		leftInOrder(t, leaver)
	})
	t.Run("without drain", func(t *testing.T) {
		t.Parallel()
		w, got, _ := stopUnderLoad(t, "0s")
		if r := w.reasons(t); got.bad() == "" && r["connect_refused"]+r["reset_before_response"] == 0 {
			t.Errorf("a backend that just exits went unnoticed in %d requests (%v): this test cannot fail", got.total(), r)
		}
	})
}

// stopUnderLoad stops one of two backends in the middle of 32 clients' work.
func stopUnderLoad(t *testing.T, drain string) (*weir, *tally, *process) {
	t.Helper()
	a, b := freeAddr(t), freeAddr(t)
	leaver := startBackend(t, a, "--drain", drain, "--delay", "2ms")
	startBackend(t, b, "--delay", "2ms")
	w := startProxy(t, "--health-path", "/readyz", "--retries", "0", "http://"+a, "http://"+b)
	var got tally
	stop := make(chan struct{})
	wg := clients{url: w.url("/"), n: 32, methods: []string{"GET", "POST"}, fresh: true, pause: 5 * time.Millisecond}.run(stop, &got)
	time.Sleep(time.Second)
	leaver.signal(syscall.SIGTERM)
	if code := leaver.wait(40 * time.Second); drain != "0s" && code != 0 {
		t.Errorf("the drained backend exited with %d", code)
	}
	time.Sleep(time.Second)
	close(stop)
	wg.Wait()
	return w, &got, leaver
}

func noConnectionFaults(t *testing.T, w *weir) {
	t.Helper()
	for reason, n := range w.reasons(t) {
		if strings.HasPrefix(reason, "connect_") || strings.HasPrefix(reason, "reset_") {
			t.Errorf("%d x %s counted: a graceful stop must not be noticed", n, reason)
		}
	}
}

// leftInOrder reads the backend's own account: its last request came before
// its listener closed.
func leftInOrder(t *testing.T, leaver *process) {
	t.Helper()
	if code := leaver.wait(40 * time.Second); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	last := logTime(t, leaver.out.String(), "last_request")
	closed := logTime(t, leaver.out.String(), "closed_at")
	if !last.Before(closed) {
		t.Errorf("last request at %s, listener closed at %s", last, closed)
	}
}

func logTime(t *testing.T, log, key string) time.Time {
	t.Helper()
	m := regexp.MustCompile(key + `[=":]+([0-9T:.Z+-]+)`).FindStringSubmatch(log)
	if m == nil {
		t.Fatalf("no %s in:\n%s", key, log)
	}
	at, err := time.Parse(time.RFC3339Nano, m[1])
	if err != nil {
		t.Fatal(err)
	}
	return at
}
