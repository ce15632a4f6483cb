// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/pool"
)

var (
	_ admin.Membership = (*Engine)(nil)
	_ admin.Changer    = (*Engine)(nil)
)

// addition is a backend that was added to the running pool.
type addition struct {
	pool.Spec
	since time.Time
}

// AddBackend implements admin.Membership.
func (e *Engine) AddBackend(poolName string, description []byte) (admin.Backend, bool, error) {
	e.mu.Lock() // no reload comes between the look and the deed
	defer e.mu.Unlock()
	g := e.gen.Load()
	p := g.pools[poolName]
	if p == nil {
		return admin.Backend{}, false, e.unknownPool(poolName)
	}
	b, err := config.ParseBackend(description)
	if err != nil {
		return admin.Backend{}, false, faulty{err}
	}
	if own := g.Plan.OwnService(b.Address); own != "" {
		return admin.Backend{}, false, faulty{fmt.Errorf("%s is where weir serves %s: traffic must not be sent there", b.Address, own)}
	}
	if e.closed {
		return admin.Backend{}, false, fmt.Errorf("%w: %w", admin.ErrConflict, ErrStopping)
	}
	done, err := e.change()
	if err != nil {
		return admin.Backend{}, false, err
	}
	defer done()
	spec := pool.Spec{ID: b.ID, URL: b.URL, Weight: b.Weight, Zone: b.Zone, Priority: b.Priority, Backup: b.Backup}
	created, err := p.add(spec, time.Now())
	if err != nil {
		return admin.Backend{}, false, err
	}
	out, _ := p.backend(b.ID)
	return out, created, nil
}

// add puts a backend into the membership, or gives one that was added its new
// settings.
func (p *livePool) add(s pool.Spec, now time.Time) (created bool, err error) {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.ContainsFunc(f.listed, func(l pool.Spec) bool { return l.ID == s.ID }) {
		return false, conflict("%s/%s is in the configuration already: change it there and reload, or choose another id", p.name, s.ID)
	}
	for _, m := range f.guard.Members() {
		if m.ID == s.ID {
			return false, conflict("%s/%s is in the pool already: it was found by %s; choose another id, or use 'weir weight' and 'weir drain'", p.name, s.ID, f.cfg)
		}
	}
	i := slices.IndexFunc(f.added, func(a addition) bool { return a.ID == s.ID })
	switch {
	case i < 0:
		f.added = append(f.added, addition{s, now})
	case f.added[i].URL != s.URL:
		return false, conflict("%s/%s was added as %s: remove it first, or choose another id", p.name, s.ID, f.added[i].URL)
	case f.added[i].Spec == s:
		return false, nil
	default:
		f.added[i].Spec = s
	}
	p.updateLocked()
	what := "backend added"
	if i >= 0 {
		what = "backend changed"
	}
	p.tell(slog.LevelInfo, s.ID, what+" by the API", slog.String("url", s.URL), slog.Uint64("weight", uint64(s.Weight)))
	return i < 0, nil
}

// RemoveBackend implements admin.Membership.
func (e *Engine) RemoveBackend(poolName, id string, r admin.Removal) (admin.Backend, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.gen.Load().pools[poolName]
	if p == nil {
		return admin.Backend{}, e.unknownPool(poolName)
	}
	done, err := e.change()
	if err != nil {
		return admin.Backend{}, err
	}
	defer done()
	deadline := r.Deadline
	if r.Force {
		deadline = -1
	}
	was, err := p.takeOut(id, deadline)
	if err != nil {
		return admin.Backend{}, err
	}
	if b, ok := p.backend(id); ok {
		return b, nil
	}
	return admin.Backend{ // nothing was in flight
		ID: id, URL: was.URL, Zone: was.Zone, Weight: was.Weight, Backup: was.Backup, Since: time.Now(),
		Admin: "draining", Health: "unproven", Removed: true, Drain: &admin.Drain{Done: true},
	}, nil
}

