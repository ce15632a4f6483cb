// SPDX-License-Identifier: Apache-2.0

package observe

import "github.com/prometheus/client_golang/prometheus"

// MemoryGauges is how much memory there is for the process.
type MemoryGauges struct {
	Limit  int64 // bytes that the runtime keeps to; 0: none
	Needed int64 // bytes that it would have after a collection
	Short  bool  // new connections and requests are refused for it

	Buffered      int64 // bytes held of requests and answers
	BufferedLimit int64 // bytes that may be (limits.buffered); 0: no bound
}

// RegisterMemory makes the weir_memory_* metrics show what f returns. It is
// called once; f is safe for concurrent use.
func (m *Metrics) RegisterMemory(f func() MemoryGauges) {
	gauge := func(name, help string, read func(MemoryGauges) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return read(f()) })
	}
	m.registry.MustRegister(
		gauge("weir_memory_limit_bytes", "Memory that the runtime keeps to (GOMEMLIMIT); 0 without a limit.", func(g MemoryGauges) float64 { return float64(g.Limit) }),
		gauge("weir_memory_needed_bytes", "Memory that a garbage collection would not give back.", func(g MemoryGauges) float64 { return float64(g.Needed) }),
		gauge("weir_memory_short", "1 while new connections and requests are refused for want of memory.", func(g MemoryGauges) float64 {
			if g.Short {
				return 1
			}
			return 0
		}),
		gauge("weir_memory_buffered_bytes", "Content and large heads that are held.", func(g MemoryGauges) float64 { return float64(g.Buffered) }),
		gauge("weir_memory_buffered_limit_bytes", "How much of that there may be (limits.buffered).", func(g MemoryGauges) float64 { return float64(g.BufferedLimit) }),
	)
}
