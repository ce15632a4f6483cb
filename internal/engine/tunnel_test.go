// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/admin"
)

// tunnelBackend agrees to every upgrade and then says nothing.
func tunnelBackend(t *testing.T) string {
	return rawBackend(t, func(c net.Conn, _ int) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		}
	})
}

// TestShutdownCountsTunnels checks that what the end of the process cuts is
// counted whole: tunnels are cut, too, even when nothing else was.
func TestShutdownCountsTunnels(t *testing.T) {
	r := start(t, fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners:
  web: {bind: "127.0.0.1:0", pool: app}
pools:
  app: {backends: ["http://%s"]}
shutdown: {delay: 10ms, deadline: 300ms}
`, tunnelBackend(t)))
	const tunnels = 3
	for range tunnels {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.front, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
		if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 101 {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	if err := r.Shutdown(nil); err != nil {
		t.Error(err)
	}
	if text := r.log.String(); !strings.Contains(text, fmt.Sprintf("requests_and_tunnels=%d", tunnels)) {
		t.Errorf("the log does not say that %d were cut:\n%s", tunnels, text)
	}
}

// TestDeadlineThatHasPassed checks that nothing is waited for when the time was
// used up before the waiting began.
func TestDeadlineThatHasPassed(t *testing.T) {
	r := start(t, simple("", backend(t, "a")))
	done := make(chan bool, 1)
	skip := make(chan struct{})
	go func() { done <- r.waitEmpty(time.Now().Add(-time.Minute), time.Second, skip, make(chan struct{})) }()
	select {
	case empty := <-done:
		if empty {
			t.Error("said to be empty")
		}
	case <-time.After(limit):
		close(skip)
		t.Fatal("waits for ever")
	}
}

// TestRevivedBackendKeepsConnections takes a backend out in the midst of a
// request and back: its connections are kept again.
func TestRevivedBackendKeepsConnections(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a, b))
	slow := make(chan struct{})
	go func() {
		defer close(slow)
		for range 2 { // one of the two is b's
			go func() { _, _ = get(client(t), r.front+"/slow") }()
		}
		<-b.arrived
	}()
	<-slow
	with, without := parse(t, simple("", a, b)), parse(t, simple("", a))
	p := r.gen.Load().pools["app"].pool
	var gone *balance.Backend
	for _, s := range p.Snapshot().Backends {
		if s.ID == b.id() {
			gone = s.Backend
		}
	}
	if err := r.Apply(without); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(with); err != nil {
		t.Fatal(err)
	}
	if s := p.Snapshot(); len(s.Backends) != 2 || s.Backends[1].Backend != gone && s.Backends[0].Backend != gone {
		t.Fatal("not revived")
	}
	close(a.release)
	close(b.release)
	c := client(t)
	eventually(t, "b's connections are kept", func() bool {
		_, _ = get(c, r.front+"/")
		return targetOf(gone).up.Stats().Idle > 0
	})
}

// TestTunnelsAreShown counts tunnels in status and explain, ends those of a
// backend that drains within its spread, and lets those live that are left when
// the drain is taken back.
func TestTunnelsAreShown(t *testing.T) {
	b := tunnelBackend(t)
	r := start(t, fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools: {app: {backends: ["http://%s"], drain: {deadline: 1h, spread: 1h}}}
shutdown: {delay: none, deadline: 500ms}
`, b))
	for range 40 {
		tunnel(t, r.front)
	}
	eventually(t, "all are open", func() bool { return r.Engine.front.tunnels.Open() == 40 })
	if p, err := r.Pool("app"); err != nil || p.Tunnels != 40 || p.Members[0].Tunnels != 40 {
		t.Errorf("%+v, %v", p, err)
	}
	x, err := r.Explain(admin.Question{URL: r.front + "/"})
	if err != nil || x.Pool == nil || x.Pool.Candidates[0].Tunnels != 40 {
		t.Errorf("%+v, %v", x, err)
	}
	if _, err := r.Patch("app", b, admin.Patch{Admin: "draining"}); err != nil {
		t.Fatal(err)
	}
	left := func() int {
		return r.Engine.front.tunnels.Untold(r.gen.Load().pools["app"].pool.Snapshot().Backends[0].Backend)
	}
	eventually(t, "the first is told", func() bool { return left() < 40 })
	if _, err := r.Patch("app", b, admin.Patch{Admin: "enabled"}); err != nil {
		t.Fatal(err)
	}
	if n := left(); n < 30 {
		t.Errorf("%d are left of 40 that are ended within an hour", n)
	}
}
