// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"github.com/weirlb/weir/health"
)

// Saved is what a pool knows, for the process that comes after this one. Times in
// it are ages at the export. It is a plain value without pointers into the pool
// and encodes to JSON without loss; fields that are added later are zero in what
// an older version wrote, which means that nothing is known.
type Saved struct {
	// Overrides is the operator's word, sorted by id, those about backends that are
	// away included.
	Overrides []SavedOverride `json:"overrides,omitempty"`
}

// SavedOverride is the operator's word about one id.
type SavedOverride struct {
	ID          string     `json:"id"`
	Admin       string     `json:"admin,omitempty"` // draining, disabled; empty: not overridden
	AdminSince  health.Age `json:"admin_since,omitempty"`
	DeadlineNS  int64      `json:"deadline_ns,omitempty"` // of the drain; 0: the pool's
	Weight      *uint32    `json:"weight,omitempty"`
	WeightSince health.Age `json:"weight_since,omitempty"`
}

// Restored says what became of a Saved.
type Restored struct {
	Backends  int      // that know what they knew
	Unknown   int      // that the pool does not have
	Overrides int      // in force, or waiting for their backend to come back
	Refused   []string // what cannot be true, one line each; nothing of it was used
}
