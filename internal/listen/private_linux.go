// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// bindPrivate binds a socket file of mode 0600. It is made in a directory of
// its own and moved into place, so that there is no moment in which others
// could open it and none in which the path is missing. A file left by a
// process that is gone is replaced; one that answers is not.
func bindPrivate(path string) (*net.UnixListener, error) {
	if path == "" {
		return nil, errors.New("the path is empty")
	}
	if err := free(path); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); err == nil && !abandoned(path) {
		return nil, syscall.EADDRINUSE
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".weir-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // empty by then; left over it does no harm
	tmp := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(tmp, 0o600), os.Rename(tmp, path)); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}
