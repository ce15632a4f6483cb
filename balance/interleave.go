// SPDX-License-Identifier: Apache-2.0

package balance

import "container/heap"

// interleave lays out turns so that after any k of them each member has had
// less than one turn more or less than k x weight / sum: as smooth as whole
// turns can be. (nginx's smooth weighted round robin is smooth too, but costs
// members x turns to lay out: minutes for ten thousand weighted members.)
//
// The j-th turn of a member (from 0) is not to come before
// floor(j x sum / weight) and must be over by ceil((j+1) x sum / weight). Taking,
// at each place, the turn that must be over first among those that may come
// misses no deadline (S. Baruah, N. Cohen, C. Plaxton, D. Varvel, "Proportionate
// progress: a notion of fairness in resource allocation", Algorithmica 15, 1996;
// with one resource the earliest deadline is enough).
//
// Example: weights 5, 1, 1, sum 7. The first member's turns may lie in 0-1, 1-2,
// 2-4, 4-5 and 5-6 (inclusive), the others' anywhere: a a a b a a c.
//
// Equal weights give the members in their order. Members must have a weight.
func interleave(weights []uint64) []uint32 {
	var sum uint64
	for _, w := range weights {
		sum += w
	}
	turns := make([]uint32, 0, sum)
	// due[t] heads the list of members whose next turn may come from t on.
	const none = ^uint32(0)
	due := make([]uint32, sum)
	for t := range due {
		due[t] = none
	}
	after := make([]uint32, len(weights))
	for i := range weights {
		after[i] = none
	}
	had := make([]uint64, len(weights))
	ready := make(deadlines, 0, len(weights))
	for i, w := range weights {
		ready = append(ready, deadline{ceilDiv(sum, w), uint32(i)})
	}
	heap.Init(&ready)
	for t := range sum {
		for i := due[t]; i != none; i = after[i] {
			heap.Push(&ready, deadline{ceilDiv((had[i]+1)*sum, weights[i]), i})
		}
		if len(ready) == 0 {
			break // cannot be: the windows can always be met
		}
		i := heap.Pop(&ready).(deadline).member
		turns = append(turns, i)
		had[i]++
		if had[i] < weights[i] {
			// A turn that may come again only later, or at the next place.
			from := max(had[i]*sum/weights[i], t+1)
			after[i] = due[from]
			due[from] = i
		}
	}
	return turns
}

func ceilDiv(a, b uint64) uint64 { return (a + b - 1) / b }

type deadline struct {
	at     uint64
	member uint32
}

// deadlines is a heap, earliest first, in members' order where equal.
type deadlines []deadline

func (d deadlines) Len() int { return len(d) }
func (d deadlines) Less(i, j int) bool {
	if d[i].at != d[j].at {
		return d[i].at < d[j].at
	}
	return d[i].member < d[j].member
}
func (d deadlines) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(v any)   { *d = append(*d, v.(deadline)) }
func (d *deadlines) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
