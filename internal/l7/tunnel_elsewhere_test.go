// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
)

// overHTTP2Only serves HTTP/2 without WebSockets over it, and counts its connections.
func overHTTP2Only(t *testing.T, conns *atomic.Int64) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	s := &http.Server{
		Protocols: p, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s %s", r.Method, r.URL) }),
		ConnState: func(_ net.Conn, to http.ConnState) {
			if to == http.StateNew {
				conns.Add(1)
			}
		},
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close(); <-served })
	return "h2c://" + ln.Addr().String()
}

// TestUpgradeElsewhere: a WebSocket that a backend cannot take, since it is spoken to in
// HTTP/2, goes to one that can, however many come before it, and whether they were
// found out before or not; where nobody can, each is gone to once.
func TestUpgradeElsewhere(t *testing.T) {
	var conns atomic.Int64
	var fleet []string
	for range 4 {
		fleet = append(fleet, overHTTP2Only(t, &conns))
	}
	able := weirtest.NewBackend(t, func(s *weirtest.Conn) {
		if s.ReadHead() == nil {
			return
		}
		s.Send(switched)
		if p, err := s.Bytes(4); err == nil {
			s.Send(p)
		}
	})
	r := newRig(t, append(fleet[:len(fleet):len(fleet)], able.Addr()), firstPick)
	for range 2 {
		c := r.dial()
		c.Send(upgrade)
		if m := c.Final("GET"); m == nil || m.Status() != 101 {
			t.Fatalf("answer %+v", m)
		}
		c.Send("ping")
		if p, err := c.Bytes(4); p != "ping" {
			t.Errorf("%q, %v", p, err)
		}
		_ = c.Close()
		rec := r.want(101, message.OK, true)
		if rec.Backend != "b4" || rec.Redispatches != 4 || rec.Retries != 0 || len(rec.Tried) != 4 {
			t.Errorf("record %+v", rec)
		}
	}
	if n := conns.Load(); n != 4 {
		t.Errorf("%d connections to four backends", n)
	}
	for _, b := range r.pool.Snapshot().Backends {
		if b.Health.String() != "healthy" {
			t.Errorf("%s is %s", b.ID, b.Health)
		}
	}

	r = newRig(t, fleet, firstPick)
	if m := r.roundTrip(upgrade); m.Status() != 502 {
		t.Errorf("answer %+v", m)
	}
	if rec := r.want(502, message.UpgradeRefused, false); rec.Redispatches != 3 || fmt.Sprint(rec.Backend) != "b3" {
		t.Errorf("record %+v", rec)
	}
}
