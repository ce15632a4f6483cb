// SPDX-License-Identifier: Apache-2.0

// Package discover finds the backends of a pool while it runs: in a file, in
// DNS, or in whatever implements Source. It knows neither pools nor health; who
// uses it puts a Guard between a Source and a pool's membership.
//
//	Source ──Finding──▶ Guard ──Members──▶ pool.Update
//	(file.go, dns.go)   (guard.go, pure)
//
// Three rules hold everywhere. What is known stays until something better is
// known: a failure, an answer without endpoints and a file that does not parse
// change nothing but what is said about them. What is new is used at once. And
// what would take away more than half has to be found twice.
package discover
