// SPDX-License-Identifier: Apache-2.0

package observe

import "time"

// HandshakeSeries is how long the TLS handshakes of one listener take. It is safe
// for concurrent use.
type HandshakeSeries struct{ full, resumed histogram }

// Observe counts a handshake that came about.
func (h *HandshakeSeries) Observe(resumed bool, took time.Duration) {
	if resumed {
		h.resumed.observe(0, took)
	} else {
		h.full.observe(0, took)
	}
}

// Handshakes returns the series of a listener, the same one for the same name.
func (m *Metrics) Handshakes(listener string) *HandshakeSeries {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.shaken[listener]
	if h == nil {
		h = &HandshakeSeries{newHistogram(1), newHistogram(1)}
		if m.shaken == nil {
			m.shaken = make(map[string]*HandshakeSeries)
		}
		m.shaken[listener] = h
	}
	return h
}

// collectHandshakes reads the series of a listener out. Called under mu.
func (m *Metrics) collectHandshakes(s sink, listener string) {
	h := m.shaken[listener]
	if h == nil {
		return
	}
	var full, resumed distribution
	h.full.addTo(&full)
	h.resumed.addTo(&resumed)
	s.histogram(descHandshakeTime, &full, clean(listener), "full")
	s.histogram(descHandshakeTime, &resumed, clean(listener), "resumed")
}
