// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// listenUnix binds a socket file of mode 0600. It is made in a directory of
// its own and moved into place, so that there is no moment in which others
// could open it and none in which the path is missing. A file left by a
// process that is gone is replaced; one that answers is not.
func listenUnix(path string) (net.Listener, func(), error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, nil, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, nil, fmt.Errorf("%s exists and is no socket", path)
	default:
		c, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			return nil, nil, errors.Join(syscall.EADDRINUSE, c.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, nil, err
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".weir-")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // empty by then; left over it does no harm
	tmp := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(tmp, 0o600), os.Rename(tmp, path)); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	ours, err := os.Lstat(path)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return &unixListener{l, path}, func() {
		// Only if a successor has not taken the path meanwhile.
		if now, err := os.Lstat(path); err == nil && os.SameFile(ours, now) {
			_ = os.Remove(path) // a stale file does no harm
		}
	}, nil
}

// unixListener answers with the path that it was moved to.
type unixListener struct {
	*net.UnixListener
	path string
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }
