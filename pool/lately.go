// SPDX-License-Identifier: Apache-2.0

package pool

import "time"

// How long the pool's answers take of late, by percent: what a retry must have
// time for, and after what a hedge is worth its cost.
//
// It is read from the members' histograms (one to two histTurn old), once a
// second while there is traffic. Answers of every status count, and attempts that
// a hedge overtook as what they had taken by then: left out, they would make the
// pool look faster each time it is hedged, which would hedge more.
//
// Example: 100 answers, 90 of them in the bucket around 10 ms and 10 in that
// around 1 s: the times of 0 to 90 % are 10 ms, those of 91 to 100 % are 1 s.
type latencies [101]time.Duration

const (
	latelyLook  = 64 // members that are looked at; of more, so many spread evenly
	latelyLeast = 20 // answers without which nothing is known
)

// lately makes the table from a histogram; nil when it holds too little.
func (n *histogramSum) lately() *latencies {
	total := uint64(0)
	for _, v := range n {
		total += v
	}
	if total < latelyLeast {
		return nil
	}
	t := &latencies{}
	at, sum := 0, n[0]
	for p := range t {
		for 100*sum < uint64(p)*total || sum == 0 {
			at++
			sum += n[at]
		}
		t[p] = histMiddle(at)
	}
	return t
}

type histogramSum [histBuckets]uint64

// lookLately refreshes the table.
func (c *core) lookLately() {
	var n histogramSum
	step := max((len(c.order)+latelyLook-1)/latelyLook, 1)
	for i := 0; i < len(c.order); i += step {
		m := c.order[i]
		from := m.core.window()
		for k := range m.hist {
			v := m.hist[k].Load()
			if from != nil {
				v -= from[k]
			}
			n[k] += uint64(v)
		}
	}
	if t := n.lately(); t != nil {
		c.hot.lately.Store(t)
	}
}

// Latency returns within what time so many percent (0 to 100) of the pool's
// answers came of late, to 12 %. It is 0 while too little is known. It costs one
// load.
func (p *Pool) Latency(percent int) time.Duration {
	t := p.lately.Load()
	if t == nil {
		return 0
	}
	return t[min(max(percent, 0), 100)]
}

// Hopeless is the percentage below which a retry is not worth its while: when
// fewer of the answers of late came within the time that is left.
const Hopeless = 10
