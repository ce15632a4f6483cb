// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/handover"
	"github.com/weirlb/weir/internal/listen"
)

// UpgradeOptions say how the process hands over to a successor.
type UpgradeOptions struct {
	// Program is how this process was started, and its successor is: Path is the
	// binary unless another is asked for, and may be empty when it is not known.
	Program handover.Program
	// Timeout is how long a successor may take until it serves; 0: a minute.
	Timeout time.Duration
	// Trial is how long this process can serve again when its successor dies; 0:
	// ten seconds.
	Trial time.Duration
}

const (
	defaultUpgradeTimeout = time.Minute
	defaultTrial          = 10 * time.Second
)

// upgrade is what the engine knows of its neighbours in time.
type upgrade struct {
	done chan *handover.Successor // of 1: who took over; read by Run

	mu          sync.Mutex // guards what follows; taken after Engine.mu
	refused     error      // nothing is begun any more
	cancel      context.CancelCauseFunc
	over        chan struct{} // closed with the end of the upgrade under way; nil: there is none
	successor   *admin.Process
	from        *handover.Predecessor // whom this process took over from; nil: nobody, or it is gone
	predecessor *admin.Predecessor
	settled     bool // it was told that it will not be asked back

	freeze sync.RWMutex // held for reading while something is changed
	frozen error        // guarded by freeze: why nothing may be changed
}

// notes are what a successor is told before it builds. Fields may be added.
type notes struct {
	Instance uint64 `json:"instance"` // the balancer stays the same one of its fleet
}

// UpgradeBinary implements admin.Upgrader.
func (e *Engine) UpgradeBinary(ctx context.Context, binary string) (admin.Upgrade, error) {
	return e.Upgrade(ctx, binary)
}

// Upgrade starts a binary (empty: the path that this process was started from)
// with the same arguments, hands it the listening sockets and the state, and
// returns when it serves. From then on this process drains, and Run returns when
// it has. On an error the successor is dead and this process serves on:
// admin.ErrUpgrading, admin.ErrNoUpgrade, or admin.ErrUpgradeFailed with the
// reason. Run must be running.
func (e *Engine) Upgrade(ctx context.Context, binary string) (admin.Upgrade, error) {
	begin := time.Now()
	ctx, program, err := e.beginUpgrade(ctx, binary)
	if err != nil {
		e.metrics.Upgrade("refused")
		e.log.Error("no upgrade", "error", err)
		if !errors.Is(err, admin.ErrUpgrading) { // else the one under way is told of
			e.events.add(Event{At: time.Now(), Kind: "upgrade", Text: firstLine(err)})
		}
		return admin.Upgrade{}, err
	}
	defer e.endUpgrade()
	e.log.Info("upgrade begins", "binary", program.Path)
	s, err := e.handOver(ctx, program)
	if err != nil {
		outcome := handover.OutcomeStart
		var f *handover.Failure
		if errors.As(err, &f) {
			outcome = f.Outcome
		}
		e.metrics.Upgrade(outcome)
		e.log.Error("the upgrade failed: this process serves on", "binary", program.Path, "outcome", outcome, "error", err)
		e.events.add(Event{At: time.Now(), Kind: "upgrade", Text: "the upgrade failed: " + firstLine(err)})
		return admin.Upgrade{}, fmt.Errorf("%w: %s: %w", admin.ErrUpgradeFailed, program.Path, err)
	}
	took := time.Since(begin)
	e.log.Info("another process has taken over", "new_pid", s.PID(), "version", s.Version(), "took", took.Round(time.Millisecond))
	e.events.add(Event{At: time.Now(), Kind: "upgrade", Text: fmt.Sprintf("process %d, version %s, has taken over", s.PID(), s.Version())})
	return admin.Upgrade{
		Binary: program.Path, PID: s.PID(), Version: s.Version(), TookMS: milliseconds(took),
		Previous: admin.Process{PID: os.Getpid(), Version: e.opt.Version},
	}, nil
}

