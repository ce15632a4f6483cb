// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/handover"
)

// inherit takes the sockets of the predecessor, before anything is built.
func (e *Engine) inherit(p *handover.Predecessor) error {
	var faults []error
	for _, s := range p.Sockets() {
		if s.Bind == flowsBind {
			e.flowsFrom = s.File
			continue
		}
		faults = append(faults, e.opt.Sockets.Inherit(s.Bind, s.File))
	}
	var n notes
	if json.Unmarshal(p.Notes(), &n) == nil && n.Instance != 0 { // an older one may say nothing
		e.opt.Machine.Instance = n.Instance
	}
	e.inherited = true
	return errors.Join(faults...)
}

// checkedNow looks at the addresses of a plan while this process has what it
// inherited. Building that fails closes those sockets, and then the predecessor's
// would be in the way of a check.
func (e *Engine) checkedNow(plan *config.Plan) func(bind string, private bool) error {
	type question struct {
		bind    string
		private bool
	}
	answers := map[question]error{}
	ask := func(bind string, private bool) {
		if bind != "" {
			answers[question{bind, private}] = e.opt.Sockets.Check(bind, private)
		}
	}
	ask(plan.Admin.Bind, true)
	ask(plan.Status.Bind, true)
	for i := range plan.Listeners {
		for _, bind := range binds(&plan.Listeners[i]) {
			ask(bind, false)
		}
	}
	return func(bind string, private bool) error { return answers[question{bind, private}] }
}

// TakeOver is Start for a process that was started by Options.Predecessor: it
// says that everything is built, restores the state that it gets, and begins to
// accept while the predecessor stops. On an error nothing was accepted, and the
// predecessor serves on.
func (e *Engine) TakeOver() error {
	p := e.opt.Predecessor
	state, err := p.Built(e.opt.Version)
	orphan := errors.Is(err, handover.ErrOrphaned)
	switch {
	case orphan:
		e.log.Warn("the old process died during the upgrade: this one serves without its state", "old_pid", p.PID())
		if e.flowsFrom != nil {
			_ = e.flowsFrom.Close()
		}
	case err != nil:
		return err
	default:
		e.restoreHanded(state)
		e.takeFlows()
	}
	e.Start()
	decline := e.opt.Sockets.Decline // the predecessor serves them to its end
	if orphan {
		decline = e.opt.Sockets.Unclaimed
	}
	declined := decline()
	if len(declined) > 0 {
		e.log.Info("sockets that this configuration does not have are closed", "binds", declined)
	}
	now := time.Now()
	if orphan {
		p.Close()
	} else {
		u := &e.upgrade
		u.mu.Lock()
		u.from, u.settled = p, false
		u.predecessor = &admin.Predecessor{Process: admin.Process{PID: p.PID(), Version: p.Version()}, Since: now}
		u.mu.Unlock()
		p.Ready(declined...)
		e.retirer.Go(func() { e.follow(p) })
	}
	e.metrics.Upgrade("done")
	e.log.Info("took over", "from_pid", p.PID(), "from_version", p.Version(), "version", e.opt.Version)
	e.events.add(Event{At: now, Kind: "upgrade", Text: fmt.Sprintf("took over from process %d, version %s", p.PID(), p.Version())})
	return nil
}

// restoreHanded takes the state in. What cannot be read costs the memory, not
// the upgrade.
func (e *Engine) restoreHanded(text []byte) {
	state, err := DecodeState(text)
	if err != nil {
		e.log.Warn("the old process's state is not used: health and overrides begin anew", "error", err)
		return
	}
	r := e.RestoreState(state)
	e.log.Info("state restored", "pools", r.Pools, "backends", r.Backends, "overrides", r.Overrides, "unknown", r.Unknown)
	for _, line := range r.Refused {
		e.log.Warn("a part of the old process's state is not used", "part", line)
	}
}

// follow keeps what the predecessor says until it is gone.
func (e *Engine) follow(p *handover.Predecessor) {
	u := &e.upgrade
	p.Follow(func(r handover.Report) {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.predecessor != nil {
			u.predecessor.Connections = r.Connections
		}
	})
	u.mu.Lock()
	u.from, u.predecessor = nil, nil
	u.mu.Unlock()
	select {
	case <-e.quit: // this one ended first
	default:
		e.log.Info("the old process has ended", "old_pid", p.PID())
	}
}

// unfollow ends follow.
func (u *upgrade) unfollow() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.from != nil {
		u.from.Close()
	}
}

// settle tells the predecessor that it will not be asked back: what this
// process knows now it does not.
func (e *Engine) settle() {
	u := &e.upgrade
	u.mu.Lock()
	p := u.from
	if u.settled {
		p = nil
	}
	u.settled = true
	u.mu.Unlock()
	if p != nil {
		p.Say(handover.Settled)
	}
}

// tellPredecessor tells it a word, if there is one.
func (e *Engine) tellPredecessor(w handover.Word) {
	e.upgrade.mu.Lock()
	p := e.upgrade.from
	e.upgrade.mu.Unlock()
	if p != nil {
		p.Say(w)
	}
}

// neighbours is what status says of them.
func (u *upgrade) neighbours() (*admin.Predecessor, *admin.Process) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var before *admin.Predecessor
	var after *admin.Process
	if u.predecessor != nil {
		p := *u.predecessor
		before = &p
	}
	if u.successor != nil {
		s := *u.successor
		after = &s
	}
	return before, after
}
