// SPDX-License-Identifier: Apache-2.0

// Package pool is one group of backends: membership, health, policy, limits
// and the retry budget, put together into a snapshot that every request reads.
// Stage 4 of 5; receives a placed request from l7 or l4; hands a lease on one
// backend to upstream.
//
//	          Update  Override  probe results   thresholds crossed   time
//	             \       |          |              |                 /
//	              v      v          v              v                v
//	            ┌──────────────────────────────────────────────────────┐
//	state.go    │ core.Step(now, event) -> effects                     │  pure
//	            └──────────────────────────────────────────────────────┘
//	                 | publish              | probe, close idle, gone, notice
//	                 v                      v
//	 requests:  one atomic pointer        Driver (the engine)
//	 Pick -> Lease -> Done: atomics on the backend, no lock, no allocation
//
// Who may call what from where: Pick, Wait, Done, Next and BeginRequest from
// any goroutine; Update, Override and Snapshot from any goroutine too (they
// take the core's lock for microseconds and never wait for the Driver). The
// Driver is called from the pool's own goroutine only, except Attach, which is
// called under the core's lock and must not call back.
//
// Only run.go knows a clock, timers and goroutines. A simulation leaves out
// Start and calls Advance instead.
package pool
