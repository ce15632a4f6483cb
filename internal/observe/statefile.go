// SPDX-License-Identifier: Apache-2.0

package observe

import "github.com/prometheus/client_golang/prometheus"

// RegisterStateFile makes weir_state_file_writes_total show how often the state
// file was written, and how often that failed. It is called once; f is safe for
// concurrent use.
func (m *Metrics) RegisterStateFile(f func() (written, failed uint64)) {
	counter := func(outcome string, read func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_state_file_writes_total", Help: "Attempts to write the state file.",
			ConstLabels: prometheus.Labels{"outcome": outcome},
		}, read)
	}
	m.registry.MustRegister(
		counter("success", func() float64 { n, _ := f(); return float64(n) }),
		counter("failure", func() float64 { _, n := f(); return float64(n) }),
	)
}
