// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/observe"
)

const (
	stateEvery = 30 * time.Second // the state file is written so often, if something happened,
	stateSoon  = time.Second      // and so soon after somebody has said something
	stateMost  = 256 << 20        // bytes that are read of one; ten thousand backends take some ten millions
	stateTemps = time.Hour        // an unfinished file that is older has nobody who goes on with it
)

// stateMark is what every state file begins with: see State.Encode.
var stateMark = []byte(`{"version":`)

// errForeign is said of a file that something else has made.
var errForeign = errors.New("it is not a state file of weir, so it is left alone: remove it, or name another one")

// errDamaged is said of a file that begins like a state and is none.
var errDamaged = errors.New("damaged")

// stateFile keeps the process's state in the file that the configuration names.
// What goes wrong with it costs the memory over a restart and nothing else: it is
// said once, counted, and tried again.
type stateFile struct {
	word              chan struct{} // of 1: somebody has said something
	written, failures atomic.Uint64

	mu      sync.Mutex  // held while it writes; guards what follows
	path    string      // that was written last
	seen    uint64      // the activity that it holds
	failing string      // why, as it was said; empty: it does not
	file    os.FileInfo // as it was written last; nil: not yet
	shared  string      // the path of which it was said that others write it
}

// loadStateLocked restores from the state file unless another process has handed
// over its state. Called under mu, before anything is started.
func (e *Engine) loadStateLocked() {
	path := e.gen.Load().Plan.StateFile
	if path == "" || e.restored {
		return
	}
	removeTemps(path, time.Now())
	state, err := readState(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.log.Info("there is no state file yet", "state_file", path)
		return
	case err != nil:
		e.log.Warn("the state file is not used: health, overrides and what was learned begin anew", "state_file", path, "error", err)
		e.events.add(Event{At: time.Now(), Kind: "state", Text: "the state file is not used: " + firstLine(err)})
		e.setAside(path, err)
		return
	}
	r := e.restoreLocked(&state)
	text := fmt.Sprintf("state of %s ago restored: %d backends, %d overrides", r.Age.Round(time.Second), r.Backends, r.Overrides)
	switch {
	case r.Stale && time.Since(state.Taken) < 0:
		text = fmt.Sprintf("the state is of %s, which is to come by this machine's clock: %d overrides restored, and nothing else of it", state.Taken.Format(time.RFC3339), r.Overrides)
	case r.Stale:
		text = fmt.Sprintf("state of %s ago is too old for more than what operators said: %d overrides restored", r.Age.Round(time.Second), r.Overrides)
	}
	e.log.Info(text, "state_file", path, "pools", r.Pools, "unknown", r.Unknown, "generation", r.Generation)
	e.events.add(Event{At: time.Now(), Kind: "state", Text: text})
	for _, line := range r.Refused {
		e.log.Warn("a part of the state file is not used", "state_file", path, "part", line)
	}
}

// setAside keeps a state file of weir's that this process cannot read from being
// replaced: with another version of weir, or by hand, what operators said in it can
// still be had. Of each kind the last one is kept.
func (e *Engine) setAside(path string, err error) {
	suffix := ".damaged"
	switch {
	case errors.Is(err, ErrStateVersion):
		suffix = ".other-version"
	case !errors.Is(err, errDamaged):
		return
	}
	real := linked(path)
	if err := os.Rename(real, real+suffix); err != nil {
		e.log.Warn("the state file that is not used cannot be kept: it is replaced", "state_file", path, "error", err)
		return
	}
	e.log.Info("the state file that is not used is kept beside it", "state_file", path, "kept", real+suffix)
}

