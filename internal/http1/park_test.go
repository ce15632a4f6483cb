// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// TestParking: an idle connection gives up its goroutine and comes back with
// the next request.
func TestParking(t *testing.T) {
	s := &Server{Handler: echo, Timeouts: Timeouts{ParkAfter: time.Millisecond, Idle: time.Minute, Header: time.Minute}}
	p := park(t, s)
	r := newRig(t, s)
	c := r.dial()
	eventually(t, "parked before the first request", func() bool { return s.Counts() == Counts{Parked: 1} && p.Waiting() == 1 })
	for range 3 {
		c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
		c.expect(ok("GET /1 "))
		eventually(t, "parked", func() bool { return s.Counts() == Counts{Parked: 1} && p.Waiting() == 1 })
	}
	// Half a head does not park.
	c.send("GET /2 HTTP/1.1\r\n")
	eventually(t, "active", func() bool { return s.Counts() == Counts{Active: 1} })
	c.send("Host: x\r\n\r\n")
	c.expect(ok("GET /2 "))
	eventually(t, "parked", func() bool { return s.Counts().Parked == 1 })
	c.Close()
	eventually(t, "gone", func() bool { return s.Counts() == Counts{} })
}

func TestParkedTimesOut(t *testing.T) {
	s := &Server{Handler: echo, Timeouts: Timeouts{ParkAfter: time.Millisecond, Idle: 50 * time.Millisecond, Header: 50 * time.Millisecond}}
	park(t, s)
	r := newRig(t, s)
	silent := r.dial()
	silent.expectEnd("")
	idle := r.dial()
	idle.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
	idle.expectEnd(ok("GET /1 "))
	eventually(t, "gone", func() bool { return s.Counts() == Counts{} })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.bad) != 1 || r.bad[0].Reason != message.HeaderTimeout || !r.bad[0].Silent {
		t.Errorf("heard %v: the silent one is named, the idle one is no error", r.bad)
	}
}

func TestParkedDrains(t *testing.T) {
	for _, all := range []bool{false, true} {
		s := &Server{Handler: echo, Timeouts: Timeouts{ParkAfter: time.Millisecond, Idle: time.Minute}}
		park(t, s)
		r := newRig(t, s)
		var cs []*client
		for range 20 {
			c := r.dial()
			c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
			c.expect(ok("GET /1 "))
			cs = append(cs, c)
		}
		eventually(t, "parked", func() bool { return s.Counts().Parked == len(cs) })
		if all {
			if n := s.CloseAll(); n != 0 {
				t.Errorf("%d were cut, all were idle", n)
			}
		} else {
			s.Drain(0)
		}
		for _, c := range cs {
			c.expectEnd("")
		}
		s.Wait()
	}
}

// TestDrainRace: requests that arrive while idle and parked connections are
// being closed are answered whole or not at all.
func TestDrainRace(t *testing.T) {
	for range 20 {
		s := &Server{Handler: echo, Timeouts: Timeouts{ParkAfter: time.Millisecond, Idle: time.Minute}}
		park(t, s)
		r := newRig(t, s)
		var cs []*client
		for range 8 {
			c := r.dial()
			c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
			c.expect(ok("GET /1 "))
			cs = append(cs, c)
		}
		done := make(chan string, len(cs))
		for _, c := range cs {
			go func() {
				c.Write([]byte("GET /2 HTTP/1.1\r\nHost: x\r\n\r\n"))
				got, _ := c.rest()
				done <- got
			}()
		}
		s.Drain(0)
		for range cs {
			got := <-done
			if got != "" && got != ok("GET /2 ") && got != strings.Replace(ok("GET /2 "), "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1) {
				t.Fatalf("torn answer %q", got)
			}
		}
	}
}

// TestDrainAnswersWhatArrived: a request that has arrived when the connection
// would be closed is answered, be it that the connection is just waking up or
// that the answer before has just been written.
func TestDrainAnswersWhatArrived(t *testing.T) {
	last := strings.Replace(ok("GET /2 "), "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)
	drain := func(s *Server) {
		s.Drain(0)
		eventually(t, "drained", s.drained.Load)
	}
	t.Run("parked", func(t *testing.T) {
		s := &Server{Handler: echo, Timeouts: Timeouts{ParkAfter: time.Millisecond, Idle: time.Minute}}
		type waiter struct {
			nc     *netconn.Conn
			resume func(bool)
		}
		parked := make(chan waiter, 2)
		s.Park = func(nc *netconn.Conn, _ balance.Instant, resume func(bool)) { parked <- waiter{nc, resume} }
		c := newRig(t, s).dial()
		w := <-parked
		c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
		eventually(t, "arrived", w.nc.Pending)
		w.resume(true) // until it parks again
		c.expect(ok("GET /1 "))
		w = <-parked
		c.send("GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
		eventually(t, "arrived", w.nc.Pending)
		drain(s)
		w.resume(true)
		c.expectEnd(last)
	})
	for _, size := range []int{0, 2 * smallRead} { // held and not held
		s := &Server{}
		body := strings.Repeat("x", size)
		answered, arrived := make(chan *netconn.Conn, 1), make(chan struct{})
		s.Handler = func(c *ServerConn) {
			if string(c.Request().Target) != "/1" {
				echo(c)
				return
			}
			answer(c, 200, body)
			answered <- c.Conn()
			<-arrived
		}
		c := newRig(t, s).dial()
		c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
		nc := <-answered
		drain(s)
		c.send("GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
		eventually(t, "arrived", nc.Pending)
		close(arrived)
		c.expectEnd(ok(body) + last)
	}
}

// TestDrainWaitsForFirstRequest: a connection that has just been made is left
// the time to ask.
func TestDrainWaitsForFirstRequest(t *testing.T) {
	s := &Server{Handler: echo}
	r := newRig(t, s)
	c, silent := r.dial(), r.dial()
	eventually(t, "idle", func() bool { return s.Counts().Idle == 2 })
	s.Drain(0)
	eventually(t, "drained", s.drained.Load)
	c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
	c.expectEnd(strings.Replace(ok("GET /1 "), "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
	silent.expectEnd("") // the grace is over
}
