// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strconv"
	"sync/atomic"

	"github.com/weirlb/weir/internal/message"
)

// RetryOutcome says what became of a retry, or why there was none.
type RetryOutcome uint8

// The outcomes of weir_retries_total.
const (
	RetrySucceeded     RetryOutcome = iota // the retry brought an answer that is not on the route's list
	RetryFailed                            // the retry failed too, or was answered as what led to it
	RetryNoBudget                          // refused: the pool's budget was spent
	RetryNotReplayable                     // refused: bytes were sent and the request may not be repeated
	RetryNotAllowed                        // refused: attempts or time used up
	RetryTooLate                           // refused: hardly an answer of the pool's comes in the time that was left
	RetryRetriedBelow                      // refused: the answer says that a weir behind has retried, or declined to
	retryOutcomes
)

var retryOutcomeNames = [retryOutcomes]string{"success", "failure", "no_budget", "not_replayable", "not_allowed", "too_late", "retried_below"}

// Causes are reasons and, behind them, the statuses that retry.when may list.
var retryStatuses = [...]int{408, 425, 429, 500, 502, 503, 504}

// otherCause is a status that has no number of its own; gRPC's come behind it.
const (
	otherCause = int(message.Reasons) + len(retryStatuses)
	causes     = otherCause + 1 + int(message.GRPCStatuses)
)

// PoolSeries counts what belongs to a pool as a whole. All methods are safe
// for concurrent use and none locks or allocates.
type PoolSeries struct {
	name string // constant
	left int64  // as of RouteSeries; guarded by Metrics.mu

	size                      atomic.Int64 // backends at the last look; decides about per-backend series
	queue, connect, firstByte histogram
	retries                   [causes][retryOutcomes]atomic.Uint64
	redispatches              [message.Reasons]atomic.Uint64
	hedges                    [hedgeOutcomes]atomic.Uint64
	sticky                    [stickyOutcomes]atomic.Uint64
	tunnelled                 atomic.Bool // it has had one
	tunnelEnds                tunnelEnds
	streamEnds                [TunnelCauses]atomic.Uint64
}

// Retry counts a retry by what made it necessary: the reason an attempt ended,
// or, when status is not 0, an answer's status; gRPC's with GRPCCause added.
func (p *PoolSeries) Retry(cause message.Reason, status int, o RetryOutcome) {
	if o < retryOutcomes {
		p.retries[causeIndex(cause, status)][o].Add(1)
	}
}

// Redispatch counts an attempt that was made again because the one before had
// sent nothing.
func (p *PoolSeries) Redispatch(cause message.Reason) {
	if cause < message.Reasons {
		p.redispatches[cause].Add(1)
	}
}

func causeIndex(cause message.Reason, status int) int {
	if status != 0 {
		for i, s := range retryStatuses {
			if s == status {
				return int(message.Reasons) + i
			}
		}
		if g := status - GRPCCause; g >= 0 && g < int(message.GRPCStatuses) {
			return otherCause + 1 + g
		}
		return otherCause
	}
	return min(int(cause), otherCause)
}

func causeName(i int) string {
	switch {
	case i < int(message.Reasons):
		return message.Reason(i).String()
	case i > otherCause:
		return grpcCauseName(i - otherCause - 1)
	case i < otherCause:
		return strconv.Itoa(retryStatuses[i-int(message.Reasons)])
	default:
		return "other"
	}
}
