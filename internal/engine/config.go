// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
)

var _ admin.Reloader = (*Engine)(nil)

// ReloadConfig implements admin.Reloader.
func (e *Engine) ReloadConfig(dryRun bool) (admin.Reload, error) {
	begin := time.Now()
	d, err := e.ReloadFile(ReloadOptions{DryRun: dryRun})
	return e.answered(d, err, "api", begin)
}

// ApplyConfig implements admin.Reloader. The text is in force until the next
// reload of the file or the end of the process.
func (e *Engine) ApplyConfig(text []byte, generation uint64, dryRun bool) (admin.Reload, error) {
	begin := time.Now()
	plan, err := config.Parse(postedName, text, os.LookupEnv)
	var d Difference
	if err == nil {
		d, err = e.Reload(plan, ReloadOptions{DryRun: dryRun, If: generation})
	} else if !dryRun {
		e.metrics.Reload(err)
	}
	return e.answered(d, err, "posted", begin)
}

// postedName stands for the file in the positions of a configuration that came
// through the API.
const postedName = "posted"

// RunningConfig implements admin.Reloader.
func (e *Engine) RunningConfig() admin.Config {
	g := e.gen.Load()
	return admin.Config{Generation: g.Number, File: g.Plan.File, Text: string(g.Plan.Public())}
}

// answered puts the outcome of a reload into the API's words, and into the log.
func (e *Engine) answered(d Difference, err error, why string, begin time.Time) (admin.Reload, error) {
	if err != nil {
		if !d.DryRun {
			e.sayRefused(err, why)
		}
		switch {
		case errors.Is(err, admin.ErrUpgrading):
			return admin.Reload{}, err
		case errors.Is(err, ErrNoFile), errors.Is(err, ErrStopping):
			return admin.Reload{}, fmt.Errorf("%w: %w", admin.ErrNoReload, err)
		case errors.Is(err, ErrGeneration):
			return admin.Reload{}, fmt.Errorf("%w: %w", admin.ErrGeneration, err)
		default:
			return admin.Reload{}, refusal{err}
		}
	}
	e.sayReloaded(d, why, time.Since(begin))
	out := admin.Reload{Generation: d.Generation, DryRun: d.DryRun}
	for _, c := range d.Changes {
		out.Changes = append(out.Changes, admin.Delta{Op: c.Op, Path: c.Path, Old: c.Old, New: c.New, Text: c.String()})
	}
	for i := range d.Warnings {
		out.Warnings = append(out.Warnings, d.Warnings[i].String())
	}
	return out, nil
}

// refusal is an ErrBadConfig whose text is the reasons alone, each beginning
// with its place.
type refusal struct{ error }

func (r refusal) Unwrap() []error { return []error{admin.ErrBadConfig, r.error} }
