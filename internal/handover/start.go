// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Env is the environment variable that tells a process which of its
// descriptors leads to its predecessor.
const Env = "WEIR_HANDOVER_FD"

// pairFD is its descriptor in the successor: the first behind the standard ones.
const pairFD = 3

// Socket is a listening socket with the name that its configuration has for it.
type Socket struct {
	Bind string
	File *os.File
}

// Program is what is started.
type Program struct {
	Path string   // of the binary, absolute
	Args []string // all of them, the name first
	Env  []string // as os.Environ; what belongs to one process only is taken out
}

// Offer is what a successor learns before it builds.
type Offer struct {
	Version string          // of the predecessor
	Notes   json.RawMessage // what the caller wants known before the successor builds; nil: nothing
	Sockets []Socket        // they stay the caller's
}

// The outcomes of a step that failed.
const (
	OutcomeStart   = "not_started" // there is no process
	OutcomeExited  = "exited"      // it ended without a reason given
	OutcomeFailed  = "failed"      // it said why
	OutcomeTimeout = "timeout"
	OutcomeAborted = "aborted"  // by the predecessor
	OutcomeForeign = "no_match" // something that speaks otherwise, or another protocol
)

// Failure is why a successor did not take over. It is dead, and the
// predecessor as it was.
type Failure struct {
	Outcome string // one of those above
	Step    string // what was waited for: start, built, ready
	Err     error
}

// Error implements error.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the reason.
func (f *Failure) Unwrap() error { return f.Err }

// Successor is the process that is to take over, seen from the one that
// serves. Its steps are called in order by one goroutine; the other methods by
// any.
type Successor struct {
	// Constant.
	ch      *channel
	process *os.Process
	began   time.Time
	exited  chan struct{} // closed when it has ended and was waited for

	end     sync.Once
	state   *os.ProcessState // valid after exited
	version string           // valid after Built
	pid     int              // valid after Built; 0: of process
	within  *os.Process      // valid after Built: who serves, when what was started only waits for it
	gaveUp  []string         // valid after Ready
	words   chan Word        // made by Ready
	talked  chan struct{}    // closed when the reader of words has ended
}

// Start starts a successor and hands it the sockets. All descriptors of this
// process but the standard three stay here. An error is a *Failure.
func Start(ctx context.Context, p Program, o Offer) (*Successor, error) {
	s := &Successor{began: time.Now(), exited: make(chan struct{})}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, &Failure{OutcomeStart, "start", fmt.Errorf("a pair of sockets: %w", err)}
	}
	keepHere()
	theirs := os.NewFile(uintptr(fds[1]), "handover")
	if s.ch, err = newChannel(os.NewFile(uintptr(fds[0]), "handover")); err != nil {
		return nil, &Failure{OutcomeStart, "start", errors.Join(err, theirs.Close())}
	}
	s.process, err = os.StartProcess(p.Path, p.Args, &os.ProcAttr{
		Env:   append(environ(p.Env), fmt.Sprintf("%s=%d", Env, pairFD)),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, theirs},
		// A group of its own until it is ready (Predecessor.Ready): if it fails, what it
		// started has the sockets too, and has to go with it.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	_ = theirs.Close() // it is the child's; while it is open here the child's death would go unnoticed
	if err != nil {
		s.ch.close()
		return nil, &Failure{OutcomeStart, "start", err}
	}
	go func() {
		s.state, _ = s.process.Wait() // fails only for a process that is not ours
		close(s.exited)
	}()
	err = s.step(ctx, "start", func() error { return s.offer(o) })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// keepHere marks what is open to be closed in children. What Go opens is marked
// already; what this process inherited from whoever started it may not be. On
// a kernel without it (before 5.11) such descriptors travel on, as they came.
func keepHere() {
	const lastFD, cloexec = ^uint32(0), 4 // CLOSE_RANGE_CLOEXEC
	_, _, _ = syscall.Syscall(sysCloseRange, pairFD, uintptr(lastFD), cloexec)
}

// sysCloseRange is the same on every architecture that Linux has numbered since
// 2019.
const sysCloseRange = 436

// environ leaves out what systemd says to one process only: the descriptors
// are handed over otherwise, and the watchdog is to be fed by the successor.
func environ(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case Env, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID", "WATCHDOG_PID":
			return true
		}
		return false
	})
}

