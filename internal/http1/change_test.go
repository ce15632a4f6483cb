// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/netconn"
)

// TestChange: a connection that is open is held to new settings from its next
// request on, and the request that is being served to those it began with.
func TestChange(t *testing.T) {
	s := &Server{Limits: Limits{MaxHeaderBytes: 8 << 10}, Timeouts: Timeouts{Header: time.Hour, Idle: time.Hour}}
	held := make(chan struct{})
	s.Handler = func(c *ServerConn) {
		if string(c.Request().Path) == "/wait" {
			<-held
		}
		echo(c)
	}
	r := newRig(t, s)
	long := "GET /1 HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 4<<10) + "\r\n\r\n"

	idle, busy := r.dial(), r.dial()
	idle.send(long)
	idle.expect(ok("GET /1 "))
	busy.send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
	eventually(t, "busy and idle", func() bool { n := s.Counts(); return n.Active == 1 && n.Idle == 1 })
	s.Change(Settings{Limits: Limits{MaxHeaderBytes: 1 << 10}, Timeouts: Timeouts{Header: time.Hour, Idle: time.Hour}})
	close(held)
	busy.expect(ok("GET /wait "))
	for _, c := range []*client{idle, busy} {
		c.send(long)
		c.expect("HTTP/1.1 431 ")
	}

	// The wait for a next request is bounded by what is in force when it begins.
	c := r.dial()
	s.Change(Settings{Timeouts: Timeouts{Header: time.Hour, Idle: 20 * time.Millisecond}})
	c.send(long)
	c.expect(ok("GET /1 "))
	c.expectEnd("")
}

// TestChangeLiftsDeadline: where writes need no longer progress, what the last of them
// was bound by is no bound for the next.
func TestChangeLiftsDeadline(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _, _ = io.Copy(io.Discard, b) }()
	s := &Server{Timeouts: Timeouts{Write: time.Hour}}
	c := new(ServerConn)
	c.attach(&link{srv: s, nc: netconn.New(a)})
	c.nc.SetWriteDeadline(1) // long ago
	s.Change(Settings{})
	c.obey()
	if err := c.out.write([]byte("late"), nil); err != nil {
		t.Error(err)
	}
}

// TestChangeCosts: what a request loads of the settings is a pointer.
func TestChangeCosts(t *testing.T) {
	s := &Server{}
	s.Change(Settings{})
	c := &ServerConn{link: &link{srv: s}}
	if n := testing.AllocsPerRun(1000, c.obey); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
