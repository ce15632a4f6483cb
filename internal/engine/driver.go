// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/pool"
)

// driver does for one pool what its core decides. It implements pool.Driver.
type driver struct {
	// Constant once the pool has started.
	engine *Engine
	pool   *livePool
	name   string
	log    *slog.Logger

	set atomic.Pointer[driverSettings]

	waves map[*balance.Backend]*wave // owned by the pool's goroutine
	// resumed are the members that the process before had, too: it told of them when
	// they came. Written before the pool starts, then owned by its goroutine.
	resumed map[string]bool
}

// driverSettings is what backends are connected to and probed with: immutable.
type driverSettings struct {
	cfg *config.Pool
	tls *tls.Config // for https backends and probes; cloned per backend
}

var _ pool.Driver = (*driver)(nil)

// Attach implements pool.Driver.
func (d *driver) Attach(b *balance.Backend) any {
	t, err := d.newTarget(b)
	if err != nil {
		// config has checked every URL, so this is a defect. The backend stays
		// without connections; probes say why.
		d.engine.bug("attach", err)
		return nil
	}
	return t
}

// Probe implements pool.Driver.
func (d *driver) Probe(b *balance.Backend, timeout time.Duration, done func(health.ProbeResult)) {
	t := targetOf(b)
	if t == nil {
		now := clock.Now()
		done(health.ProbeResult{Outcome: health.NoAnswer, Sent: now, At: now, Cause: health.CauseNoRoute, Error: "no usable address"})
		return
	}
	p := *t.probe.Load()
	if b.Suspect() || b.Unreachable() || b.Share() <= 0 {
		p.Within = 0 // a verdict hangs on it
	}
	d.engine.prober.Probe(p, timeout, done)
}

// CloseIdle implements pool.Driver.
func (d *driver) CloseIdle(b *balance.Backend) {
	if t := targetOf(b); t != nil {
		t.up.CloseIdle()
	}
}

// Gone implements pool.Driver.
func (d *driver) Gone(b *balance.Backend) {
	if t := targetOf(b); t != nil {
		t.up.Close()
	}
	if f := d.engine.front; f != nil { // a file that is explained has none
		f.tunnels.EndDrain(b)
	}
	d.engine.metrics.BackendGone(d.name, b.ID())
}

// Notice implements pool.Driver: the same word goes to the log, the events and
// the metrics.
func (d *driver) Notice(n pool.Notice) {
	level := slog.LevelInfo
	attrs := make([]slog.Attr, 0, 8)
	if n.Backend != nil {
		attrs = append(attrs, slog.String("backend", n.Backend.ID()))
	}
	switch n.Kind {
	case pool.Added, pool.Removed, pool.DrainEnding:
		level = slog.LevelDebug // a large pool would fill the log at every start
	case pool.StateChanged:
		switch {
		case n.To == health.StateBroken || n.To == health.StateNotReady:
			level = slog.LevelWarn
		case n.From == health.StateUnproven:
			level = slog.LevelDebug // the good news that everybody expected
		}
		attrs = append(attrs, slog.String("from", n.From.String()), slog.String("to", n.To.String()), slog.Float64("share", round(n.Share)))
	case pool.SlowStartBegan:
		if n.Backend != nil {
			level = slog.LevelDebug // status shows it; a deploy would say it for everyone
		}
		attrs = append(attrs, slog.Float64("share", n.Share))
	case pool.EjectedNow:
		level = slog.LevelWarn
		d.engine.metrics.Ejected(d.name, n.Backend.ID(), ejectionCause(n.Why))
	case pool.PanicBegan, pool.SharedDependency, pool.BrokenCheck, pool.DrainOver:
		level = slog.LevelError
	}
	if reason := n.Reason.String(); reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	if n.Why != "" {
		attrs = append(attrs, slog.String("why", n.Why))
	}
	if n.For > 0 {
		attrs = append(attrs, slog.Duration("for", n.For))
	}
	if n.Kind == pool.DrainOver {
		attrs = append(attrs, slog.Int64("cut", n.Left))
	} else if n.Left > 0 {
		attrs = append(attrs, slog.Int64("in_flight", n.Left))
	}
	d.log.LogAttrs(context.Background(), level, n.Kind.String(), attrs...)
	if n.Kind == pool.Added && d.resumed[n.Backend.ID()] {
		delete(d.resumed, n.Backend.ID()) // what comes back later is told of
	} else {
		d.engine.events.add(eventOf(&n))
	}
	d.connections(&n)
	d.tunnels(&n)
}

// ejectionCause is the label for what an ejection's words begin with: the
// words hold counts and times, which would make a series each.
func ejectionCause(why string) string {
	switch {
	case strings.HasPrefix(why, "failed on probation"):
		return "probation"
	case strings.Contains(why, " answers were 5xx"):
		return "error_share"
	case strings.Contains(why, " requests failed"):
		return "success_rate"
	case strings.HasPrefix(why, "median latency"):
		return "latency"
	default:
		return "consecutive"
	}
}

// connections does to the backend's connections what the notice is about.
func (d *driver) connections(n *pool.Notice) {
	if n.Backend == nil {
		return
	}
	t := targetOf(n.Backend)
	if t == nil {
		return
	}
	switch n.Kind {
	case pool.DrainBegan:
		t.up.SetDraining(!n.Sessions)
	case pool.SessionsOver:
		t.up.SetDraining(true)
	case pool.DrainOver:
		t.up.Cut()
	case pool.Overridden, pool.Added: // added: it may have come back in the midst of its drain
		if n.Backend.Admin() == balance.Enabled {
			t.up.SetDraining(false)
		}
	}
}

// eventOf puts a notice into a sentence.
func eventOf(n *pool.Notice) Event {
	e := Event{At: clock.Time(n.At), Pool: n.Pool, Kind: n.Kind.String()}
	if n.Backend != nil {
		e.Backend = n.Backend.ID()
	}
	switch n.Kind {
	case pool.StateChanged:
		e.Text = fmt.Sprintf("%s -> %s", n.From, n.To)
	case pool.DrainOver:
		e.Text = fmt.Sprintf("%s: %d in flight at the deadline of the drain, and cut", n.Kind, n.Left)
	case pool.EjectedNow:
		e.Text = fmt.Sprintf("ejected for %s", n.For)
	default:
		e.Text = n.Kind.String()
	}
	if n.Why != "" {
		e.Text += ": " + n.Why
	}
	return e
}