func (s *Successor) offer(o Offer) error {
	err := s.ch.send(&message{
		Kind: kindHello, Protocol: protocol, Oldest: oldest, Version: o.Version, PID: os.Getpid(), Sockets: len(o.Sockets), Notes: o.Notes,
	})
	for some := range slices.Chunk(o.Sockets, maxRights) {
		m := &message{Kind: kindSockets}
		files := make([]*os.File, len(some))
		for i := range some {
			m.Binds = append(m.Binds, some[i].Bind)
			files[i] = some[i].File
		}
		if err == nil {
			err = s.ch.send(m, files...)
		}
	}
	return err
}

// Built waits until the successor has built everything that can fail. An error
// is a *Failure.
func (s *Successor) Built(ctx context.Context) error {
	return s.step(ctx, "built", func() error {
		m, err := s.await(kindBuilt)
		if err != nil {
			return err
		}
		s.version = m.Version
		if group, err := syscall.Getpgid(m.PID); m.PID != s.process.Pid && err == nil && group == s.process.Pid {
			s.pid = m.PID
			s.within, _ = os.FindProcess(m.PID) // below a wrapper; it lives, as it has just spoken
		}
		if err := m.speaks("new binary"); err != nil {
			return fmt.Errorf("%w: %w", errGarbage, err)
		}
		return nil
	})
}

// Ready hands the state over and waits until the successor accepts. From then
// on it serves: nothing but its death takes it back. An error is a *Failure.
func (s *Successor) Ready(ctx context.Context, state []byte) error {
	err := s.step(ctx, "ready", func() error {
		if err := s.ch.send(&message{Kind: kindState, State: state}); err != nil {
			return err
		}
		m, err := s.await(kindReady)
		if err == nil {
			s.gaveUp = m.Declined
		}
		return err
	})
	if err != nil {
		return err
	}
	s.ch.expectBy(time.Time{})
	s.words, s.talked = make(chan Word, 8), make(chan struct{})
	go s.listen()
	return nil
}

// await reads until a message of that kind; what is unknown is passed over.
func (s *Successor) await(kind string) (*message, error) {
	for {
		m, files, err := s.ch.receive()
		for _, f := range files {
			_ = f.Close() // nobody hands sockets this way
		}
		switch {
		case err != nil:
			return nil, err
		case m.Kind == kind:
			return m, nil
		case m.Kind == kindFailed:
			return nil, saidFailed{m.Why}
		case m.Kind == kindReady: // before it was asked
			return nil, fmt.Errorf("%w: it is ready before it was built", errGarbage)
		}
	}
}

// saidFailed is the successor's own reason.
type saidFailed struct{ why string }

func (e saidFailed) Error() string { return e.why }

// step runs one exchange until ctx ends. When it fails, the successor is killed
// and the error is a *Failure.
func (s *Successor) step(ctx context.Context, name string, exchange func() error) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		s.ch.expectBy(time.Unix(1, 0))
	})
	unwatch := s.watchExit()
	err := exchange()
	unwatch()
	if !stop() {
		<-interrupted
	}
	if err == nil { // also when ctx ended at the same moment: a successor that is ready serves
		return nil
	}
	f := &Failure{Step: name, Err: err}
	var said saidFailed
	switch {
	case errors.As(err, &said):
		f.Outcome = OutcomeFailed
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		f.Outcome = OutcomeTimeout
		if name == "start" {
			name = "started"
		}
		f.Err = fmt.Errorf("it was not %s within %v of its start", name, time.Since(s.began).Round(time.Millisecond))
	case ctx.Err() != nil:
		f.Outcome = OutcomeAborted
		f.Err = context.Cause(ctx)
	case errors.Is(err, errGarbage):
		f.Outcome = OutcomeForeign
	default: // the pair broke: see how it ended
		f.Outcome = OutcomeExited
		f.Err = fmt.Errorf("it ended (%s) before it %s; what it said, if anything, is on this process's standard error", s.howEnded(), before[name])
	}
	s.Kill()
	return f
}

