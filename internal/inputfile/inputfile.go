// SPDX-License-Identifier: Apache-2.0

// Package inputfile reads the files that a configuration names. A running
// balancer reads them again at each reload, under its lock: a pipe that nobody
// writes into, or a device that never ends, must cost an error there, not the
// process.
package inputfile

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Patience is how long a writer of a pipe is waited for.
const Patience = 10 * time.Second

// Most bounds certificates and keys, in bytes: a bundle of all public
// authorities is a quarter of a MiB.
const Most = 16 << 20

// ErrTooLarge is returned by Read, wrapped.
var ErrTooLarge = errors.New("too large")

// Head returns the first n bytes of a file, or all there are. A pipe without a
// writer is empty; one whose writer does not finish within Patience is an
// os.ErrDeadlineExceeded. Errors are *fs.PathError, as of os.ReadFile.
func Head(path string, n int64) ([]byte, error) { return head(path, n, Patience) }

func head(path string, n int64, patience time.Duration) ([]byte, error) {
	// Opening a pipe to read waits for a writer, unless it is asked not to.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()                // only read from
	_ = f.SetReadDeadline(time.Now().Add(patience)) // regular files have none, and need none
	return io.ReadAll(io.LimitReader(f, n))
}

// Read returns what a file holds, as os.ReadFile does; more than most bytes are
// an ErrTooLarge. Else it is as Head.
func Read(path string, most int64) ([]byte, error) {
	text, err := Head(path, most+1)
	if err == nil && int64(len(text)) > most {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)}
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// KeyPair reads a certificate and its key, as tls.LoadX509KeyPair does.
func KeyPair(cert, key string) (tls.Certificate, error) {
	c, err := Read(cert, Most)
	if err != nil {
		return tls.Certificate{}, err
	}
	k, err := Read(key, Most)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(c, k)
}
