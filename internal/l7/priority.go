// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
)

// priorityName is the field by which weirs tell each other how much a request
// matters: low, normal or high. Of others than trusted weirs it is removed, as all
// X-Weir-* fields are; otherwise every client would be the most important one.
const priorityName = "X-Weir-Priority"

// readPriority takes the word of a trusted weir from line i. The line stays: those
// behind this one hear it too. A word that is none of the three says nothing.
func (e *exchange) readPriority(f *message.Fields, i int) {
	for p := range balance.Priorities {
		if message.EqualFold(f.Value(i), p.String()) {
			e.breq.Priority, e.told = p, true
			return
		}
	}
}

// prioritize gives the request the route's priority unless a weir in front has
// said another, and says it to weirs behind.
func (e *exchange) prioritize() {
	if e.told || e.rt.Priority == balance.NormalPriority {
		return
	}
	e.breq.Priority = e.rt.Priority
	if e.rt.Weir {
		e.req.Fields.Add(message.WeirAny, priorityName, e.rt.Priority.String())
	}
}
