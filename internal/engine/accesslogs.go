// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/observe"
)

// accessLogs are the access log that serves and those that a reload replaced:
// requests write where their route wrote when they began, and a tunnel may last
// for hours. The zero value has none.
type accessLogs struct {
	mu      sync.Mutex // guards what follows
	now     *liveLog   // nil: off
	leaving []*liveLog
	lost    uint64 // lines that closed ones had dropped
}

// liveLog is an access log that is open.
type liveLog struct {
	log  *observe.AccessLog
	made config.AccessLog
	uses atomic.Int64 // handlers that write to it, see usedBy in retire.go
}

// stage returns the log that a plan wants, which may be the one that serves;
// nil: none. Either adopt or drop is to be called with it.
func (a *accessLogs) stage(e *Engine, plan *config.Plan) (*liveLog, error) {
	want := plan.Log.Access
	if want.Off {
		return nil, nil //nolint:nilnil // none is wanted
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now != nil && reflect.DeepEqual(a.now.made, want) {
		return a.now, nil
	}
	log, err := observe.NewAccessLog(accessOptions(plan, e.log))
	if err != nil {
		return nil, err
	}
	return &liveLog{log: log, made: want}, nil
}

// of returns what a handler writes to.
func (l *liveLog) of(h *l7.Handler) *observe.AccessLog {
	if l == nil {
		return nil
	}
	l.uses.Add(1)
	runtime.AddCleanup(h, func(l *liveLog) { l.uses.Add(-1) }, l)
	return l.log
}

func (a *accessLogs) adopt(l *liveLog) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.now; old != nil && old != l {
		a.leaving = append(a.leaving, old)
	}
	a.now = l
}

// drop closes what stage opened.
func (a *accessLogs) drop(l *liveLog) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if l != nil && l != a.now {
		_ = l.log.Close(logFlushTime) // nothing has been written
	}
}

// left takes out those that nobody writes to any more, to be closed, and reports
// whether there are others.
func (a *accessLogs) left() (free []*liveLog, more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaving = slices.DeleteFunc(a.leaving, func(l *liveLog) bool {
		if l.uses.Load() > 0 {
			return false
		}
		free = append(free, l)
		a.lost += l.log.Dropped()
		return true
	})
	return free, len(a.leaving) > 0
}

func (a *accessLogs) waiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.leaving) > 0
}

func (a *accessLogs) all() []*liveLog {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Clone(a.leaving)
	if a.now != nil {
		all = append(all, a.now)
	}
	return all
}

// reopen opens the files again after they were moved away, and reports whether
// there are any.
func (a *accessLogs) reopen() (any bool, err error) {
	for _, l := range a.all() {
		any, err = true, errors.Join(err, l.log.Reopen())
	}
	return any, err
}

// dropped counts the lines that were lost.
func (a *accessLogs) dropped() uint64 {
	n := uint64(0)
	for _, l := range a.all() {
		n += l.log.Dropped()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return n + a.lost
}

// close writes out what is held.
func (a *accessLogs) close() error {
	var errs []error
	for _, l := range a.all() {
		errs = append(errs, l.log.Close(logFlushTime))
	}
	return errors.Join(errs...)
}
