// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/weirlb/weir/discover"
	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// finder keeps a pool's membership: what the configuration lists, what was added
// to the running pool, and what a source finds beside them. Each live pool has one. populate puts a plan's pool
// into force, startDiscovery and stopDiscovery bracket the source's goroutine;
// these three are called under the engine's mu. The source's goroutine takes mu
// of the finder only, so that the others may wait for it.
type finder struct {
	// Guarded by the engine's mu.
	started bool
	cancel  context.CancelFunc // nil: no source runs
	done    chan struct{}      // closed when it has ended

	mu        sync.Mutex // guards what follows; before the pool's own
	cfg       *config.Discover
	listed    []pool.Spec // by the configuration
	added     []addition  // to the running pool, see backends.go
	guard     discover.Guard
	populated bool // the pool has had its first members
	counts    [len(discoveryOutcomes)]uint64
	last      time.Time // of the last answer with endpoints
	failing   bool
	err       string // of the last failure
	errAt     time.Time
	errSaid   time.Time
	refused   string // the last endpoint that was found and is not used, and why

	remembered   []discover.Endpoint // an old answer of another process, see recallLocked
	rememberedAt time.Time
}

// The outcomes of a look, as the metrics name them.
var discoveryOutcomes = [...]string{"ok", "partial", "empty", "failed"}

const (
	lookedOK = iota
	lookedPartial
	lookedEmpty
	lookedFailed
)

// sayAgainAfter bounds how often a failure that goes on in other words is logged.
const sayAgainAfter = time.Minute

// populate gives the pool the members that a plan lists, beside those found; a
// source that is another one now takes the place of the old one. What the old one
// found stays until the new one has answered.
func (p *livePool) populate(cfg *config.Pool) {
	f := &p.find
	f.mu.Lock()
	same := reflect.DeepEqual(f.cfg, cfg.Discover)
	f.mu.Unlock()
	if !same {
		f.end()
	}
	f.mu.Lock()
	f.cfg, f.listed = cfg.Discover, specs(cfg)
	p.yieldLocked()
	if f.cfg == nil {
		f.guard = discover.Guard{}
	}
	p.updateLocked()
	f.mu.Unlock()
	if f.started && !same {
		p.runSource()
	}
}

// startDiscovery begins to look. It is called once, when the pool starts.
func (p *livePool) startDiscovery() {
	p.find.started = true
	p.runSource()
}

// stopDiscovery ends the source, if one runs, and waits for it. It comes before
// the pool's Close and may be called more than once.
func (p *livePool) stopDiscovery() {
	p.find.started = false
	p.find.end()
}

func (f *finder) end() {
	if f.cancel == nil {
		return
	}
	f.cancel()
	<-f.done
	f.cancel = nil
}

// runSource starts the source's goroutine.
func (p *livePool) runSource() {
	f := &p.find
	if f.cfg == nil || f.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	f.cancel, f.done = cancel, done
	source := sourceOf(f.cfg)
	go func() {
		defer close(done)
		p.search(ctx, source, searchAgain)
	}()
}

// searchAgain is after what time a source that panicked is started again.
const searchAgain = 5 * time.Second

