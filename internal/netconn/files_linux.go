// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"sync/atomic"
	"syscall"
)

// Reserve is how many of the process's descriptors connections and the pipes
// between them never take: administration, probes and files have them.
const Reserve = 64

// Files says which descriptors are reserved. The limit is asked for once, and
// again when it seems to be reached: whoever raises RLIMIT_NOFILE of a process
// that runs out (prlimit) need not restart it. The zero value is ready; it is
// safe for concurrent use.
type Files struct {
	limit atomic.Int64 // 0: not asked yet, -1: none or unknown
}

// Reserved reports whether a descriptor is one of the last Reserve that the
// process may have. Descriptors are the lowest that are free, so a fresh one
// tells how many are taken. Of 2 x Reserve or fewer none is reserved: too little
// would be left.
func (f *Files) Reserved(fd int) bool {
	limit := f.limit.Load()
	if limit == 0 {
		limit = f.Look()
	}
	if limit < 0 || int64(fd) < firstReserved(limit) {
		return false
	}
	limit = f.Look()
	return limit > 2*Reserve && int64(fd) >= firstReserved(limit)
}

// Look asks for the limit again, and returns it; -1: none.
func (f *Files) Look() int64 {
	limit := int64(FileLimit())
	if limit == 0 {
		limit = -1
	}
	f.limit.Store(limit)
	return limit
}

func firstReserved(limit int64) int64 {
	if limit > 2*Reserve {
		return limit - Reserve
	}
	return limit // no descriptor has that number, unless the limit was raised
}

// Descriptor returns the number of a socket's descriptor, -1 when it has none.
func Descriptor(c syscall.Conn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1
	}
	n := -1
	_ = raw.Control(func(fd uintptr) { n = int(fd) }) // on a closed socket it stays -1
	return n
}

// FileLimit returns how many descriptors the process may have (RLIMIT_NOFILE);
// 0 when that is unknown or not bounded.
func FileLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > 1<<30 {
		return 0
	}
	return int(l.Cur)
}