// beginUpgrade reserves the upgrade, or says why there can be none.
func (e *Engine) beginUpgrade(ctx context.Context, binary string) (context.Context, handover.Program, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	u := &e.upgrade
	u.mu.Lock()
	defer u.mu.Unlock()
	var p handover.Program
	switch {
	case u.over != nil:
		return nil, p, fmt.Errorf("%w: wait until it has ended", admin.ErrUpgrading)
	case u.refused != nil:
		return nil, p, fmt.Errorf("%w: %w", admin.ErrNoUpgrade, u.refused)
	}
	if err := e.unfit(); err != nil {
		return nil, p, fmt.Errorf("%w: %w", admin.ErrNoUpgrade, err)
	}
	p = e.opt.Upgrade.Program
	if binary != "" {
		p.Path = binary
	}
	if p.Path == "" {
		return nil, p, fmt.Errorf("%w: the path from which this process was started is not known: name a binary", admin.ErrNoUpgrade)
	}
	if err := handover.Executable(p.Path); err != nil {
		return nil, p, fmt.Errorf("%w: %w", admin.ErrNoUpgrade, err)
	}
	limit := e.opt.Upgrade.Timeout
	if limit <= 0 {
		limit = defaultUpgradeTimeout
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	ctx, cancel := context.WithCancelCause(ctx)
	u.cancel = func(cause error) { cancel(cause); stop() }
	u.over = make(chan struct{})
	return ctx, p, nil
}

// unfit says why this process cannot hand over. Called under mu.
func (e *Engine) unfit() error {
	phase := e.state.Load()
	switch {
	case e.closed || phase == phaseDraining:
		return ErrStopping
	case phase == phaseStarting:
		return errors.New("it has not begun to serve")
	case phase == phaseLeaving:
		return e.upgrade.gone()
	case e.opt.Upgrade == nil:
		return errors.New("only 'weir run' and 'weir proxy' can hand over: this one, as 'weir demo', has its backends in its own process")
	case os.Getpid() == 1:
		return errors.New("it is process 1 of its container, which ends with it: replace the container, whose orchestrator starts the new one before it stops this one; " +
			"or let something else be process 1 (docker run --init)")
	case e.gen.Load().Plan.File == postedName:
		return errors.New("the configuration that serves was posted and is in no file, so a new process would not find it: " +
			"write it into the file and reload first")
	}
	return nil
}

// gone says that another process serves. Called under mu.
func (u *upgrade) gone() error {
	if u.successor == nil {
		return errors.New("another process has taken over")
	}
	return fmt.Errorf("process %d has taken over", u.successor.PID)
}

func (e *Engine) endUpgrade() {
	u := &e.upgrade
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cancel(nil)
	close(u.over)
	u.over = nil
}

// abortUpgrade ends an upgrade that is under way, if it has not succeeded
// already, and returns when it has ended. No other one is begun.
func (e *Engine) abortUpgrade(why error) {
	u := &e.upgrade
	u.mu.Lock()
	u.refused = why
	over := u.over
	if over != nil {
		u.cancel(why)
	}
	u.mu.Unlock()
	if over != nil {
		<-over
	}
}

// handOver takes a successor through all steps. Between its word that it has
// built everything and its first accept nothing may be changed here: it would
// be lost.
func (e *Engine) handOver(ctx context.Context, p handover.Program) (*handover.Successor, error) {
	e.settle() // whoever was before us is not asked back
	hand, err := e.opt.Sockets.Hand()
	if err != nil {
		return nil, err
	}
	s, flows, err := e.offer(ctx, p, hand)
	if err == nil {
		err = s.Built(ctx)
	}
	if err == nil {
		e.upgrade.stop(fmt.Errorf("%w: a new process is about to take over; ask again in a moment", admin.ErrUpgrading))
		if err = s.Ready(ctx, e.handedState().Encode()); err != nil {
			e.upgrade.stop(nil)
		}
	}
	if err != nil {
		flows.failed()
		e.opt.Sockets.Recall() // whoever had them is dead
		return nil, err
	}
	flows.taken(s.Declined())
	e.yield(s)
	return s, nil
}

// offer starts the successor; the duplicates are closed.
func (e *Engine) offer(ctx context.Context, p handover.Program, hand []listen.Handed) (*handover.Successor, *flowGiver, error) {
	o := handover.Offer{Version: e.opt.Version}
	for _, h := range hand {
		defer h.File.Close() //nolint:errcheck // the successor has its own
		o.Sockets = append(o.Sockets, handover.Socket{Bind: h.Bind, File: h.File})
	}
	flows, err := e.giveFlows(&o)
	if err != nil {
		return nil, flows, err
	}
	if flows.pair != nil {
		defer o.Sockets[len(o.Sockets)-1].File.Close() //nolint:errcheck // the same
	}
	if o.Notes, err = json.Marshal(notes{Instance: e.opt.Machine.Instance}); err != nil {
		return nil, flows, err
	}
	s, err := handover.Start(ctx, p, o)
	return s, flows, err
}

// yield leaves the sockets to a successor that accepts from them. Readiness
// does not change: whoever still asks here is served, and by the successor at
// the next connection.
func (e *Engine) yield(s *handover.Successor) {
	e.opt.Sockets.Yield(s.Declined()...)
	e.mu.Lock()
	defer e.mu.Unlock()
	u := &e.upgrade
	u.mu.Lock()
	u.successor = &admin.Process{PID: s.PID(), Version: s.Version()}
	gone := u.gone()
	u.mu.Unlock()
	u.stop(fmt.Errorf("%w: %w: ask it", admin.ErrUpgrading, gone))
	e.state.Store(phaseLeaving)
	e.notify.handOver(s.PID())
	e.ops.yield()
	u.done <- s
}

// stop makes changes fail with an error from now on; nil allows them. It
// returns when no change is under way.
func (u *upgrade) stop(why error) {
	u.freeze.Lock()
	defer u.freeze.Unlock()
	u.frozen = why
}

// change begins a change of what a successor would be told; done ends it. The
// error says why there can be none.
func (e *Engine) change() (done func(), err error) {
	u := &e.upgrade
	u.freeze.RLock()
	if u.frozen != nil {
		defer u.freeze.RUnlock()
		return nil, u.frozen
	}
	return func() {
		u.freeze.RUnlock()
		e.settle() // who took over from has not seen it
		e.states.soon()
	}, nil
}

// reloadable says why the configuration cannot be changed while a successor
// builds: it may have read the file before.
func (e *Engine) reloadable() error {
	u := &e.upgrade
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over != nil {
		return fmt.Errorf("%w: a new process reads the configuration; ask again in a moment", admin.ErrUpgrading)
	}
	return nil
}
