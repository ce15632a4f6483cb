// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
)

// grpcStatuses are the statuses of gRPC that may pass by another attempt, by what
// retry.when calls them.
var grpcStatuses = map[string]int{
	"grpc_cancelled": 1, "grpc_unknown": 2, "grpc_deadline_exceeded": 4, "grpc_resource_exhausted": 8,
	"grpc_aborted": 10, "grpc_internal": 13, "grpc_unavailable": 14, "grpc_data_loss": 15,
}

const grpcRange = "grpc_unavailable, grpc_resource_exhausted, grpc_aborted, grpc_internal, grpc_unknown, grpc_deadline_exceeded, grpc_cancelled, grpc_data_loss"

// grpcFinal are those that another attempt does not change.
var grpcFinal = []string{
	"grpc_ok", "grpc_invalid_argument", "grpc_not_found", "grpc_already_exists", "grpc_permission_denied",
	"grpc_failed_precondition", "grpc_out_of_range", "grpc_unimplemented", "grpc_unauthenticated",
}

// grpcWhen reads a gRPC status in retry.when.
func grpcWhen(text string) (string, string, string) {
	if _, ok := grpcStatuses[text]; ok {
		return text, "", ""
	}
	if slices.Contains(grpcFinal, text) {
		return "", text + " is not retried: it is an answer", "remove it"
	}
	low := strings.ToLower(text)
	if _, ok := grpcStatuses[low]; ok && low != text {
		return "", quote(text) + " is not known here", "write " + low
	}
	return "", quote(text) + " is no status of gRPC", "use " + grpcRange
}
