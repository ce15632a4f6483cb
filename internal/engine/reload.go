// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirlb/weir/internal/config"
)

// ErrNoFile is returned where a configuration is to be read again that was made
// from flags.
var ErrNoFile = errors.New("this weir runs without a configuration file, so there is nothing to read again")

// ErrStopping is returned once a drain of the process has begun: what is about
// to end is not changed any more.
var ErrStopping = errors.New("the balancer is stopping")

// ErrGeneration is returned when the configuration that serves is not the one
// that the caller changes.
var ErrGeneration = errors.New("the configuration has changed meanwhile")

// ReloadOptions say how a configuration is applied. The zero value applies it.
type ReloadOptions struct {
	DryRun bool   // check all and tell the difference; change nothing
	If     uint64 // only while this generation serves; 0: whichever does
}

// Difference is what a reload did, or would do.
type Difference struct {
	Generation uint64 // that serves now
	DryRun     bool
	Changes    []config.Change
	Warnings   []config.Warning // of the new configuration
}

// Lines returns one line for each change, for people.
func (d Difference) Lines() []string {
	out := make([]string, 0, len(d.Changes))
	for _, c := range d.Changes {
		out = append(out, c.String())
	}
	return out
}

// Reload puts a plan into force without losing a request, or says every reason
// why not: then nothing has changed. A plan without a difference is published
// all the same, as files that it names may have changed.
func (e *Engine) Reload(plan *config.Plan, opt ReloadOptions) (Difference, error) {
	defer e.tellReload(opt.DryRun)()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reloadLocked(plan, opt)
}

func (e *Engine) reloadLocked(plan *config.Plan, opt ReloadOptions) (Difference, error) {
	old := e.gen.Load()
	d := Difference{Generation: old.Number, DryRun: opt.DryRun, Changes: config.Diff(old.Plan, plan), Warnings: plan.Warnings}
	switch {
	case e.closed || e.state.Load() == phaseDraining:
		return d, ErrStopping
	case !opt.DryRun && e.reloadable() != nil:
		return d, e.reloadable()
	case opt.If != 0 && opt.If != old.Number:
		return d, fmt.Errorf("%w: generation %d serves, not %d", ErrGeneration, old.Number, opt.If)
	case opt.DryRun:
		return d, errors.Join(verify(plan, e.opt.Sockets.Check)...)
	}
	done, err := e.change()
	if err != nil {
		return d, err
	}
	defer done()
	if err := e.applyLocked(plan); err != nil {
		return d, err
	}
	d.Generation = e.gen.Load().Number
	return d, nil
}

// ReloadFile reads the configuration again and puts it into force.
func (e *Engine) ReloadFile(opt ReloadOptions) (Difference, error) {
	if e.opt.Load == nil {
		return Difference{}, ErrNoFile
	}
	defer e.tellReload(opt.DryRun)()
	// Reading under the lock: of two reloads the later one has read later.
	e.mu.Lock()
	defer e.mu.Unlock()
	plan, err := e.opt.Load()
	if err != nil {
		if !opt.DryRun {
			e.metrics.Reload(err)
		}
		return Difference{Generation: e.gen.Load().Number, DryRun: opt.DryRun}, err
	}
	return e.reloadLocked(plan, opt)
}

// reloadSaid reloads and tells the log, for those who cannot be answered.
func (e *Engine) reloadSaid(why string) {
	begin := time.Now()
	d, err := e.ReloadFile(ReloadOptions{})
	if err != nil {
		e.sayRefused(err, why)
		return
	}
	e.sayReloaded(d, why, time.Since(begin))
}

func (e *Engine) sayRefused(err error, why string) {
	e.log.Error("the configuration was not reloaded: the old one stays in force", "cause", why, "error", err)
	e.events.add(Event{At: time.Now(), Kind: "reload_refused", Text: "reload refused: " + firstLine(err)})
}

func (e *Engine) sayReloaded(d Difference, why string, took time.Duration) {
	if d.DryRun {
		return
	}
	lines := d.Lines()
	e.log.Info("configuration reloaded", "cause", why, "generation", d.Generation, "changes", len(lines), "took", took.Round(time.Microsecond))
	for i, l := range lines {
		if i == reloadLinesLogged {
			e.log.Info("and more changes", "more", len(lines)-i)
			break
		}
		e.log.Info("changed", "generation", d.Generation, "change", l)
	}
	e.events.add(Event{At: time.Now(), Kind: "reloaded", Text: fmt.Sprintf("generation %d serves: %d changes (%s)", d.Generation, len(lines), why)})
}

// reloadLinesLogged bounds what one reload writes into the log.
const reloadLinesLogged = 50

func firstLine(err error) string {
	text := err.Error()
	for i := range text {
		if text[i] == '\n' {
			return text[:i] + " ..."
		}
	}
	return text
}
