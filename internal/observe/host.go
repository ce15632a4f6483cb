// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descOverflows = desc("weir_accept_overflows_total", "Connections lost because an accept queue was full, in this network namespace (TcpExt ListenOverflows).")
	descTimeWait  = desc("weir_time_wait", "TCP connections in TIME_WAIT in this network namespace.")
)

// hostCollector reads from the kernel, at scrape time, what concerns the
// network namespace rather than weir alone. Where the kernel does not say, the
// metric is absent.
type hostCollector struct{ m *Metrics }

// Describe implements prometheus.Collector.
func (h hostCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descOverflows
	ch <- descTimeWait
}

// Collect implements prometheus.Collector.
func (h hostCollector) Collect(ch chan<- prometheus.Metric) {
	s := sink{ch}
	if n, ok := acceptOverflows(); ok {
		s.counter(descOverflows, n)
	}
	if n, ok := timeWait(); ok {
		s.gauge(descTimeWait, float64(n))
	}
}

func acceptOverflows() (uint64, bool) {
	text, err := os.ReadFile("/proc/net/netstat")
	if err != nil {
		return 0, false
	}
	return netstatValue(text, "TcpExt:", "ListenOverflows")
}

func timeWait() (uint64, bool) {
	text, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		return 0, false
	}
	return sockstatValue(text, "TCP:", "tw")
}

// HostFacts are what the kernel says of the process's network namespace.
type HostFacts struct {
	AcceptOverflows uint64 // connections lost to full accept queues since the machine started
	TimeWait        uint64
	Known           bool // the two are
	// Destination is the backend's address with the fewest local ports left, and
	// PortsFree how many those are. Empty: unknown, or there is none.
	Destination string
	PortsFree   int
}

// Host returns what the kernel says now; ports are as fresh as on a scrape.
func (m *Metrics) Host() HostFacts {
	var h HostFacts
	var known [2]bool
	h.AcceptOverflows, known[0] = acceptOverflows()
	h.TimeWait, known[1] = timeWait()
	h.Known = known[0] && known[1]
	for to, n := range m.ports.left(m.destinations(m.poolGauges()), m.now()) {
		if s := to.String(); h.Destination == "" || n < h.PortsFree || n == h.PortsFree && s < h.Destination {
			h.Destination, h.PortsFree = s, n
		}
	}
	return h
}

// netstatValue finds a value in /proc/net/netstat: pairs of lines with the
// same prefix, the first with the names, the second with the values.
func netstatValue(text []byte, prefix, name string) (uint64, bool) {
	lines := bytes.Split(text, []byte("\n"))
	for i := 0; i+1 < len(lines); i++ {
		names, values := bytes.Fields(lines[i]), bytes.Fields(lines[i+1])
		if len(names) == 0 || len(names) != len(values) || string(names[0]) != prefix || string(values[0]) != prefix {
			continue
		}
		for j := range names {
			if string(names[j]) == name {
				n, err := strconv.ParseUint(string(values[j]), 10, 64)
				return n, err == nil
			}
		}
	}
	return 0, false
}

// sockstatValue finds a value in /proc/net/sockstat: a prefix, then names
// alternating with values.
func sockstatValue(text []byte, prefix, name string) (uint64, bool) {
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) == 0 || string(f[0]) != prefix {
			continue
		}
		for i := 1; i+1 < len(f); i += 2 {
			if string(f[i]) == name {
				n, err := strconv.ParseUint(string(f[i+1]), 10, 64)
				return n, err == nil
			}
		}
	}
	return 0, false
}

// freshPorts is how long a count of ports is good for: several scrapers then
// cost one look at the kernel's table. With very many sockets a look takes long;
// it is then good for restPorts times as long, which bounds the cost to 2 % of a
// core.
const (
	freshPorts = 5 * time.Second
	restPorts  = 50
)

// portCache remembers how many local ports are left towards each destination.
type portCache struct {
	mu   sync.Mutex // guards what follows
	at   time.Time
	took time.Duration
	free map[netip.AddrPort]int
}

// left returns the free ports per destination, for those wanted. Where the
// kernel does not say, it is empty.
func (c *portCache) left(wanted map[netip.AddrPort]bool, now time.Time) map[netip.AddrPort]int {
	if len(wanted) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free != nil && now.Sub(c.at) < max(freshPorts, restPorts*c.took) {
		return c.free
	}
	c.at, c.free = now, map[netip.AddrPort]int{}
	start := time.Now()
	defer func() { c.took = time.Since(start) }()
	low, high, reserved, err := portRange()
	if err != nil {
		return c.free
	}
	used, err := usedPorts(wanted, low, high)
	if err != nil {
		return c.free
	}
	for to := range wanted {
		c.free[to] = max(int(high)-int(low)+1-reserved-used[to], 0)
	}
	return c.free
}
