// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestShutdownOrder walks through S7's order with real connections.
func TestShutdownOrder(t *testing.T) {
	a := backend(t, "a")
	r := start(t, "shutdown: {delay: 500ms, deadline: 10s}\n"+simple("", a))
	ops, c := client(t), client(t)
	readyz := "http://" + r.Bound().Admin + "/readyz"
	eventually(t, "ready", func() bool { return mustGet(t, ops, readyz).status == 200 })

	slow := make(chan answer, 1)
	go func() {
		got, err := get(client(t), r.front+"/slow")
		if err != nil {
			t.Error(err)
		}
		slow <- got
	}()
	<-a.arrived
	idle, err := net.Dial("tcp", strings.TrimPrefix(r.front, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()

	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- r.Shutdown(nil) }()
	eventually(t, "not ready", func() bool { return mustGet(t, ops, readyz).status == 503 })
	if d := time.Since(begin); d > 400*time.Millisecond {
		t.Skipf("this machine is too slow to look into the delay (%s)", d)
	}
	if got := mustGet(t, c, r.front+"/"); got.status != 200 || !got.closes {
		t.Errorf("within the delay: %+v, want 200 with Connection: close", got)
	}
	// The idle connection is closed by the end of the delay.
	_ = idle.SetReadDeadline(time.Now().Add(limit))
	if n, err := idle.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("idle connection: %d, %v", n, err)
	}
	eventually(t, "accepting stops", func() bool {
		_, err := get(c, r.front+"/")
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if d := time.Since(begin); d < 450*time.Millisecond {
		t.Errorf("accepting stopped after %s, before the delay was over", d)
	}
	if got := mustGet(t, ops, readyz).status; got != 503 {
		t.Errorf("the admin address answers %d while requests finish", got)
	}
	select {
	case <-done:
		t.Fatal("shut down with a request in flight")
	default:
	}
	close(a.release)
	if got := <-slow; got.status != 200 || got.body != "a" {
		t.Errorf("the request in flight: %+v", got)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("does not end at once when nothing is in flight")
	}
	if text := r.log.String(); strings.Contains(text, "cut") {
		t.Errorf("something was cut:\n%s", text)
	}
}

func TestShutdownCutsAtTheDeadline(t *testing.T) {
	a := backend(t, "a")
	defer close(a.release)
	r := start(t, "shutdown: {delay: 10ms, deadline: 300ms}\n"+simple("", a))
	ended := make(chan error, 1)
	go func() {
		_, err := get(client(t), r.front+"/slow")
		ended <- err
	}()
	<-a.arrived
	begin := time.Now()
	if err := r.Shutdown(nil); err != nil {
		t.Error(err)
	}
	if d := time.Since(begin); d < 250*time.Millisecond || d > limit {
		t.Errorf("took %s, want about 300ms", d)
	}
	if err := <-ended; err == nil {
		t.Error("a cut request was answered")
	}
	if text := r.log.String(); !strings.Contains(text, "requests_and_tunnels=1 busy_connections=1") {
		t.Errorf("the log does not say that one request was cut:\n%s", text)
	}
}

func TestSignalsHurry(t *testing.T) {
	a := backend(t, "a")
	defer close(a.release)
	r := start(t, "shutdown: {delay: 1h, deadline: 2h}\n"+simple("", a))
	go func() { _, _ = get(client(t), r.front+"/slow") }()
	<-a.arrived
	signals := make(chan os.Signal, 3)
	done := make(chan error, 1)
	go func() { done <- r.Run(signals) }()
	signals <- syscall.SIGTERM
	eventually(t, "draining", func() bool { return strings.Contains(r.log.String(), "msg=draining") })
	signals <- syscall.SIGTERM // skips the delay
	eventually(t, "accepting stopped", func() bool { return strings.Contains(r.log.String(), "accepting stopped") })
	signals <- syscall.SIGTERM // skips the rest
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Fatal("signals do not hurry")
	}
}

// tunnel opens a WebSocket through the front and returns when it stands.
func tunnel(t *testing.T, front string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(front, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(limit))
	head := make([]byte, 12)
	if _, err := io.ReadFull(c, head); err != nil || !strings.HasPrefix(string(head), "HTTP/1.1 101") {
		t.Fatalf("%q, %v", head, err)
	}
	return c
}

// TestSignalsHurryTunnels: a signal while tunnels are being cut one by one cuts
// the rest at once. SIGINT leaves the delay out, and the log says so.
func TestSignalsHurryTunnels(t *testing.T) {
	b := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		if s.ReadHead() == nil {
			return
		}
		s.Send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\n")
		_, _ = s.End()
	})
	// The spread begins at once and would take the five seconds before the deadline.
	r := start(t, fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
shutdown: {delay: 4s, deadline: 5s}
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools: {app: {backends: ["http://%s"]}}
`, b.Addr()))
	for range 4 {
		tunnel(t, r.front)
	}
	signals := make(chan os.Signal, 2)
	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- r.Run(signals) }()
	signals <- syscall.SIGINT
	eventually(t, "the first tunnel is cut", func() bool { return r.Engine.front.cutCount() > 0 })
	signals <- syscall.SIGTERM
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Fatal("does not end")
	}
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("took %s, the signal did not hurry", d)
	}
	for _, want := range []string{"msg=draining delay=0s", "requests_and_tunnels=4"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, r.log.String())
		}
	}
}

// TestSignalsForUpkeep: what log rotation and habit send to a daemon must not
// end it, before or during a drain.
func TestSignalsForUpkeep(t *testing.T) {
	a := backend(t, "a")
	file := t.TempDir() + "/access.log"
	r := &running{log: &logBuffer{}}
	plan := parse(t, "shutdown: {delay: 1h, deadline: 2h}\n"+simple("", a))
	plan.Log.Access.Off, plan.Log.Access.Path = false, file
	var err error
	r.Engine, err = New(plan, Options{Logger: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	r.Start()
	url := "http://" + r.Bound().Listeners[0].Addrs[0] + "/"
	signals := make(chan os.Signal, 8)
	done := make(chan error, 1)
	go func() { done <- r.Run(signals) }()
	written := func(name string) func() bool {
		return func() bool { text, _ := os.ReadFile(name); return bytes.Contains(text, []byte("/")) }
	}
	mustGet(t, client(t), url)
	eventually(t, "the first line", written(file))
	for i, s := range []os.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2} {
		old := fmt.Sprintf("%s.%d", file, i)
		if err := os.Rename(file, old); err != nil {
			t.Fatal(err)
		}
		if s == syscall.SIGUSR2 {
			signals <- syscall.SIGTERM // the rest during the drain
			eventually(t, "draining", func() bool { return strings.Contains(r.log.String(), "msg=draining") })
			signals <- syscall.SIGHUP
		}
		signals <- s
		eventually(t, "the new file", func() bool { _, err := os.Stat(file); return err == nil })
		mustGet(t, client(t), url)
		eventually(t, "a line in the new file", written(file))
	}
	for _, want := range []string{"was not reloaded", "no upgrade", "access log opened again"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, r.log.String())
		}
	}
	if strings.Contains(r.log.String(), "hurrying") {
		t.Errorf("upkeep hurried the drain:\n%s", r.log.String())
	}
	signals <- syscall.SIGINT
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Fatal("SIGINT does not end the delay")
	}
}
