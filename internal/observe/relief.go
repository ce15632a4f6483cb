// SPDX-License-Identifier: Apache-2.0

package observe

import "github.com/prometheus/client_golang/prometheus"

// RegisterRelieved makes weir_connections_relieved_total show how many connections,
// of clients and to backends, were ended because descriptors ran short. It is called
// once; f is safe for concurrent use.
func (m *Metrics) RegisterRelieved(f func() (clients, upstream uint64)) {
	counter := func(side string, read func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_connections_relieved_total", Help: "Idle connections that were ended to make room because descriptors ran short.",
			ConstLabels: prometheus.Labels{"side": side},
		}, read)
	}
	m.registry.MustRegister(
		counter("client", func() float64 { n, _ := f(); return float64(n) }),
		counter("upstream", func() float64 { _, n := f(); return float64(n) }),
	)
}
