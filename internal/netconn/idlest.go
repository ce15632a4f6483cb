// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"cmp"
	"slices"

	"github.com/weirlb/weir/balance"
)

// Idle is a client connection on which nothing is under way.
type Idle struct {
	Since balance.Instant // from when on it has been so
	// End ends it unless something is under way by now, and reports whether its
	// descriptor is free in a moment. A client that must be told first, as one of
	// HTTP/2, is told, and the report is false.
	End func() bool
}

// Idlest gathers those of many connections that have been idle for longest: at most
// Most, and only such as have been so since Before. Both are set before the first
// Offer. It is for one goroutine at a time.
type Idlest struct {
	Most   int
	Before balance.Instant
	list   []Idle // the longest idle first
}

// Wants reports whether a connection would be kept: what it costs to describe
// others is saved.
func (x *Idlest) Wants(since balance.Instant) bool {
	return since < x.Before && (len(x.list) < x.Most || x.Most > 0 && since < x.list[len(x.list)-1].Since)
}

// Offer keeps a connection if it is one of the idlest so far.
func (x *Idlest) Offer(i Idle) {
	if !x.Wants(i.Since) {
		return
	}
	at, _ := slices.BinarySearchFunc(x.list, i, func(a, b Idle) int { return cmp.Compare(a.Since, b.Since) })
	if len(x.list) == x.Most {
		x.list = x.list[:len(x.list)-1]
	}
	x.list = slices.Insert(x.list, at, i)
}

// List returns them, the longest idle first.
func (x *Idlest) List() []Idle { return x.list }
