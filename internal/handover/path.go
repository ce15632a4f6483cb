// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Invoked returns the absolute path under which this process was started. It
// is to be asked at the start, before the file is replaced. Symbolic links stay
// in it, so that a link that is switched to another version is followed by the
// next process; os.Executable would name the file that it pointed to, and after
// a replacement a path that ends in " (deleted)".
func Invoked() (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("the running binary cannot be found: %w", err)
	}
	if len(os.Args) > 0 {
		if path, ok := named(os.Args[0], self); ok {
			return path, nil
		}
	}
	// The name was made up by whoever started the process.
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("the running binary cannot be found: %w", err)
	}
	return strings.TrimSuffix(path, " (deleted)"), nil
}

// named resolves argument 0 as a shell would, if that is the file that runs.
func named(arg string, self os.FileInfo) (string, bool) {
	path := arg
	if !strings.ContainsRune(arg, '/') {
		found, err := exec.LookPath(arg)
		if err != nil {
			return "", false
		}
		path = found
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", false
	}
	info, err := os.Stat(path)
	return path, err == nil && os.SameFile(info, self)
}

// Executable says why a file cannot be started; nil when it seems that it can.
func Executable(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s: give the whole path", path)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file", path)
	}
	const executable = 1 // X_OK
	if err := syscall.Access(path, executable); err != nil {
		if errors.Is(err, syscall.EACCES) {
			return fmt.Errorf("%s may not be executed by this user: chmod +x it", path)
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