// readState reads a state file. One that others may write is not believed.
func readState(path string) (State, error) {
	f, err := openQuick(path)
	if err != nil {
		return State{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return State{}, err
	case !info.Mode().IsRegular():
		return State{}, fmt.Errorf("%s is no regular file", path)
	case info.Mode().Perm()&0o022 != 0:
		return State{}, fmt.Errorf("%s may be written by others (mode %#o): who changes it changes overrides", path, info.Mode().Perm())
	case info.Size() > stateMost:
		return State{}, fmt.Errorf("%s is too large: %d bytes", path, info.Size())
	}
	text, err := io.ReadAll(io.LimitReader(f, stateMost))
	if err != nil {
		return State{}, err
	}
	if !bytes.HasPrefix(text, stateMark) {
		return State{}, errForeign
	}
	s, err := DecodeState(text)
	if err != nil && !errors.Is(err, ErrStateVersion) {
		err = damaged{err}
	}
	return s, err
}

// damaged is an errDamaged whose text is the cause alone.
type damaged struct{ error }

func (d damaged) Unwrap() []error { return []error{errDamaged, d.error} }

// openQuick opens a file to read it, and does not wait for anybody if it is a pipe.
func openQuick(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// soon has the file written within a second: what an operator has said is not to be
// lost with a process that dies. It does not wait.
func (s *stateFile) soon() {
	select {
	case s.word <- struct{}{}:
	default:
	}
}

// keepState writes the file from time to time, until the process ends.
func (e *Engine) keepState() {
	t := time.NewTimer(0)
	defer t.Stop()
	hurries := false
	for {
		select {
		case <-e.quit:
			return
		case <-t.C:
			e.states.write(e, false)
			t.Reset(stateEvery)
			hurries = false
		case <-e.states.word:
			if !hurries { // of many words in a row the first decides
				t.Reset(stateSoon)
			}
			hurries = true
		}
	}
}

// lastState writes the file for the last time. A disk that does not answer must
// not keep the process from ending.
func (e *Engine) lastState() {
	if e.gen.Load() == nil || e.gen.Load().Plan.StateFile == "" {
		return
	}
	if !within(e.patience, func() { e.states.write(e, true) }) {
		e.log.Error("the state file cannot be written in time: what was learned last is lost")
	}
}

// write writes the file if there is one and something has happened since it was
// written; last: in any case. After an upgrade it is the successor's.
func (s *stateFile) write(e *Engine, last bool) {
	if e.state.Load() == phaseLeaving {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path := e.gen.Load().Plan.StateFile
	if path == "" {
		s.path, s.failing = "", ""
		return
	}
	seen := e.activity()
	if !last && path == s.path && seen == s.seen && s.failing == "" {
		return
	}
	err := ownState(path)
	if err == nil {
		s.watchOthers(e, path)
		err = replaceFile(path, e.ExportState().forDisk().Encode())
	}
	if s.file = nil; err == nil {
		s.file, _ = os.Stat(path) // the next write does without
	}
	s.path, s.seen = path, seen
	s.say(e, path, err)
}

// watchOthers says once that the file is not the one that was written last: of two
// weirs that share one each would forget what operators said to the other.
func (s *stateFile) watchOthers(e *Engine, path string) {
	if s.file == nil || s.path != path || s.shared == path {
		return
	}
	if info, err := os.Stat(path); err != nil || os.SameFile(info, s.file) {
		return
	}
	s.shared = path
	e.log.Warn("something else has written the state file: what operators say is lost when two weirs share one, so give each its own", "state_file", path)
	e.events.add(Event{At: time.Now(), Kind: "state", Text: "something else has written the state file"})
}

// say counts a write and tells the log about it when that is news.
func (s *stateFile) say(e *Engine, path string, err error) {
	if err == nil {
		s.written.Add(1)
		if s.failing != "" {
			s.failing = ""
			e.log.Info("the state file is written again", "state_file", path)
			e.events.add(Event{At: time.Now(), Kind: "state", Text: "the state file is written again"})
		}
		return
	}
	s.failures.Add(1)
	was := s.failing
	if s.failing = reasonOf(err) + " " + path; s.failing == was {
		return
	}
	e.log.Error("the state file cannot be written: what is known would not outlive a restart; it is tried again every "+stateEvery.String(),
		"state_file", path, "error", err)
	e.events.add(Event{At: time.Now(), Kind: "state", Text: "the state file cannot be written: " + firstLine(err)})
}

// reasonOf is an error without the names of temporary files.
func reasonOf(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// ownState reports whether a file may be replaced: there is none, it is empty, or
// weir wrote it.
func ownState(path string) error {
	f, err := openQuick(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errForeign
	}
	head := make([]byte, len(stateMark))
	switch n, err := io.ReadFull(f, head); {
	case n == 0 && errors.Is(err, io.EOF):
		return nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case !bytes.Equal(head, stateMark):
		return errForeign
	}
	return nil
}

// checkState says why a state file could not be written; nil if it could, or there
// is none. It leaves everything as it is.
func checkState(path string) error {
	if path == "" {
		return nil
	}
	if err := ownState(path); err != nil {
		return err
	}
	dir := filepath.Dir(linked(path))
	if err := observe.CheckFolder(dir); err != nil {
		return fmt.Errorf("folder %s: %w", dir, err)
	}
	return nil
}

// activity is a number that changes when there may be something new to write.
func (e *Engine) activity() uint64 {
	n := e.gen.Load().Number
	for _, p := range e.livePools() {
		n += p.pool.Activity()
	}
	return n
}

// replaceFile writes a file of mode 0600 so that whoever reads it, or finds it
// after a crash, has all of the old one or all of the new one.
func replaceFile(path string, text []byte) error {
	path = linked(path)
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix(path)+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close()) // the new name is on the disk, too
}

// linked returns where a link leads, so that the link stays one, and where nothing
// is yet, too.
func linked(path string) string {
	for range 40 { // as many as the kernel follows
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return path
}

func tempPrefix(path string) string { return "." + filepath.Base(path) + ".tmp-" }

// removeTemps removes what a process has left that ended in the middle of a write.
func removeTemps(path string, now time.Time) {
	path = linked(path)
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // writing says what is wrong
	}
	for _, x := range entries {
		info, err := x.Info()
		if err == nil && info.Mode().IsRegular() && len(x.Name()) > len(tempPrefix(path)) && x.Name()[:len(tempPrefix(path))] == tempPrefix(path) &&
			now.Sub(info.ModTime()) > stateTemps {
			_ = os.Remove(filepath.Join(dir, x.Name())) // the next start tries again
		}
	}
}
