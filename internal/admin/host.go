// SPDX-License-Identifier: Apache-2.0

package admin

import "time"

// Host is what the kernel says of the network namespace that weir runs in:
// whatever else runs there counts as well.
type Host struct {
	AcceptOverflows uint64 `json:"accept_overflows"` // connections lost to full accept queues since the machine started
	TimeWait        uint64 `json:"time_wait"`        // connections in TIME_WAIT
	// Destination is the backend's address with the fewest local ports left for
	// connections to it, and PortsFree how many those are; absent: unknown, or
	// there is none.
	Destination string `json:"destination,omitempty"`
	PortsFree   int    `json:"ports_free"`
}

// Memory is what weir may have of it and what it needs.
type Memory struct {
	Limit  int64 `json:"limit_bytes"`  // that the runtime keeps to; 0: none
	Needed int64 `json:"needed_bytes"` // that a garbage collection would not give back
	Short  bool  `json:"short"`        // new connections and requests are refused for it

	Buffered      int64 `json:"buffered_bytes"`       // held of requests and answers
	BufferedLimit int64 `json:"buffered_limit_bytes"` // limits.buffered; 0: no bound
}

// Certificate is one that a listener serves.
type Certificate struct {
	Name     string    `json:"name"`
	NotAfter time.Time `json:"not_after"` // zero: there is none yet
	ACME     bool      `json:"acme,omitempty"`
	Error    string    `json:"error,omitempty"` // of the last attempt to obtain it
}
