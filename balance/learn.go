// SPDX-License-Identifier: Apache-2.0

package balance

import "time"

// A Learner is a Policy that learns from how attempts end, beyond the requests
// in flight. The owner of the pool tells it about every attempt that says
// something about its backend: an answer, or a failure that is the backend's
// fault; not what the client or weir itself broke off, and no tunnels.
type Learner interface {
	// Learn takes one ended attempt. It is called concurrently, takes no lock
	// and allocates nothing; what it keeps is on the Backend.
	Learn(b *Backend, o Observation)
}

// Observation is one ended attempt.
type Observation struct {
	Now       Instant       // when it ended
	FirstByte time.Duration // from its begin to the answer's first byte; of a failure, how long it took
	Failed    bool          // no answer, or one that counts as a failure (500 and above but 503 with Retry-After)
}

// A Keyed is a Policy that places equal keys on equal backends. Callers compute
// a key only for those, and what else divides requests (tiers, zones) is
// decided by the key too, so that a key stays where it is.
type Keyed interface{ Keyed() bool }

// A Keeper is a Policy whose pickers hold members that health excludes and skip
// them, so that a change of health never rebuilds a table and moves no key
// between others.
type Keeper interface{ KeepsExcluded() bool }