// takeOut takes a backend that was added out of the membership, or moves the
// deadline of one that has left it.
func (p *livePool) takeOut(id string, deadline time.Duration) (pool.Spec, error) {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.IndexFunc(f.added, func(a addition) bool { return a.ID == id }); i >= 0 {
		was := f.added[i].Spec
		f.added = slices.Delete(f.added, i, i+1)
		p.pool.Dismiss(id, p.membersLocked(), deadline)
		p.seatMembers()
		within := "the pool's drain.deadline"
		switch {
		case deadline < 0:
			within = "none: cut at once"
		case deadline > 0:
			within = deadline.String()
		}
		p.tell(slog.LevelInfo, id, "backend removed by the API", slog.String("deadline", within))
		return was, nil
	}
	if slices.ContainsFunc(f.listed, func(s pool.Spec) bool { return s.ID == id }) {
		return pool.Spec{}, conflict("%[1]s/%[2]s is in the configuration: take it out of service with 'weir drain %[1]s/%[2]s' or 'weir disable', or remove it from the file and reload", p.name, id)
	}
	for _, m := range f.guard.Members() {
		if m.ID == id {
			return pool.Spec{}, conflict("%[1]s/%[2]s was found by %[3]s: take it out of service with 'weir drain %[1]s/%[2]s' or 'weir disable', or remove it where it is found", p.name, id, f.cfg)
		}
	}
	s := p.pool.Snapshot()
	for i := range s.Backends {
		if b := &s.Backends[i]; b.ID == id && b.Removed {
			p.pool.Dismiss(id, p.membersLocked(), deadline)
			p.seatMembers()
			return pool.Spec{ID: id, URL: b.URL, Zone: b.Zone, Weight: b.Weight, Backup: b.Backup}, nil
		}
	}
	return pool.Spec{}, p.unknownBackend(id)
}

// ChangeBackends implements admin.Changer.
func (e *Engine) ChangeBackends(poolName string, list []admin.BackendChange) (out admin.BackendsChanged, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.gen.Load()
	p := g.pools[poolName]
	if p == nil {
		return out, e.unknownPool(poolName)
	}
	specs := make([]pool.Spec, len(list)) // of those to be added
	var faults []error
	for i := range list {
		if list[i].Remove != "" {
			continue
		}
		b, err := config.ParseBackend(list[i].Description)
		switch own := g.Plan.OwnService(b.Address); {
		case err != nil:
			faults = append(faults, fmt.Errorf("item %d: %w", i, err))
		case own != "":
			faults = append(faults, fmt.Errorf("item %d: %s is where weir serves %s: traffic must not be sent there", i, b.Address, own))
		}
		specs[i] = pool.Spec{ID: b.ID, URL: b.URL, Weight: b.Weight, Zone: b.Zone, Priority: b.Priority, Backup: b.Backup}
	}
	switch {
	case len(faults) > 0:
		return out, faulty{errors.Join(faults...)}
	case e.closed:
		return out, fmt.Errorf("%w: %w", admin.ErrConflict, ErrStopping)
	}
	done, err := e.change()
	if err != nil {
		return out, err
	}
	defer done()
	return p.changeAll(list, specs, time.Now())
}

