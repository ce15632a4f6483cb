// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
)

// Idle ages at which a backend closed teach its idle timeout when at least
// learnFrom of the last learnOf lie within learnSpread of each other (S8).
const (
	learnOf     = 16
	learnFrom   = 5
	learnSpread = 10 // percent
	// sameEvent joins closes that come together: a backend that restarts
	// closes everything at once, at ages that teach nothing.
	sameEvent = 50 * time.Millisecond
	// learnFor is how long a lesson holds without being confirmed.
	learnFor = time.Hour
)

// learner guesses an idle timeout from closes. It is a pure value; the zero
// value knows nothing.
type learner struct {
	ages    [learnOf]time.Duration
	n       int // observations ever
	last    balance.Instant
	any     bool
	learned time.Duration
	at      balance.Instant // of the lesson
	told    time.Duration   // what news said last
}

// news returns a lesson that is worth telling: the first one, and one that
// differs from what was told by more than the spread; 0: there is none.
func (l *learner) news() time.Duration {
	if l.learned == 0 || l.told != 0 && max(l.learned-l.told, l.told-l.learned) <= l.told/100*learnSpread {
		return 0
	}
	l.told = l.learned
	return l.learned
}

// observe notes that the backend closed a connection idle for age.
func (l *learner) observe(now balance.Instant, age time.Duration) {
	same := l.any && now.Sub(l.last) < sameEvent
	l.last, l.any = now, true
	if same || age <= 0 {
		return
	}
	l.ages[l.n%learnOf] = age
	l.n++
	got := slices.Clone(l.ages[:min(l.n, learnOf)])
	slices.Sort(got)
	for i := 0; i+learnFrom <= len(got); i++ {
		low, high := got[i], got[i+learnFrom-1]
		if high-low <= low/100*learnSpread {
			l.learned, l.at = low, now
			return
		}
	}
}

// timeout returns the lesson, 0 for none.
func (l *learner) timeout(now balance.Instant) time.Duration {
	if l.learned != 0 && now.Sub(l.at) > learnFor {
		*l = learner{told: l.told}
	}
	return l.learned
}
