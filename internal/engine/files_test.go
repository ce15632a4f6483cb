// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/netconn"
)

// A limit of descriptors that is another one than was seen last moves the ceiling on
// clients, where that is auto; once it is seen, nothing more is said.
func TestFilesChanged(t *testing.T) {
	limit := uint64(netconn.FileLimit())
	if limit == 0 {
		t.Skip("descriptors have no limit here")
	}
	for config, want := range map[string]int{
		"":                                  maxConnections(0, limit),
		"limits: {max_connections: 1000}\n": 1000,
	} {
		r := start(t, config+`admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools: {app: {backends: ["http://127.0.0.1:1"], health: {active: off}}}
`)
		r.fileLimit.Store(limit - 1)
		r.lookAtFiles()
		r.lookAtFiles()
		if got := r.Engine.front.gate.Limit(); got != want {
			t.Errorf("%q: %d clients, want %d", config, got, want)
		}
		if n := strings.Count(r.log.String(), "was changed from outside"); n != 1 {
			t.Errorf("%q: said %d times:\n%s", config, n, r.log.String())
		}
	}
}

// What is kept to backends gives way first, idle clients only where there is none of
// that; of who was merely told to go no descriptor is free yet.
func TestReliefOrder(t *testing.T) {
	var log bytes.Buffer
	kept, clients := 2, 0
	r := &relief{
		log: slog.New(slog.NewTextHandler(&log, nil)), thin: func() int { return kept },
		idle: func(most int, _ balance.Instant) (told, free int) { return min(clients, most), min(clients, most) / 2 },
	}
	again := func() { r.looked = 0 }
	for _, c := range []struct {
		kept, clients int
		want          []bool
	}{{8, 5, slices.Repeat([]bool{true}, 8)}, {1, 2, []bool{true, true, false}}, {0, 4, []bool{true, true, false}}, {0, 0, []bool{false}}, {0, 1, []bool{false}}} {
		kept, clients = c.kept, c.clients
		again()
		for i, want := range c.want {
			if got := r.one(); got != want {
				t.Errorf("%+v: request %d: %v", c, i, got)
			}
		}
	}
	if u, n := r.upstream.Load(), r.clients.Load(); u != 9 || n != 7 {
		t.Errorf("counted %d and %d", u, n)
	}
	if n := strings.Count(log.String(), "descriptors run short"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// When descriptors run short, of the clients that ask for nothing those give way that
// did so first: who asked later, or waits for an answer, goes on.
func TestIdleClientsGiveWay(t *testing.T) {
	a := backend(t, "a")
	r := start(t, simple("", a))
	type peer struct {
		net.Conn
		in *bufio.Reader
	}
	ask := func(p peer, path string) {
		t.Helper()
		if _, err := io.WriteString(p, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	answered := func(p peer) error {
		resp, err := http.ReadResponse(p.in, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	idle := func() int {
		x := netconn.Idlest{Most: 100, Before: clock.Now().Add(1)}
		for _, l := range r.Engine.front.ever() {
			l.srv.h1.Idlest(&x)
		}
		return len(x.List())
	}
	var peers []peer
	for i := range 5 {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.front, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(clock.Time(clock.Now()).Add(limit))
		p := peer{c, bufio.NewReader(c)}
		peers = append(peers, p)
		if i == 0 {
			ask(p, "/slow")
			<-a.arrived
			continue
		}
		ask(p, "/")
		if err := answered(p); err != nil {
			t.Fatal(err)
		}
		eventually(t, "idle, in this order", func() bool { return idle() == i })
	}
	now := clock.Now()
	if told, free := r.relief.idle(2, now.Add(-reliefIdle)); told != 0 || free != 0 {
		t.Errorf("%d who asked a moment ago were ended", told)
	}
	if told, free := r.relief.idle(2, now); told != 2 || free != 2 {
		t.Errorf("%d were ended, %d are free", told, free)
	}
	close(a.release)
	if err := answered(peers[0]); err != nil {
		t.Errorf("who waited for an answer: %v", err)
	}
	for i, p := range peers[1:] {
		if i < 2 {
			if err := answered(p); err == nil {
				t.Errorf("client %d got an answer", i)
			}
			continue
		}
		ask(p, "/")
		if err := answered(p); err != nil {
			t.Errorf("client %d, who asked later: %v", i, err)
		}
	}
}
