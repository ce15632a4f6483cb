// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/weirlb/weir/balance"
)

// descriptorReserve is kept free for the admin and status binds, probes and
// files when the ceiling on client connections is computed (S17).
const descriptorReserve = 64

// memoryShare is the part of the control group's limit that the runtime is
// told about; the rest is for the kernel's buffers and for threads.
const memoryShare = 0.9

// Machine is what the process learns about where it runs. It is gathered once,
// at start.
type Machine struct {
	Instance    uint64 // this balancer's own number, never zero
	Files       uint64 // RLIMIT_NOFILE after it was raised; 0 when unknown
	MemoryLimit int64  // GOMEMLIMIT that was set from the control group; 0 for none
}

// PrepareMachine raises RLIMIT_NOFILE to its hard limit and sets GOMEMLIMIT to
// 90 % of the control group's memory limit, unless the environment sets it. It
// changes the whole process, so only commands call it, before New.
func PrepareMachine() Machine {
	m := Machine{Instance: instanceNumber(), Files: raiseFiles()}
	if os.Getenv("GOMEMLIMIT") == "" {
		if limit := findMemoryGroup(os.DirFS("/")).limit; limit > 0 {
			m.MemoryLimit = int64(float64(limit) * memoryShare)
			debug.SetMemoryLimit(m.MemoryLimit)
		}
	}
	return m
}

// instanceNumber differs between balancers, so that a fleet does not start its
// rotations at the same backend.
func instanceNumber() uint64 {
	host, err := os.Hostname()
	if err != nil {
		host = "" // the process number alone still tells processes of one host apart
	}
	return uint64(balance.IDOf(host + "/" + strconv.Itoa(os.Getpid())))
}

func raiseFiles() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	if l.Cur < l.Max {
		up := syscall.Rlimit{Cur: l.Max, Max: l.Max}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &up) == nil {
			return up.Cur
		}
	}
	return l.Cur
}

// maxConnections resolves limits.max_connections: 0 (auto) is 80 % of half the
// descriptors, because each client connection may need one to a backend.
func maxConnections(configured int64, files uint64) int {
	if configured > 0 {
		return int(min(configured, math.MaxInt))
	}
	if files == 0 || files > math.MaxInt32 {
		files = math.MaxInt32
	}
	n := int64(files) * 8 / 10 / 2
	if most := (int64(files) - descriptorReserve) / 2; n > most {
		n = most
	}
	return int(max(n, 1))
}

// readLimit reads one limit file; "max", absence and version 1's "no limit"
// (a number near 2^63) count as none.
func readLimit(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 || n >= 1<<60 {
		return 0
	}
	return n
}
