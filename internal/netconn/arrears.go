// SPDX-License-Identifier: Apache-2.0

package netconn

import "math"

// SetLeast says how many bytes the peer has to take within the time of a write
// deadline where that is prolonged because of what it takes: by Splice, under TLS, and by
// callers, which ask Least. 0: any progress counts. It is for the goroutine that
// writes.
func (c *Conn) SetLeast(n int64) { c.least = int32(min(max(n, 0), math.MaxInt32)) }

// Least is what SetLeast has set.
func (c *Conn) Least() int64 { return int64(c.least) }

// Arrears are by how much a peer lags behind the least that it has to take in the time of
// a write deadline. Every byte would be progress otherwise, and a peer that takes one now
// and then could hold what serves it for ever. It belongs to one writer.
//
// Worked example, with 7200 bytes in 30 s (240 a second): a peer that takes a byte a
// second owes 7170 bytes after 30 s and 14340 after 60 s: that is too much. One that
// takes nothing visible for 30 s but 20000 bytes in the next has caught up.
type Arrears struct {
	Least int64 // in the time of a deadline; 0 or less: any progress counts
	owed  int64
}

// Passed notes that a deadline has passed in which n bytes were taken, and reports that
// the peer is too slow.
func (a *Arrears) Passed(n int64) bool {
	if n == 0 {
		return true
	}
	if a.Least <= 0 {
		return false
	}
	a.owed = max(a.owed+a.Least-n, 0)
	return a.owed >= a.Least
}
