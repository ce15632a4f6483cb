// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"errors"
	"time"
)

// Endpoint is one backend as it was found. Two endpoints are the same backend
// when ID and URL are equal; Endpoint is comparable so that changes are seen.
type Endpoint struct {
	ID       string // unique within one Finding; of two, the first counts
	URL      string // scheme://host:port
	Weight   uint32 // share of the work, 0: no new work
	Zone     string // where it is; empty: not said
	Priority uint8  // tier, 0 the first
	Backup   bool   // with priority 0: a tier behind all others
}

// Finding is what one look at a source gave.
type Finding struct {
	// Endpoints is everything that the source lists now, in any order. It must
	// not be modified afterwards, by neither side. Empty: nothing usable was
	// found, and Err says why.
	Endpoints []Endpoint
	// Err is what went wrong; nil: nothing did. Beside Endpoints it says that the
	// finding is partial: for what could not be renewed the last good answer stands
	// in, or nothing.
	Err error
	// Next is when the source is looked at again, counted from now; 0: unknown.
	Next time.Duration
}

// ErrEmpty is wrapped by the Err of a finding that is no failure of the source
// but lists nobody: a name that does not exist, an answer without addresses, an
// empty file.
var ErrEmpty = errors.New("no endpoints")

// Source is a place where endpoints are listed.
//
// Run looks until the context ends and calls report for every look, from one
// goroutine at a time, never after it has returned. The whole promise:
//
//   - The first report comes as soon as the first look is over, whether it
//     succeeded or not, and within some seconds.
//   - Every look is reported, also one that found what the last one found:
//     a second look that agrees is what confirms a large change. Two reports of
//     one and the same answer out of some memory are not two looks.
//   - A look that fails is reported and followed by another one. Nothing but the
//     end of the context, or settings that can never work, ends Run; it then
//     returns the context's error, or what is wrong with the settings.
//   - Run returns soon after the context has ended, and leaves no goroutine, no
//     connection and no file behind.
//   - A source that a test or a program writes needs no damping, no memory of its
//     last good answer and no comparison of its own: Guard has them.
//
// A Source may be run again after Run has returned, but not twice at a time.
type Source interface {
	Run(ctx context.Context, report func(Finding)) error
}

// Static is a source that never changes. It is for tests and for programs that
// know their backends.
type Static []Endpoint

// Run implements Source: it reports the list once and waits.
func (s Static) Run(ctx context.Context, report func(Finding)) error {
	f := Finding{Endpoints: s}
	if len(s) == 0 {
		f.Err = ErrEmpty
	}
	report(f)
	<-ctx.Done()
	return ctx.Err()
}

// sleep waits and reports whether the time is over; false: the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