// before says in an operator's words what each step leads to.
var before = map[string]string{"start": "took the sockets", "built": "was ready to take over", "ready": "served"}

// watchExit ends an exchange soon after the process has failed: what it started
// may hold the pair open, and then nothing would be read until ctx ends. One that
// ended well may have left the work to another process.
func (s *Successor) watchExit() (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-s.exited:
			if s.state == nil || !s.state.Success() {
				s.ch.expectBy(time.Now().Add(endGrace)) // what it said before is still read
			}
		case <-over:
		}
	}()
	return func() { close(over); <-done }
}

// endGrace is how long a process that has closed the pair has to exit by itself,
// so that its exit code can be told.
const endGrace = 2 * time.Second

func (s *Successor) howEnded() string {
	select {
	case <-s.exited:
		if s.state == nil {
			return "nobody knows how"
		}
		return s.state.String()
	case <-time.After(endGrace):
		return "it closed the pair and went on"
	}
}

// Kill ends the successor at once, with all that it started before it was ready,
// and returns when it is gone.
func (s *Successor) Kill() {
	// The number of a group is not given away while somebody is in it. An empty one
	// is not there, as no process has been it since.
	_ = syscall.Kill(-s.process.Pid, syscall.SIGKILL)
	if s.within != nil {
		_ = s.within.Kill() // once it is ready it is not in that group
	}
	_ = s.process.Kill() // it may have ended
	<-s.exited
	s.leave()
}

// Leave gives the successor up to itself: this process is about to exit.
func (s *Successor) Leave() { s.leave() }

func (s *Successor) leave() {
	s.end.Do(func() {
		_ = s.ch.conn.Close() // wakes the reader
		if s.talked != nil {
			<-s.talked
		}
		s.ch.close()
		if s.within != nil {
			_ = s.within.Release()
		}
	})
}

// PID returns its process number: after Built of the process that serves, also
// when a wrapper was started that waits for it.
func (s *Successor) PID() int {
	if s.pid != 0 {
		return s.pid
	}
	return s.process.Pid
}

// Version returns what the successor says it is; empty before Built.
func (s *Successor) Version() string { return s.version }

// Declined returns the binds of the sockets that the successor gave up, as its
// configuration has no use for them; after Ready.
func (s *Successor) Declined() []string { return s.gaveUp }

// Words delivers what the successor says after Ready. It is closed when the
// pair is, which before Leave means that the successor is dead.
func (s *Successor) Words() <-chan Word { return s.words }

// Exited is closed when the process has ended.
func (s *Successor) Exited() <-chan struct{} { return s.exited }

// How says how it ended, after Exited.
func (s *Successor) How() string { return s.howEnded() }

// Report tells the successor how far the drain is. It does not wait for long.
func (s *Successor) Report(r Report) error {
	_ = s.ch.conn.SetWriteDeadline(time.Now().Add(reportTime))
	return s.ch.send(&message{Kind: kindReport, Report: &r})
}

const reportTime = time.Second

// listen reads the words.
func (s *Successor) listen() {
	defer close(s.talked)
	defer close(s.words)
	for {
		m, files, err := s.ch.receive()
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil { // the end, or something that cannot be heard
			return
		}
		if m.Kind == kindWord {
			select {
			case s.words <- m.Word:
			default: // whoever repeats itself so often has been heard
			}
		}
	}
}
