// SPDX-License-Identifier: Apache-2.0

package observe

import "github.com/prometheus/client_golang/prometheus"

func newFloods() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_floods_total",
		Help: "HTTP/2 connections of clients that were ended because of what there was too much of.",
	}, []string{"listener", "cause"})
}

// Floods says which causes there are, so that the counters of a listener exist
// before the first of them counts.
func (m *Metrics) Floods(listener string, causes []string) {
	for _, c := range causes {
		m.floods.WithLabelValues(listener, c)
	}
}

// Flood counts a connection that was ended because of one.
func (m *Metrics) Flood(listener, cause string) { m.floods.WithLabelValues(listener, cause).Inc() }
