// SPDX-License-Identifier: Apache-2.0

// Package sim runs weir's own balancing core in virtual time: the pools are
// real pool.Pools with their policies, health, limits, queues and retry
// budgets; what is around them (clients, networks, servers) is modelled.
//
//	Traffic -> call -> Balancer (a real pool.Pool) -> call -> Server
//	   |                   |                            |
//	arrivals,           Pick, Wait, Done, Next,     concurrency, queue,
//	timeouts, own       probes, Advance             speed, pauses, faults
//	retries             |
//	                    +-> or another Balancer: layers
//
// A World has a seed, a clock and one queue of events, ordered by time and then
// by the order in which they were planned. Everything that happens is an event
// or follows from one at the same instant; nothing runs at the same time. Chance
// comes from named streams and, for a request, from the request's own number: so
// one more client changes no server's draws, and the same request costs the same
// on whichever server a policy places it. The same seed and the same calls give
// the same run, byte for byte.
//
// A World and all that belongs to it are used by one goroutine. Worlds share
// nothing, so different ones may run at the same time.
//
//	w := sim.NewWorld(1)
//	w.AddServer(sim.ServerConfig{ID: "a", Service: sim.Exponential(50 * time.Millisecond)})
//	w.AddServer(sim.ServerConfig{ID: "b", Service: sim.Exponential(50 * time.Millisecond)})
//	lb := w.AddBalancer(sim.BalancerConfig{})
//	w.AddTraffic(sim.Traffic{To: []*sim.Balancer{lb}, Rate: 28, Limit: 5000})
//	w.Finish(time.Hour)
//	p99 := w.Stats().Latency.Quantile(0.99)
//
// Requests cost what a server's service time and the request's size say; probes
// and the network cost nothing unless told to. What is left out: bytes and
// bandwidth, TLS, TCP's own retransmissions, name resolution, and the balancer's
// own processor time.
package sim
