// SPDX-License-Identifier: Apache-2.0

package health

import (
	"time"

	"github.com/weirlb/weir/balance"
)

// Age says when something happened, or will, in a form that means the same to
// another process: nanoseconds before the export, negative for what lies after it.
// Zero: never. The instant of the export itself counts as a nanosecond earlier.
type Age int64

// ageMost bounds what an Age may say: a hundred years either way. More is no
// time that anybody measured.
const ageMost = Age(100 * 365 * 24 * time.Hour)

// AgeOf returns the age that an instant has at now.
func AgeOf(now, at balance.Instant) Age {
	if a := Age(now.Sub(at)); a != 0 {
		return a
	}
	return 1
}

// Known reports that it happened at all.
func (a Age) Known() bool { return a != 0 }

// Valid reports whether the age can be a measured one.
func (a Age) Valid() bool { return a >= -ageMost && a <= ageMost }

// At returns the instant, on the time line on which the export happened at base.
func (a Age) At(base balance.Instant) balance.Instant { return base.Add(-time.Duration(a)) }
