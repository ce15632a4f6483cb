// SPDX-License-Identifier: Apache-2.0

package health

// Overload says what counts as a sign of overload, and how far the share of an
// overloaded backend may sink. The zero value is off.
type Overload struct {
	Enabled       bool
	RetryAfter503 bool    // an answer of 503 with Retry-After
	TooMany429    bool    // an answer of 429; usually that is per client, and neutral
	ORCA          bool    // a load report above LoadLimit, in answers and probes
	GRPCExhausted bool    // gRPC RESOURCE_EXHAUSTED; the data plane reads it
	QueueFull     bool    // requests refused because the backend was at its limit
	Floor         float64 // the least share, above 0 and at most 1; 0: 0.1
}
