// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// CheckFolder says why no file can be made in a folder; nil if one can. It leaves
// none. Permissions alone do not tell: they let root make files in /proc, and
// anybody in a folder that is mounted to be read only.
func CheckFolder(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, logFilePerm)
	if err == nil {
		return unix.Close(fd)
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	f, err := os.CreateTemp(dir, ".weir-check-*") // a file system without files that have no name
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err // the name means nothing to whoever reads it
		}
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