// changeAll makes all changes of a list with one update of the pool, or none.
func (p *livePool) changeAll(list []admin.BackendChange, specs []pool.Spec, now time.Time) (out admin.BackendsChanged, err error) {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := make(map[string]string, len(f.listed)) // id to who has it
	for _, m := range f.guard.Members() {
		taken[m.ID] = "was found by " + f.cfg.String()
	}
	for i := range f.listed {
		taken[f.listed[i].ID] = "is in the configuration"
	}
	added := slices.Clone(f.added)
	at := make(map[string]int, len(added))
	for i := range added {
		at[added[i].ID] = i
	}
	var faults []error
	gone := map[string]bool{}
	for i := range list {
		id := list[i].Remove
		if id == "" {
			id = specs[i].ID
		}
		j, known := at[id]
		known = known && !gone[id]
		switch {
		case taken[id] != "":
			faults = append(faults, fmt.Errorf("item %d: %s/%s %s", i, p.name, id, taken[id]))
		case list[i].Remove != "" && !known:
			faults = append(faults, fmt.Errorf("item %d: no backend %s was added to %s", i, id, p.name))
		case list[i].Remove != "":
			gone[id] = true
			out.Removed++
		case known && added[j].URL != specs[i].URL:
			faults = append(faults, fmt.Errorf("item %d: %s/%s was added as %s: remove it first, or choose another id", i, p.name, id, added[j].URL))
		case known && added[j].Spec != specs[i]:
			added[j].Spec = specs[i]
			out.Changed++
		case !known && gone[id]:
			faults = append(faults, fmt.Errorf("item %d: %s/%s is removed by the same list: add it when it is gone", i, p.name, id))
		case !known:
			at[id] = len(added)
			added = append(added, addition{specs[i], now})
			out.Added++
		}
	}
	if len(faults) > 0 {
		return admin.BackendsChanged{}, inTheWay{errors.Join(faults...)}
	}
	if out == (admin.BackendsChanged{}) {
		return out, nil
	}
	f.added = slices.DeleteFunc(added, func(a addition) bool { return gone[a.ID] })
	p.updateLocked()
	text := fmt.Sprintf("%d backends added, %d changed, %d removed by the API", out.Added, out.Changed, out.Removed)
	p.driver.log.LogAttrs(context.Background(), slog.LevelInfo, text)
	p.driver.engine.events.add(Event{At: now, Kind: "membership", Pool: p.name, Text: text})
	return out, nil
}

// yieldLocked ends the additions whose ids the configuration lists now: the file
// is where they were meant to end up.
func (p *livePool) yieldLocked() {
	f := &p.find
	f.added = slices.DeleteFunc(f.added, func(a addition) bool {
		i := slices.IndexFunc(f.listed, func(s pool.Spec) bool { return s.ID == a.ID })
		if i < 0 {
			return false
		}
		text := "a backend that was added by the API is in the configuration now"
		if f.listed[i].URL != a.URL {
			text += ", with another address"
		}
		p.tell(slog.LevelInfo, a.ID, text, slog.String("url", f.listed[i].URL))
		return true
	})
}

// forgetAdded ends what was added to a pool that leaves the configuration: should
// the pool come back it has what the file lists. Until it has retired it serves
// with whom it has.
func (p *livePool) forgetAdded() {
	p.find.mu.Lock()
	defer p.find.mu.Unlock()
	p.find.added = nil
}

// tell puts something about a backend into the log and the events.
func (p *livePool) tell(level slog.Level, id, text string, attrs ...slog.Attr) {
	p.driver.log.LogAttrs(context.Background(), level, text, append([]slog.Attr{slog.String("backend", id)}, attrs...)...)
	p.driver.engine.events.add(Event{At: time.Now(), Kind: "membership", Pool: p.name, Backend: id, Text: text})
}

// sources says where each id is known from.
func (f *finder) sources() (from map[string]string, since map[string]time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	members := f.guard.Members()
	from = make(map[string]string, len(f.listed)+len(f.added)+len(members))
	since = make(map[string]time.Time, len(f.added))
	for i := range members {
		from[members[i].ID] = admin.SourceDiscovery
	}
	for i := range f.added {
		from[f.added[i].ID], since[f.added[i].ID] = admin.SourceAPI, f.added[i].since
	}
	for i := range f.listed {
		from[f.listed[i].ID] = admin.SourceConfig
	}
	return from, since
}

// backend returns one backend as the API shows it; one that only other balancers
// use with what is known of it here.
func (p *livePool) backend(id string) (admin.Backend, bool) {
	members := p.view().Members
	for i := range members {
		if members[i].ID == id {
			return members[i], true
		}
	}
	f := &p.find
	f.mu.Lock()
	all := p.membersLocked()
	f.mu.Unlock()
	i := slices.IndexFunc(all, func(s pool.Spec) bool { return s.ID == id })
	if i < 0 {
		return admin.Backend{}, false
	}
	s := &all[i]
	from, _ := f.sources()
	out := admin.Backend{
		ID: id, URL: s.URL, Zone: s.Zone, Weight: s.Weight, Backup: s.Backup, Admin: "enabled", Health: "unproven",
		Why:           "this balancer's subset does not hold it; what is said of it is kept for when it does",
		OutsideSubset: true, Source: from[id], Since: time.Now(),
	}
	if o, since := p.pool.Overridden(id); o.Admin != nil || o.Weight != nil {
		out.Override = overrideView(&o, s.Weight, since, clock.Now())
		if o.Admin != nil {
			out.Admin = o.Admin.String()
		}
		if o.Weight != nil {
			out.Weight = *o.Weight
		}
	}
	return out, true
}

