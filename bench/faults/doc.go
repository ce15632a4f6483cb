// SPDX-License-Identifier: Apache-2.0

// Command faults injects faults into the backends of the built weir, with nginx
// and HAProxy beside it, configured as their own documentation advises, and
// holds weir to what it promises.
//
//	make faults                                    # everything, under 30 minutes
//	go run ./bench/faults -list
//	go run ./bench/faults -scenario kill,storm -only weir -short
//
// A case is a scripted timeline: backends (child processes of this program,
// told what to do over their standard input), one balancer before them, and an
// open-loop client that sends requests with ids at their due instants whatever
// becomes of those before. A backend writes each request down in a file, so that
// what it did outlives kill -9, and how often a request was executed is counted
// and not guessed. The balancers of one case run at the same time, each with
// backends of its own, so that what the machine does to one it does to all.
//
// The program exits with 1 when weir does not hold a promise. Those are checked
// for the others too and printed, but decide nothing.
//
// Results are saved as text and JSON, and the tables of docs/resilience.md are
// made of them.
package main
