// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
)

// fleet is a pool in virtual time: requests arrive at random, each server works
// on some at once and queues the others, answers teach the policy. It is as
// small as it can be; the tests of policies that learn need one.
type fleet struct {
	policy  balance.Policy
	picker  balance.Picker
	members []balance.Member
	servers []*server
	dice    *rand.Rand
	work    func(d *rand.Rand) time.Duration // what a request takes at speed 1
	gap     time.Duration                    // mean time between arrivals
	now     balance.Instant
	ends    ends
	seen    func(i int, took time.Duration, failed bool) // of every answer; may be nil
}

type server struct {
	speed   float64
	workers int
	black   bool // fails after 1 ms, whatever it is asked
	busy    int
	queue   []job
	picked  int
}

type job struct {
	at     balance.Instant // when it is over
	began  balance.Instant
	server int
	work   time.Duration
	failed bool
}

// ends is a heap of jobs by when they end.
type ends []job

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(job)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// newFleet returns n servers of speed 1 that work on two requests at once, each
// of exponential work of 50 ms on average, and arrivals that keep them busy at
// that load.
func newFleet(policy balance.Policy, n int, load float64, seed uint64) *fleet {
	f := &fleet{
		policy: policy, dice: rand.New(rand.NewPCG(seed, 50)),
		work: func(d *rand.Rand) time.Duration { return time.Duration(d.ExpFloat64() * 50e6) },
		gap:  time.Duration(50e6 / 2 / float64(n) / load),
	}
	for range n {
		f.join()
	}
	return f
}

// join adds a server and rebuilds the picker.
func (f *fleet) join() *server {
	f.members = append(members(len(f.members) + 1)[:0:0], f.members...)
	f.members = append(f.members, members(len(f.members) + 1)[len(f.members)])
	f.servers = append(f.servers, &server{speed: 1, workers: 2})
	f.picker = f.policy.Build(balance.NewSet(f.members, 1, false))
	return f.servers[len(f.servers)-1]
}

// run plays requests for a time and returns how long those took that were
// answered in it, sorted.
func (f *fleet) run(d time.Duration) (took []time.Duration) {
	until := f.now.Add(d)
	for _, s := range f.servers {
		s.picked = 0
	}
	next := f.now.Add(time.Duration(f.dice.ExpFloat64() * float64(f.gap)))
	for {
		if len(f.ends) > 0 && f.ends[0].at <= min(next, until) {
			j := heap.Pop(&f.ends).(job)
			f.now = j.at
			if !j.failed {
				took = append(took, j.at.Sub(j.began))
			}
			f.done(j)
			continue
		}
		if f.now = min(next, until); f.now == until {
			slices.Sort(took)
			return took
		}
		f.arrive()
		next = f.now.Add(time.Duration(f.dice.ExpFloat64() * float64(f.gap)))
	}
}

func (f *fleet) arrive() {
	b, _ := f.picker.Pick(balance.Request{Rand: f.dice.Uint64(), Now: f.now})
	b.Reserve()
	i := slices.IndexFunc(f.members, func(m balance.Member) bool { return m.Backend == b })
	s := f.servers[i]
	s.picked++
	j := job{began: f.now, server: i, work: f.work(f.dice)}
	switch {
	case s.black:
		j.at, j.failed = f.now.Add(time.Millisecond), true
		heap.Push(&f.ends, j)
	case s.busy < s.workers:
		f.begin(j)
	default:
		s.queue = append(s.queue, j)
	}
}

func (f *fleet) begin(j job) {
	s := f.servers[j.server]
	s.busy++
	j.at = f.now.Add(time.Duration(float64(j.work) / s.speed))
	heap.Push(&f.ends, j)
}

func (f *fleet) done(j job) {
	b, s, took := f.members[j.server].Backend, f.servers[j.server], j.at.Sub(j.began)
	b.Release()
	if j.failed {
		b.Charge(f.now, 50*time.Millisecond, took) // as the pool does
	}
	if l, ok := f.policy.(balance.Learner); ok {
		l.Learn(b, balance.Observation{Now: f.now, FirstByte: took, Failed: j.failed})
	}
	if f.seen != nil {
		f.seen(j.server, took, j.failed)
	}
	if j.failed {
		return
	}
	if s.busy--; len(s.queue) > 0 {
		f.begin(s.queue[0])
		s.queue = s.queue[1:]
	}
}

// share returns what a server got since run began, as part of what is fair.
func (f *fleet) share(i int) float64 {
	sum := 0
	for _, s := range f.servers {
		sum += s.picked
	}
	return float64(f.servers[i].picked) * float64(len(f.servers)) / float64(sum)
}

func p99(took []time.Duration) time.Duration { return took[len(took)*99/100] }
