// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Word is what a successor says once it serves.
type Word string

// The words.
const (
	// Settled: the successor will not be taken back. The predecessor gives up
	// what it kept to serve again.
	Settled Word = "settled"
	// Stopping: the successor was told to stop. The predecessor does not drain
	// longer than it.
	Stopping Word = "stopping"
)

// Report is how far the predecessor's drain is.
type Report struct {
	Connections int `json:"connections"` // of clients, still open
}

const (
	helloTime = 10 * time.Second // for what the predecessor sends before anything else
	stateTime = 90 * time.Second // for the state; longer than the predecessor waits for a whole upgrade
)

// ErrOrphaned is returned by Built when the predecessor died before it handed
// its state over.
var ErrOrphaned = errors.New("the old process died during the handover")

// Predecessor is the process that is to be taken over, seen from its
// successor. Its steps are called in order by one goroutine.
type Predecessor struct {
	// Constant.
	ch      *channel
	pid     int
	version string
	notes   json.RawMessage
	sockets []Socket
}

// Join finds the predecessor of this process and receives its sockets; nil
// when there is none. The environment variable is removed. It is called once.
func Join(version string) (*Predecessor, error) {
	value, ok := os.LookupEnv(Env)
	if !ok {
		return nil, nil //nolint:nilnil // documented: nobody hands over
	}
	if err := os.Unsetenv(Env); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < pairFD {
		return nil, fmt.Errorf("%s is %q: it is set by a weir that starts its successor, and by nobody else", Env, value)
	}
	if _, err := syscall.Getsockname(fd); err != nil { // it may be anything, also one that the runtime needs
		return nil, fmt.Errorf("%s is %d, which is no socket: %w", Env, fd, err)
	}
	return join(os.NewFile(uintptr(fd), "handover"), version)
}

func join(f *os.File, version string) (*Predecessor, error) {
	ch, err := newChannel(f)
	if err != nil {
		return nil, fmt.Errorf("%s names no handover: %w", Env, err)
	}
	p := &Predecessor{ch: ch}
	ch.expectBy(time.Now().Add(helloTime))
	if err := p.hear(); err != nil {
		p.Fail(version, err)
		p.drop()
		return nil, fmt.Errorf("the old process hands over, but %w", err)
	}
	ch.expectBy(time.Time{})
	return p, nil
}

// hear receives the hello and the sockets.
func (p *Predecessor) hear() error {
	hello, err := p.await(kindHello)
	if err != nil {
		return err
	}
	p.pid, p.version, p.notes = hello.PID, hello.Version, hello.Notes
	if err := hello.speaks("running weir"); err != nil {
		return err
	}
	for len(p.sockets) < hello.Sockets {
		if _, err := p.await(kindSockets); err != nil {
			return fmt.Errorf("%d of %d sockets came: %w", len(p.sockets), hello.Sockets, err)
		}
	}
	return nil
}

// await reads until a message of that kind; what is unknown is passed over.
func (p *Predecessor) await(kind string) (*message, error) {
	for {
		m, files, err := p.ch.receive()
		if err != nil {
			return nil, err
		}
		for i, f := range files {
			p.sockets = append(p.sockets, Socket{m.Binds[i], f})
		}
		if m.Kind == kind {
			return m, nil
		}
	}
}

// PID returns the process number of the predecessor.
func (p *Predecessor) PID() int { return p.pid }

// Version returns what the predecessor says it is.
func (p *Predecessor) Version() string { return p.version }

// Notes returns what the predecessor wants known; nil: nothing.
func (p *Predecessor) Notes() json.RawMessage { return p.notes }

// Sockets returns what was handed over. The files are the caller's.
func (p *Predecessor) Sockets() []Socket { return p.sockets }

// Fail says why this process will not take over. It is about to exit.
func (p *Predecessor) Fail(version string, why error) {
	p.ch.expectBy(time.Now().Add(reportTime))
	// The predecessor may be gone, or see our exit instead.
	_ = p.ch.send(&message{Kind: kindFailed, Version: version, Why: why.Error()})
}

// drop closes what came.
func (p *Predecessor) drop() {
	for _, s := range p.sockets {
		_ = s.File.Close()
	}
	p.ch.close()
}

// Built says that all is built that can fail, and waits for the state. With
// ErrOrphaned the process may go on without: nobody else serves the sockets.
// After another error it must not.
func (p *Predecessor) Built(version string) (state []byte, err error) {
	p.ch.expectBy(time.Now().Add(stateTime))
	defer p.ch.expectBy(time.Time{})
	if err = p.ch.send(&message{Kind: kindBuilt, Protocol: protocol, Oldest: oldest, Version: version, PID: os.Getpid()}); err == nil {
		var m *message
		if m, err = p.await(kindState); err == nil {
			return m.State, nil
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errGarbage) {
		return nil, fmt.Errorf("the old process did not hand its state over: %w", err)
	}
	return nil, ErrOrphaned
}

// Ready says that this process accepts, but for the sockets that it declined,
// whose binds those are.
func (p *Predecessor) Ready(declined ...string) {
	// Back from the group that it was started in: signals of a terminal reach both
	// processes. In another session, or when the predecessor is gone, it stays there.
	if group, err := syscall.Getpgid(p.pid); err == nil {
		_ = syscall.Setpgid(0, group)
	}
	p.ch.expectBy(time.Now().Add(reportTime))
	_ = p.ch.send(&message{Kind: kindReady, Declined: declined}) // if the predecessor is gone, all the more
	p.ch.expectBy(time.Time{})
}

// Follow calls f with each report of the predecessor and returns when it is
// gone. It is called once, after Ready.
func (p *Predecessor) Follow(f func(Report)) {
	defer p.ch.close()
	for {
		m, files, err := p.ch.receive()
		for _, x := range files {
			_ = x.Close()
		}
		if err != nil {
			return
		}
		if m.Kind == kindReport && m.Report != nil {
			f(*m.Report)
		}
	}
}

// Close ends Follow.
func (p *Predecessor) Close() { _ = p.ch.conn.Close() }

// Say tells the predecessor a word, if it is still there. Any goroutine may
// call it after Ready.
func (p *Predecessor) Say(w Word) {
	_ = p.ch.conn.SetWriteDeadline(time.Now().Add(reportTime))
	_ = p.ch.send(&message{Kind: kindWord, Word: w}) // who is gone needs none
}
