// SPDX-License-Identifier: Apache-2.0

package message

import "strconv"

// GRPCStatus is the status of a gRPC call, as grpc-status says it
// (https://github.com/grpc/grpc/blob/master/doc/statuscodes.md). The zero value
// is OK.
type GRPCStatus uint8

// The statuses.
const (
	GRPCOK GRPCStatus = iota
	GRPCCancelled
	GRPCUnknown
	GRPCInvalidArgument
	GRPCDeadlineExceeded
	GRPCNotFound
	GRPCAlreadyExists
	GRPCPermissionDenied
	GRPCResourceExhausted
	GRPCFailedPrecondition
	GRPCAborted
	GRPCOutOfRange
	GRPCUnimplemented
	GRPCInternal
	GRPCUnavailable
	GRPCDataLoss
	GRPCUnauthenticated
	// GRPCStatuses is the number of statuses, for arrays indexed by GRPCStatus.
	GRPCStatuses
)

var grpcNames = [GRPCStatuses]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
	"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

// String returns the status as gRPC writes it, such as UNAVAILABLE.
func (s GRPCStatus) String() string {
	if s < GRPCStatuses {
		return grpcNames[s]
	}
	return strconv.Itoa(int(s))
}

// ParseGRPCStatus reads a value of grpc-status: a decimal number without a sign.
// What is none, or is not defined, is UNKNOWN, as gRPC's libraries have it.
func ParseGRPCStatus(v []byte) GRPCStatus {
	n := 0
	for _, c := range v {
		if c < '0' || c > '9' || n > 99 {
			return GRPCUnknown
		}
		n = n*10 + int(c-'0')
	}
	if len(v) == 0 || n >= int(GRPCStatuses) {
		return GRPCUnknown
	}
	return GRPCStatus(n)
}

// GRPCFromHTTP is the status that a client makes of an HTTP status without a
// grpc-status (https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md).
func GRPCFromHTTP(status int) GRPCStatus {
	switch status {
	case 400:
		return GRPCInternal
	case 401:
		return GRPCUnauthenticated
	case 403:
		return GRPCPermissionDenied
	case 404:
		return GRPCUnimplemented
	case 429, 502, 503, 504:
		return GRPCUnavailable
	default:
		return GRPCUnknown
	}
}

// GRPC is the status that weir ends a gRPC call with for the reason. It is what a
// client makes of Status, but where gRPC has a word that says more:
// DEADLINE_EXCEEDED for a time that ran out while a backend may have been at work,
// so that the call is not taken for one that can be made again without harm, and
// RESOURCE_EXHAUSTED for what one client has too much of.
func (r Reason) GRPC() GRPCStatus {
	switch r {
	case OK:
		return GRPCOK
	case ClientAbort:
		return GRPCCancelled
	case ResponseTimeout, RequestTimeout, DeadlineExceeded, BodyTimeout, WriteTimeout:
		return GRPCDeadlineExceeded
	case BodyTooLarge, HeaderTooLarge, URITooLong, RateLimited:
		return GRPCResourceExhausted
	case MaxAge, Misdirected, Rebalanced: // to be asked again, on another connection
		return GRPCUnavailable
	default:
		return GRPCFromHTTP(r.Status())
	}
}
