// SPDX-License-Identifier: Apache-2.0

//go:build unix

package observe

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// duplicate returns a second descriptor of f's file.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("access log: %s: %w", f.Name(), err)
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(old uintptr) {
		fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3)
	}); err != nil {
		return nil, fmt.Errorf("access log: %s: %w", f.Name(), err)
	}
	if dupErr != nil {
		return nil, fmt.Errorf("access log: %s: %w", f.Name(), dupErr)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
