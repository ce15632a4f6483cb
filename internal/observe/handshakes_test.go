// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"
	"time"
)

// TestHandshakes: full and resumed handshakes are told apart, listeners too, and
// those without TLS have no such series.
func TestHandshakes(t *testing.T) {
	m := NewMetrics(MetricsOptions{})
	m.RegisterListeners(func() []ListenerGauges {
		return []ListenerGauges{{Name: "web", Handshakes: []HandshakeCount{{Outcome: "full", N: 3}}}, {Name: "plain"}}
	})
	h := m.Handshakes("web")
	if h != m.Handshakes("web") || h == m.Handshakes("plain") {
		t.Fatal("a series is not the listener's own")
	}
	h.Observe(false, 2*time.Millisecond)
	h.Observe(false, time.Second)
	h.Observe(true, 300*time.Microsecond)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, f := range families {
		if f.GetName() != "weir_tls_handshake_seconds" {
			continue
		}
		for _, s := range f.GetMetric() {
			key := ""
			for _, l := range s.GetLabel() {
				key += l.GetValue() + " "
			}
			got[key] = s.GetHistogram().GetSampleCount()
			if key == "web full " {
				for _, b := range s.GetHistogram().GetBucket() {
					if b.GetUpperBound() == 0.0025 && b.GetCumulativeCount() != 1 {
						t.Errorf("%d handshakes of 2.5 ms at most", b.GetCumulativeCount())
					}
				}
			}
		}
	}
	if len(got) != 2 || got["web full "] != 2 || got["web resumed "] != 1 {
		t.Errorf("%v", got)
	}
}
