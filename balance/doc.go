// SPDX-License-Identifier: Apache-2.0

// Package balance chooses one backend of a set.
//
// It is pure: no clock, no randomness of its own, no lock, no goroutine and no
// socket. Time and entropy arrive in the Request, so the L7 proxy, the L4
// proxy, the client libraries and the simulator run exactly this code.
//
// The contract in three types:
//
//   - a Set is an immutable list of members with their nominal weights;
//   - a Policy builds a Picker from a Set, whenever membership or a nominal
//     weight changes; building may be slow;
//   - a Picker answers Pick for every request: concurrent, lock-free, without
//     allocation and without a clock.
//
// What changes between two builds (requests in flight, the share that health
// grants, the operator's word) lives on the Backend, which survives from Set
// to Set by identity, and is read at pick time.
package balance
