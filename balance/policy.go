// SPDX-License-Identifier: Apache-2.0

package balance

// A Policy turns a Set into a Picker. Implementations are stateless values or
// hold configuration only; state that must survive a rebuild (a round-robin
// cursor) lives in the Policy as an atomic, never in the Picker.
type Policy interface {
	// Name is the policy's name in configuration, e.g. "p2c".
	Name() string
	// Build returns a Picker over the set. It is called on every change of
	// membership or nominal weight, never concurrently for one Policy, and may
	// take milliseconds. The Set is immutable and may be kept.
	Build(*Set) Picker
}

// A Picker chooses a backend. Pick is called concurrently, takes no lock,
// allocates nothing and reads no clock.
type Picker interface {
	// Pick chooses a backend that may take new work, or returns false when none
	// may. It does not reserve: the caller does (Backend.Reserve), and picks
	// again with the refused backend in Request.Tried when the reservation
	// fails. A backend in Tried is chosen only when no other candidate remains,
	// one that is unreachable only when every other has been tried, one that is
	// full only when all that are left are full, one that is suspect only when no
	// other has room. So a full answer means that nobody has room (or that those
	// who have are unreachable or tried), and the caller need not ask again.
	Pick(Request) (*Backend, bool)
}

// Member is one backend of a Set with its nominal weight.
type Member struct {
	Backend *Backend
	Weight  uint32 // nominal weight; 0 means no new work
}

// Set is an immutable list of members. Nothing in it changes after NewSet;
// what changes lives on the Backends.
type Set struct {
	members  []Member
	instance uint64
	panicked bool
	part     uint64
}

// NewSet copies members into a Set. instance differs between balancers (a hash
// of host and process) and spreads their round-robin starts. With panicked the
// share of members is ignored: a share of 0 is admitted (draining and disabled
// never are).
func NewSet(members []Member, instance uint64, panicked bool) *Set {
	return &Set{members: append([]Member(nil), members...), instance: instance, panicked: panicked}
}

// Of says that the set is one of several that a Policy builds pickers over at
// the same time, tiers and zones of one pool, and which: what a Policy keeps from
// build to build it keeps for each part. It returns s, and is called before s is
// given to anybody.
func (s *Set) Of(part uint64) *Set {
	s.part = part
	return s
}

// Members returns the members in order. The caller must not change the slice.
func (s *Set) Members() []Member { return s.members }

// Len returns the number of members, those with weight 0 included.
func (s *Set) Len() int { return len(s.members) }

// Instance returns the balancer's own number.
func (s *Set) Instance() uint64 { return s.instance }

// Panicked reports whether health is being ignored (S4 in the semantics: in
// panic, opinions are distrusted, facts are not).
func (s *Set) Panicked() bool { return s.panicked }
