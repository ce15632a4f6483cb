// SPDX-License-Identifier: Apache-2.0

package balance

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
// Equal weights give the members in their order. No weight may be 0, and the sum
// must stay below 2^32.
func interleave(weights []uint64) []uint32 {
	var sum uint64
	for _, w := range weights {
		sum += w
	}
	turns := make([]uint32, 0, sum)
	if sum == uint64(len(weights)) {
		for i := range weights {
			turns = append(turns, uint32(i))
		}
		return turns
	}
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
	ready := make(minHeap, 0, len(weights))
	enter := func(i uint32) {
		over := ceilDiv((had[i]+1)*sum, weights[i])
		ready.push(over<<32 | uint64(i)) // earliest first, then in members' order
	}
	for i := range weights {
		enter(uint32(i))
	}
	for t := range sum {
		for i := due[t]; i != none; i = after[i] {
			enter(i)
		}
		i := uint32(ready.pop())
		turns = append(turns, i)
		if had[i]++; had[i] < weights[i] {
			from := max(had[i]*sum/weights[i], t+1)
			after[i] = due[from]
			due[from] = i
		}
	}
	return turns
}

func ceilDiv(a, b uint64) uint64 { return (a + b - 1) / b }

// minHeap is a binary heap of numbers. container/heap would box each of them.
type minHeap []uint64

func (h *minHeap) push(v uint64) {
	*h = append(*h, v)
	s := *h
	i := len(s) - 1
	for i > 0 && v < s[(i-1)/2] {
		s[i] = s[(i-1)/2]
		i = (i - 1) / 2
	}
	s[i] = v
}

// pop removes and returns the least; the heap must not be empty.
func (h *minHeap) pop() uint64 {
	s := *h
	least, v := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	i := 0
	for {
		child := 2*i + 1
		if child+1 < len(s) && s[child+1] < s[child] {
			child++
		}
		if child >= len(s) || v <= s[child] {
			break
		}
		s[i] = s[child]
		i = child
	}
	if len(s) > 0 {
		s[i] = v
	}
	return least
}
