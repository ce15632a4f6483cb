// SPDX-License-Identifier: Apache-2.0

// Package engine turns a Plan into a running balancer: it builds, publishes,
// drains and retires.
//
// A Plan (package config) is text made into values. A Generation is what those
// values became: routing tables, handlers and references to pools, immutable
// once published through one atomic pointer that the data plane loads once per
// request. Pools, backends and sockets live longer than generations, in maps
// by name on the Engine; a generation only refers to them. So a change of
// configuration keeps health, counters and connections of all that stays.
//
// Apply is the one entrance for a Plan, at start as later: everything that can
// fail (binding, reading certificates, compiling routes) happens before
// anything of the new plan becomes visible.
//
// The engine is also the glue that no other package may be: it drives the
// pools' cores (pool.Driver), answers the admin API (admin.Controller), feeds
// the gauges (package observe), and says when the process is ready.
package engine
