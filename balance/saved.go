// SPDX-License-Identifier: Apache-2.0

package balance

import "time"

// Learned is what a policy that learns knows of a backend's latency, for another
// process. The zero value: nothing.
type Learned struct {
	// Level is log2 of the nanoseconds to the first byte, 0..63; Evidence how much
	// stands behind it, above 0 and at most 1.
	Level    float64       `json:"level,omitempty"`
	Evidence float64       `json:"evidence,omitempty"`
	Age      time.Duration `json:"age,omitempty"` // at the export; within 39 hours
}

// Learned returns what is known at an instant.
func (b *Backend) Learned(now Instant) Learned {
	e := estimate(b.estimate.Load())
	if e == 0 {
		return Learned{}
	}
	return Learned{e.level(), e.evidence(), time.Duration(e.age(uint64(now)>>estimateTick)) << estimateTick}
}

// SetLearned puts what another process knew in the place of what is known. base is
// when it was exported. What cannot be is taken for nothing.
func (b *Backend) SetLearned(base Instant, l Learned) {
	if !(l.Level >= 0 && l.Level <= 63 && l.Evidence > 0 && l.Evidence <= 1) || l.Age < 0 || l.Age > ageMask<<estimateTick/2 {
		b.estimate.Store(0)
		return
	}
	b.estimate.Store(uint64(packEstimate(l.Level, l.Evidence, base.Add(-l.Age))))
}
