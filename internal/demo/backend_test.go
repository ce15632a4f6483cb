// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/internal/weirtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a backend and returns it with a client and a function that waits
// for its end.
func start(t *testing.T, opt Options) (*Backend, *http.Client, func() error) {
	t.Helper()
	opt.Listen = "127.0.0.1:0"
	b, err := NewBackend(opt)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- b.Run() }()
	wait := sync.OnceValue(func() error { return <-done })
	tr := &http.Transport{}
	t.Cleanup(func() { b.Hurry(); _ = wait(); tr.CloseIdleConnections() })
	return b, &http.Client{Transport: tr, Timeout: 5 * time.Second}, wait
}

func get(t *testing.T, c *http.Client, url string) (int, string, bool) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(body)), res.Close
}

func TestBackendDrainsInOrder(t *testing.T) {
	var logged syncBuffer
	b, c, wait := start(t, Options{Name: "one", Drain: time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	url := "http://" + b.Addr()
	if status, body, closes := get(t, c, url+"/x"); status != 200 || body != "hello from one" || closes {
		t.Fatalf("got %d %q close=%v", status, body, closes)
	}
	if status, _, _ := get(t, c, url+"/readyz"); status != 200 {
		t.Fatalf("readyz before the drain: %d", status)
	}
	b.Stop()
	if status, _, closes := get(t, c, url+"/readyz"); status != 503 || closes {
		t.Fatalf("readyz in the drain: %d close=%v", status, closes)
	}
	if status, _, _ := get(t, c, url+"/livez"); status != 200 {
		t.Fatalf("livez in the drain: %d", status)
	}
	if status, _, closes := get(t, c, url+"/x"); status != 200 || closes {
		t.Fatalf("work at the start of the drain: %d close=%v", status, closes)
	}
	sawClose := false
	for !sawClose {
		status, _, closes := get(t, c, url+"/x") // fails the test when the listener closes before any answer said so
		if status != 200 {
			t.Fatalf("work in the drain: %d", status)
		}
		sawClose = closes
	}
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(url); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("after the end: %v, want refused", err)
	}
	if text := logged.String(); !strings.Contains(text, `msg="listener closed"`) || !strings.Contains(text, "last_request=2") {
		t.Fatalf("log lacks the closing line: %s", text)
	}
}

func TestBackendDrainZeroCutsRequests(t *testing.T) {
	b, c, wait := start(t, Options{Delay: time.Minute})
	failed := make(chan error, 1)
	go func() {
		res, err := c.Get("http://" + b.Addr())
		if err == nil {
			_ = res.Body.Close()
		}
		failed <- err
	}()
	for b.requests.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	b.Stop()
	if err := <-failed; err == nil {
		t.Fatal("a request in flight survived --drain 0")
	}
	if err := wait(); err != nil {
		t.Fatal(err)
	}
}

func TestBackendBreaksAndMends(t *testing.T) {
	b, c, _ := start(t, Options{Name: "two", Controls: true})
	url := "http://" + b.Addr()
	post := func(path string) {
		res, err := c.Post(url+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	post("/break")
	if res, err := c.Get(url); err == nil {
		_ = res.Body.Close()
		t.Fatal("a broken backend answered")
	}
	post("/mend")
	if status, body, _ := get(t, c, url); status != 200 || body != "hello from two" {
		t.Fatalf("mended: %d %q", status, body)
	}
}

func TestBackendErrorRate(t *testing.T) {
	b, c, _ := start(t, Options{ErrorRate: 1})
	if status, _, _ := get(t, c, "http://"+b.Addr()); status != 500 {
		t.Fatalf("got %d, want 500", status)
	}
}

type syncBuffer = weirtest.Log