// faulty is an ErrBadBackend whose text is the reasons alone.
type faulty struct{ error }

func (f faulty) Unwrap() []error { return []error{admin.ErrBadBackend, f.error} }

// inTheWay is an ErrConflict whose text is the reason alone.
type inTheWay struct{ error }

func (c inTheWay) Unwrap() []error { return []error{admin.ErrConflict, c.error} }

func conflict(format string, args ...any) error { return inTheWay{fmt.Errorf(format, args...)} }

// AddedState is a backend that was added by the API, for another process.
type AddedState struct {
	ID       string        `json:"id"`
	URL      string        `json:"url"`
	Weight   uint32        `json:"weight"`
	Zone     string        `json:"zone,omitempty"`
	Priority uint8         `json:"priority,omitempty"`
	Backup   bool          `json:"backup,omitempty"`
	Age      time.Duration `json:"age"` // since it was added
}

// exportAdded returns what was added to the pool.
func (p *livePool) exportAdded() []AddedState {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]AddedState, 0, len(f.added))
	for i := range f.added {
		a := &f.added[i]
		out = append(out, AddedState{
			ID: a.ID, URL: a.URL, Weight: a.Weight, Zone: a.Zone, Priority: a.Priority, Backup: a.Backup, Age: time.Since(a.since),
		})
	}
	return out
}

// restoreAdded adds what was added to the pool in another process, age ago. What
// this configuration lists, or refuses, is left out; for the refused ones a line
// each comes back. It comes before anything else is restored, so that there is a
// backend for what was known of it.
func (p *livePool) restoreAdded(list []AddedState, age time.Duration) (refused []string) {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := make(map[string]bool, len(f.listed)+len(f.added)+len(list))
	for i := range f.listed {
		taken[f.listed[i].ID] = true
	}
	for i := range f.added {
		taken[f.added[i].ID] = true
	}
	plan := p.driver.engine.gen.Load().Plan
	for i := range list {
		a := &list[i]
		b, err := config.ParseBackend(a.description())
		switch own := plan.OwnService(b.Address); {
		case err != nil:
			refused = append(refused, fmt.Sprintf("pool %s: backend %q: %s", p.name, a.ID, firstLine(err)))
		case own != "":
			refused = append(refused, fmt.Sprintf("pool %s: backend %s is where weir serves %s", p.name, a.ID, own))
		case !taken[b.ID]:
			taken[b.ID] = true
			f.added = append(f.added, addition{
				pool.Spec{ID: b.ID, URL: b.URL, Weight: b.Weight, Zone: b.Zone, Priority: b.Priority, Backup: b.Backup},
				time.Now().Add(-max(a.Age, 0) - max(age, 0)),
			})
		}
	}
	if len(list) > 0 && !f.waitsLocked() {
		p.updateLocked()
	}
	return refused
}

// waitsLocked reports that the pool has nobody and that its source has not
// answered yet. Those of the first answer are established and have their share at
// once; beside one that came before them they would be slow-started, and it would
// bear their load.
func (f *finder) waitsLocked() bool {
	return f.cfg != nil && !f.populated && len(f.listed)+len(f.guard.Members()) == 0
}

// description is what a client of the API would have sent: a state that was made
// elsewhere is held to the same rules.
func (a *AddedState) description() []byte {
	m := map[string]any{"url": a.URL, "id": a.ID, "weight": a.Weight, "priority": a.Priority, "backup": a.Backup}
	if a.Zone != "" {
		m["zone"] = a.Zone
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil // strings and numbers: cannot happen
	}
	return text
}
