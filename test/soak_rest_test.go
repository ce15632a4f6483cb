// SPDX-License-Identifier: Apache-2.0

package test

import (
	"strconv"
	"strings"
	"time"
)

// pause lets the soak come to rest, and holds what is left against nothing, and
// what the process holds against the first rest.
func (s *soak) pause(first holding) holding {
	s.happened("rest")
	s.rest.Lock()
	s.rest.paused = true
	s.rest.Unlock()
	s.await(45*time.Second, "all clients have an end", func() bool {
		s.rest.Lock()
		defer s.rest.Unlock()
		return s.rest.active == 0
	})
	for _, b := range s.names {
		if err := b.heal(); err != nil {
			s.violate("a backend does not come back", "%s: %v", b.name, err)
		}
	}
	if s.text.brief {
		s.text.brief = false
		if err := s.reload(false); err != nil {
			s.violate("an operator's action failed", "%v", err)
		}
	}
	s.await(20*time.Second, "nothing is in flight", func() bool {
		pools, err := s.api.Pools(s.t.Context())
		if err != nil {
			return false
		}
		for _, p := range pools {
			if p.InFlight != 0 || p.QueueLength != 0 || p.Connections != 0 {
				return false
			}
			for _, b := range p.Members {
				if b.InFlight != 0 {
					return false
				}
			}
		}
		text, err := s.live.get("/metrics")
		return err == nil && sumOf(text, "weir_in_flight") == 0 && sumOf(text, "weir_connections") == 0 && sumOf(text, "weir_queue_length") == 0
	})
	if !s.short {
		s.await(30*time.Second, "the predecessors are gone", func() bool { return len(s.live.processes()) == 1 })
	}
	s.await(10*time.Second, "the access log has what the metrics count", func() bool { return s.counted() })
	limit := 10 * time.Second
	switch {
	case s.short:
		limit = 0
	case first.files != 0 && s.text.mark > 30:
		limit = 90 * time.Second // pools that left the configuration go within a minute
	}
	s.api.Close()
	if first.files == 0 && !s.short {
		time.Sleep(2 * time.Second) // for the first measure to be the least
	}
	u := s.use(limit, func(u holding) bool { return first.files == 0 || s.fits(u, first) })
	if first.files != 0 && !s.short && !s.fits(u, first) {
		s.violate("more is held at rest than at first", "%+v, at first %+v", u, first)
	}
	return u
}

// fits reports that nothing has leaked.
func (s *soak) fits(u, first holding) bool {
	return u.files <= first.files+2 && u.goroutines <= first.goroutines+4 && u.pipes <= first.pipes+32 && u.heap <= first.heap+first.heap/20+(3<<20)
}

// counted reports that the process has counted as many requests as there are
// lines of it in the log.
func (s *soak) counted() bool {
	text, err := s.live.get("/metrics")
	if err != nil {
		return false
	}
	return int64(sumOf(text, "weir_requests_total")) == s.logs.since(s.processAt)
}

func (s *soak) await(limit time.Duration, what string, ok func() bool) {
	for end := time.Now().Add(limit); !ok(); time.Sleep(50 * time.Millisecond) {
		if s.ctx.Err() != nil {
			return
		}
		if time.Now().After(end) {
			text, _ := s.live.get("/metrics")
			pools, _ := s.live.get("/api/v1/pools")
			s.violate("at rest it is not so within "+limit.String()+": "+what, "requests counted %v, lines %d\n%s\n%s", sumOf(text, "weir_requests_total"), s.logs.since(s.processAt),
				linesWith(text, "weir_in_flight", "weir_connections", "weir_queue_length"), tail(pools, 4000))
			return
		}
	}
}

// sumOf adds up a metric over all its label sets.
func sumOf(text, name string) (total float64) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		f := strings.Fields(line)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err == nil {
			total += v
		}
	}
	return total
}

// linesWith returns the samples of some metrics that are not zero.
func linesWith(text string, names ...string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		for _, n := range names {
			if strings.HasPrefix(line, n) && !strings.HasSuffix(line, " 0\n") {
				out.WriteString("  " + line)
			}
		}
	}
	return out.String()
}
