// SPDX-License-Identifier: Apache-2.0

// Package health turns evidence about one backend into a verdict: a state, an
// admission share between 0 and 1, and the reason that binds it.
//
// Evidence comes from two sides. Probes (Active) carry the backend's own word,
// real traffic (Passive) carries what clients saw. The rules of precedence:
//
//   - a probe that was answered "not ready" is the backend's own word and is
//     never outvoted;
//   - a probe that got no answer is outvoted by a real request that began
//     after the probe was sent and succeeded;
//   - a refused connection is a fact, not an opinion;
//   - signs of overload (Overload) are no failure: they shrink the share between
//     its floor and 1 and never take a backend out.
//
// Shares combine as the least of what each side grants, and the reason names the
// one that binds. A Pressure holds what overload leaves; SuccessRate and Latency
// find the outliers of a pool in samples of all its backends.
//
// A Machine holds the verdict of one backend. It is pure: no clock, no timer,
// no randomness, no goroutine; instants arrive as arguments. It is not safe
// for concurrent use; the core of package pool owns all machines of a pool.
//
// What needs to know the other backends of a pool (how many may be ejected,
// panic, floor) lives in package pool.
package health