// search runs a source until its end. One that panics is started again: what it found
// stays meanwhile.
func (p *livePool) search(ctx context.Context, source discover.Source, again time.Duration) {
	for p.searchOnce(ctx, source) {
		t := time.NewTimer(again)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (p *livePool) searchOnce(ctx context.Context, source discover.Source) (panicked bool) {
	e := p.driver.engine
	defer func() {
		if v := recover(); v != nil {
			panicked = true
			e.bugAt("discover", v, debug.Stack())
		}
	}()
	if err := source.Run(ctx, p.found); err != nil && ctx.Err() == nil {
		// config has checked the settings, so this is a defect.
		e.bug("discover", err)
	}
	return false
}

// sourceOf makes the source that a configuration asks for.
func sourceOf(c *config.Discover) discover.Source {
	if x := c.DNS; x != nil {
		return &discover.DNS{Name: x.Name, Type: x.Type, Port: x.Port, Scheme: x.Scheme, Servers: x.Servers, Timeout: x.Timeout}
	}
	return &discover.File{Path: c.File, Parse: parseBackends}
}

// parseBackends reads a file with the words of the configuration.
func parseBackends(path string, text []byte) ([]discover.Endpoint, error) {
	list, err := config.ParseBackends(path, text)
	if err != nil {
		return nil, err
	}
	out := make([]discover.Endpoint, 0, len(list))
	for i := range list {
		b := &list[i]
		out = append(out, discover.Endpoint{ID: b.ID, URL: b.URL, Weight: b.Weight, Zone: b.Zone, Priority: b.Priority, Backup: b.Backup})
	}
	return out, nil
}

// found takes in what a look gave. It is called by the source's goroutine.
func (p *livePool) found(got discover.Finding) {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	got.Endpoints = p.usableLocked(got.Endpoints)
	if len(got.Endpoints) == 0 && got.Err == nil {
		got.Err = fmt.Errorf("%s: %w", f.refused, discover.ErrEmpty)
	}
	now := time.Now()
	p.countLocked(now, &got)
	p.recallLocked(&got)
	before, held := len(f.guard.Members()), f.guard.Held()
	change := f.guard.Answer(got, len(f.listed)+len(f.added))
	if change.Any() || !f.populated && len(f.added) > 0 { // who was added has waited for this
		p.updateLocked()
	}
	p.sayChangeLocked(before, held, change)
}

// usableLocked leaves out what must not get traffic: weir's own services for
// operators, and ids that the configuration or the API gave to another backend.
func (p *livePool) usableLocked(list []discover.Endpoint) []discover.Endpoint {
	f := &p.find
	taken := make(map[string]string, len(f.listed)+len(f.added))
	for i := range f.added {
		taken[f.added[i].ID] = " was added by the API"
	}
	for i := range f.listed {
		taken[f.listed[i].ID] = " is listed in the configuration"
	}
	g := p.driver.engine.gen.Load()
	refused := ""
	out := make([]discover.Endpoint, 0, len(list))
	for i := range list {
		e := &list[i]
		_, address, _ := strings.Cut(e.URL, "://")
		own := ""
		if g != nil {
			own = g.Plan.OwnService(address)
		}
		switch {
		case own != "":
			refused = e.ID + " is where weir serves " + own
		case taken[e.ID] != "":
			refused = e.ID + taken[e.ID]
		default:
			out = append(out, *e)
		}
	}
	if refused != f.refused && refused != "" {
		p.driver.log.Warn("a backend that was found is not used", "source", f.cfg.String(), "why", refused)
	}
	f.refused = refused
	return out
}

// updateLocked gives the pool its members. A pool whose backends are all found
// begins with those of the first answer: they then count as its first ones.
func (p *livePool) updateLocked() {
	f := &p.find
	all := p.membersLocked()
	if !f.populated && f.cfg != nil && len(all) == 0 {
		return
	}
	f.populated = true
	p.pool.Update(all)
	p.seatMembers()
}

// membersLocked lists the membership. Of two backends of one id the first counts:
// the configuration comes before the API, and that before what is found.
func (p *livePool) membersLocked() []pool.Spec {
	f := &p.find
	members := f.guard.Members()
	all := make([]pool.Spec, 0, len(f.listed)+len(f.added)+len(members))
	all = append(all, f.listed...)
	for i := range f.added {
		all = append(all, f.added[i].Spec)
	}
	for i := range members {
		e := &members[i]
		all = append(all, pool.Spec{ID: e.ID, URL: e.URL, Weight: e.Weight, Zone: e.Zone, Priority: e.Priority, Backup: e.Backup})
	}
	return all
}

// countLocked notes how a look went, and tells the log when that is news.
func (p *livePool) countLocked(now time.Time, got *discover.Finding) {
	f := &p.find
	outcome := lookedOK
	switch {
	case got.Err == nil:
	case len(got.Endpoints) > 0:
		outcome = lookedPartial
	case errors.Is(got.Err, discover.ErrEmpty):
		outcome = lookedEmpty
	default:
		outcome = lookedFailed
	}
	f.counts[outcome]++
	if len(got.Endpoints) > 0 {
		f.last = now
	}
	log, source := p.driver.log, slog.String("source", f.cfg.String())
	if got.Err == nil {
		if f.failing {
			log.Info("discovery works again", source)
			p.event("discovery works again")
		}
		f.failing = false
		return
	}
	text := got.Err.Error()
	news := !f.failing || text != f.err && now.Sub(f.errSaid) >= sayAgainAfter
	f.failing, f.err, f.errAt = true, text, now
	if !news {
		return
	}
	f.errSaid = now
	kept := len(f.guard.Members())
	switch {
	case outcome == lookedPartial:
		log.Warn("discovery fails in part: for the rest the last good answer stays in use", source, "error", text)
	case kept > 0:
		log.Warn("discovery fails: the last good answer stays in use", source, "backends", kept, "error", text)
	default:
		log.Error("discovery fails, and nothing was found yet", source, "error", text)
	}
	p.event("discovery fails: " + firstLine(got.Err))
}

// sayChangeLocked tells what an answer changed. before and held are the members
// and those of them that waited before.
func (p *livePool) sayChangeLocked(before, held int, c discover.Change) {
	f := &p.find
	log, source := p.driver.log, slog.String("source", f.cfg.String())
	now := len(f.guard.Members())
	switch {
	case c.Any() && before == 0:
		log.Info("backends found", source, "backends", now)
		p.event(fmt.Sprintf("%d backends found", now))
	case c.Any():
		log.Info("backends changed", source, "backends", now, "added", c.Added, "removed", c.Removed, "updated", c.Updated, "confirmed", held > 0 && c.Removed > 0)
		p.event(fmt.Sprintf("backends changed: %d added, %d removed, %d updated", c.Added, c.Removed, c.Updated))
	}
	if c.Held > 0 && c.Held != held {
		log.Warn("more than half of the pool is missing from an answer: it stays until another answer confirms that", source, "missing", c.Held, "backends", now)
		p.event(fmt.Sprintf("%d of %d backends are missing from an answer: they stay until another one confirms that", c.Held, now))
	}
	if c.Held == 0 && held > 0 && c.Removed == 0 {
		log.Info("the backends that were missing from an answer are there again", source, "backends", now)
	}
}

func (p *livePool) event(text string) {
	p.driver.engine.events.add(Event{At: time.Now(), Kind: "discovery", Pool: p.name, Text: text})
}

// undiscovered reports whether the pool waits for the first answer of its source
// and has nobody until then.
func (p *livePool) undiscovered() bool {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cfg != nil && !f.populated
}

// discovery is what the API tells of the source; nil: there is none.
func (p *livePool) discovery() *admin.Discovery {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cfg == nil {
		return nil
	}
	out := &admin.Discovery{
		Source: f.cfg.String(), Found: len(f.guard.Members()), Held: f.guard.Held(),
		Failing: f.failing, LastError: f.err, NotUsed: f.refused,
	}
	if !f.last.IsZero() {
		t := f.last
		out.LastAnswer = &t
	}
	if !f.errAt.IsZero() {
		t := f.errAt
		out.LastErrorAt = &t
	}
	return out
}

// discoveryGauges is what a scrape reads; nil: there is no source.
func (p *livePool) discoveryGauges() *observe.DiscoveryGauges {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cfg == nil {
		return nil
	}
	g := &observe.DiscoveryGauges{Backends: len(f.guard.Members()), Held: f.guard.Held(), LastAnswer: f.last}
	for i, n := range f.counts {
		g.Answers = append(g.Answers, observe.DiscoveryAnswers{Outcome: discoveryOutcomes[i], Count: n})
	}
	return g
}
