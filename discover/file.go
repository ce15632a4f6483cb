// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// File is a source that watches a file.
//
// It looks at the file once per Interval, by its name. That sees what matters
// here (another file renamed over it, a symbolic link that is switched as
// Kubernetes does with config maps, writes in place, network file systems), costs
// one system call, needs no descriptor or watch that can get lost, and a second
// is fast enough for a list of backends; inotify would see neither a switched
// link further up the path nor changes made by another machine.
//
// A file that is gone, cannot be read or does not parse is a failure, reported at
// once and again while it lasts. A file that was written within the last two
// seconds is read again, so that one caught half-written is not believed for
// longer.
type File struct {
	Path string
	// Parse turns the text into endpoints. It must not be nil. An error stands
	// for all of the text: no part of a broken file is used.
	Parse    func(path string, text []byte) ([]Endpoint, error)
	Interval time.Duration // 0: 1s
}

// fileMost bounds what is read: a device given by mistake must not fill memory.
const fileMost = 16 << 20

// settled is how old a file must be for its size and time to tell that it has
// not changed: times of files are coarser than writes.
const settled = 2 * time.Second

// Run implements Source.
func (s *File) Run(ctx context.Context, report func(Finding)) error {
	if s.Parse == nil || s.Path == "" {
		return errors.New("discover: File without a path or a parser")
	}
	every := cmp.Or(s.Interval, time.Second)
	var seen os.FileInfo // of what last says; nil: look again
	var last Finding
	for {
		info, err := os.Stat(s.Path)
		switch {
		case err != nil:
			last, seen = Finding{Err: plainPath(err)}, nil
		case seen != nil && sameFile(seen, info):
		default:
			last, seen = s.read()
		}
		last.Next = every
		report(last)
		if !sleep(ctx, every) {
			return ctx.Err()
		}
	}
}

// read reads the file. info is nil unless it will tell of the next change.
func (s *File) read() (f Finding, info os.FileInfo) {
	// Without waiting for a writer, if it is a pipe: whoever ends Run waits for it.
	file, err := os.OpenFile(s.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Finding{Err: plainPath(err)}, nil
	}
	defer func() { _ = file.Close() }() // only read from
	// Asked before reading: what is written meanwhile shows in the next look.
	info, err = file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", s.Path)
	}
	if err != nil {
		return Finding{Err: err}, nil
	}
	text, err := io.ReadAll(io.LimitReader(file, fileMost+1))
	switch {
	case err != nil:
		return Finding{Err: err}, nil
	case len(text) > fileMost:
		return Finding{Err: fmt.Errorf("%s is larger than %d MiB", s.Path, fileMost>>20)}, nil
	}
	if time.Since(info.ModTime()) < settled {
		defer func() { info = nil }()
	}
	list, err := s.Parse(s.Path, text)
	switch {
	case err != nil:
		return Finding{Err: err}, info
	case len(list) == 0:
		return Finding{Err: fmt.Errorf("%s: %w", s.Path, ErrEmpty)}, info
	}
	return Finding{Endpoints: list}, info
}

// sameFile reports whether a file is, by all that its entry tells, what it was.
func sameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// plainPath leaves out which system call it was.
func plainPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", p.Path, p.Err)
	}
	return err
}
