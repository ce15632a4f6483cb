// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"sync"
	"time"

	"github.com/weirlb/weir/internal/netconn"
)

// registry is the list of a server's connections.
type registry struct {
	mu    sync.Mutex
	conns map[*conn]struct{}
	drain chan struct{} // closed to end a running Drain; nil when none runs
	cut   bool          // CloseAll was called
}

func (s *Server) add(c *conn) {
	s.mu.Lock()
	if s.conns == nil {
		s.conns = make(map[*conn]struct{})
	}
	s.conns[c] = struct{}{}
	s.loops.Add(1)
	cut := s.cut
	s.mu.Unlock()
	if cut {
		c.nc.Abort()
	}
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.loops.Done()
}

// Counts is how many connections and streams a server has.
type Counts struct{ Connections, Idle, Streams int }

// Counts walks the connections; it is for gauges, not for the hot path.
func (s *Server) Counts() (n Counts) {
	for _, c := range s.all() {
		k := c.streamCount()
		n.Connections++
		n.Streams += k
		if k == 0 {
			n.Idle++
		}
	}
	return n
}

func (s *Server) all() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		out = append(out, c)
	}
	return out
}

// Drain tells the connections to end, evenly spread over the duration (0: at
// once), those that answer meanwhile with their next answer, new ones after a
// grace of a second: by a GOAWAY that still lets come what is on its way, and
// after the client has seen that, by another that does not. Streams that are
// open go on to their end, and the connection is closed after the last. It
// returns at once; CloseAll ends it early.
func (s *Server) Drain(spread time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining.Store(true)
	if s.drain != nil {
		close(s.drain) // a second Drain replaces the first
	}
	s.drain = make(chan struct{})
	s.loops.Add(1)
	go s.runDrain(spread, s.drain)
}

// Undrain takes Drain back: connections that were not told yet go on as before.
func (s *Server) Undrain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drain == nil {
		return // none runs, or CloseAll came
	}
	close(s.drain)
	s.drain = nil
	s.draining.Store(false)
}

func (s *Server) runDrain(spread time.Duration, stop chan struct{}) {
	defer s.loops.Done()
	for pace := netconn.NewPace(spread); ; {
		left := s.untold()
		n, last := pace.Next(len(left))
		fresh := 0
		for _, c := range left {
			switch {
			case c.isNew():
				fresh++
			case n > 0:
				c.leave()
				n--
			}
		}
		if last && fresh == 0 {
			return // those that come find draining
		}
		select {
		case <-stop:
			return
		case <-time.After(netconn.PaceTick):
		}
	}
}

// untold returns the connections that were not told to end.
func (s *Server) untold() []*conn {
	all := s.all()
	out := all[:0]
	for _, c := range all {
		if !c.leaving.Load() {
			out = append(out, c)
		}
	}
	return out
}

// CloseAll ends every connection now, and returns how many streams were being
// served. Wait for their goroutines with Wait.
func (s *Server) CloseAll() (cut int) {
	s.draining.Store(true)
	s.mu.Lock()
	s.cut = true
	if s.drain != nil {
		close(s.drain)
		s.drain = nil
	}
	s.mu.Unlock()
	for _, c := range s.all() {
		cut += c.streamCount()
		c.nc.Abort()
	}
	return cut
}

// Wait returns when no connection is left and no goroutine of the server runs.
func (s *Server) Wait() {
	s.loops.Wait()
	s.workers.stop()
}
