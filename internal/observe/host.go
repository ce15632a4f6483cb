// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"os"
	"strconv"

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
	if text, err := os.ReadFile("/proc/net/netstat"); err == nil {
		if n, ok := netstatValue(text, "TcpExt:", "ListenOverflows"); ok {
			s.counter(descOverflows, n)
		}
	}
	if text, err := os.ReadFile("/proc/net/sockstat"); err == nil {
		if n, ok := sockstatValue(text, "TCP:", "tw"); ok {
			s.gauge(descTimeWait, float64(n))
		}
	}
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
