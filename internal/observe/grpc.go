// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"sync/atomic"

	"github.com/weirlb/weir/internal/message"
)

// CallStatus is how a gRPC call ended, for records. The zero value: the request
// was none.
type CallStatus uint8

// CallWithout is a call that ended without a status: the client left, or was cut
// off, or the backend's answer had none.
const CallWithout = CallStatus(message.GRPCStatuses) + 1

// CallEnded is a call that ended with a status.
func CallEnded(s message.GRPCStatus) CallStatus {
	if s >= message.GRPCStatuses {
		s = message.GRPCUnknown
	}
	return CallStatus(s) + 1
}

// String returns gRPC's name of the status, such as UNAVAILABLE, "none" for
// CallWithout, and "" where there was no call.
func (c CallStatus) String() string {
	switch {
	case c == 0:
		return ""
	case c >= CallWithout:
		return "none"
	default:
		return message.GRPCStatus(c - 1).String()
	}
}

// calls counts by status; the zero status is not counted.
type calls [CallWithout + 1]atomic.Uint64

var descCalls = desc("weir_grpc_calls_total", "gRPC calls finished, by the status that the client was given; none: it was given none. weir_requests_total counts them, too.", "listener", "route", "pool", "grpc_status")

func (s sink) calls(r *RouteSeries) {
	for c := CallEnded(message.GRPCOK); c <= CallWithout; c++ {
		if n := r.calls[c].Load(); n > 0 {
			s.counter(descCalls, n, r.listener, r.route, r.pool.name, c.String())
		}
	}
}

// GRPCCause marks a status that is given to PoolSeries.Retry as one of gRPC: it is
// added to it.
const GRPCCause = 1000

// grpcCauses are the statuses of gRPC behind the other causes, as retry.when names
// them.
func grpcCauseName(i int) string {
	return "grpc_" + strings.ToLower(message.GRPCStatus(i).String())
}
