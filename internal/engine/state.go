// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/pool"
)

// stateVersion is the version of the format. It changes when a field changes its
// meaning; one that is added does not change it.
const stateVersion = 1

// State is what a process knows, for the one that comes after it: handed over in
// an upgrade, or kept in a file over a restart. Times in it are ages at the
// export, as instants do not travel between processes. The zero value says
// nothing.
type State struct {
	Version    int         `json:"version"`
	Weir       string      `json:"weir,omitempty"` // version of the program that wrote it; for people
	Taken      time.Time   `json:"taken"`          // when it was exported, by the wall clock
	Generation uint64      `json:"generation,omitempty"`
	Pools      []PoolState `json:"pools,omitempty"` // sorted by name
	// Events are what the process remembers to have happened, the oldest first. They go
	// from process to process; a file would be written anew for each.
	Events []admin.Event `json:"events,omitempty"`
	// Failures are the last requests that failed, as many as may travel. They go from
	// process to process: they tell of clients.
	Failures []observe.KeptFailures `json:"failures,omitempty"`
	// Tickets are secrets: they go from process to process and into no file.
	Tickets []TicketState `json:"tickets,omitempty"`
}

// TicketState is the keys of session tickets of one listener.
type TicketState struct {
	Listener string             `json:"listener"`
	Keys     []listen.TicketKey `json:"keys"`
}

// PoolState is one pool.
type PoolState struct {
	Name string     `json:"name"`
	Core pool.Saved `json:"core"`
	// Added are the backends that the API added to the running pool.
	Added []AddedState `json:"added,omitempty"`
	// Learned is when backends were seen to close idle connections.
	Learned []IdleState `json:"learned_idle,omitempty"`
	// Found is the last good answer of the pool's source.
	Found *FoundState `json:"found,omitempty"`
}

// RestoreReport says what became of a State.
type RestoreReport struct {
	Age        time.Duration // since the export, by the wall clock
	Generation uint64        // that serves now
	Pools      int           // that go on, or at least have their overrides
	Backends   int           // that know what they knew
	Overrides  int
	Unknown    int      // pools and backends that this configuration does not have
	Stale      bool     // too old for anything but overrides
	Refused    []string // what cannot be true, one line each; nothing of it was used
}

// stateYoung is the age up to which a state tells more than the operator's word:
// what was known of health and speed before is no better than nothing, and by then
// probes have long said what is.
const stateYoung = 5 * time.Minute

// failuresMost bounds how many bytes of failures are handed over: a hundred pools in
// which everything fails have twice that.
const failuresMost = 4 << 20

// refusedMost bounds the lines of a report.
const refusedMost = 20

// ErrStateVersion is returned for a state that another version wrote in a form
// that this one does not know.
var ErrStateVersion = errors.New("a state of another version")

// ExportState returns what the process knows now. It may be called at any time;
// requests do not notice.
func (e *Engine) ExportState() State {
	s := State{Version: stateVersion, Weir: e.opt.Version, Taken: time.Now(), Generation: e.gen.Load().Number}
	for _, p := range e.livePools() {
		s.Pools = append(s.Pools, PoolState{
			Name: p.name, Core: p.pool.Export(), Added: p.exportAdded(), Learned: p.exportLearned(), Found: p.exportFound(),
		})
	}
	for _, l := range e.liveListeners() {
		if keys := l.ln.TicketKeys(); keys != nil {
			s.Tickets = append(s.Tickets, TicketState{l.name, keys})
		}
	}
	s.Events, _ = e.FollowEvents(0)
	return s
}

// handedState is ExportState for the process that takes over, with what goes into no
// file and would cost too much to gather for one.
func (e *Engine) handedState() State {
	s := e.ExportState()
	s.Failures = e.failures.Export(failuresMost)
	return s
}

// Encode returns the state as JSON.
func (s State) Encode() []byte {
	s.Version = stateVersion
	out, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("engine: a state does not encode: %v", err)) // there is nothing in it that may fail
	}
	return out
}

// DecodeState reads what Encode wrote. Fields that this version does not know are
// ignored; a state in another form is ErrStateVersion.
func DecodeState(text []byte) (State, error) {
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return State{}, fmt.Errorf("the state cannot be read: %w", err)
	}
	if s.Version != stateVersion {
		return State{}, fmt.Errorf("%w: %d, this one reads %d", ErrStateVersion, s.Version, stateVersion)
	}
	return s, nil
}

// forDisk returns the state without what is not to be written down: keys, and
// who the clients were.
func (s State) forDisk() State {
	s.Tickets, s.Events, s.Failures = nil, nil, nil
	s.Pools = slices.Clone(s.Pools)
	for i := range s.Pools {
		s.Pools[i].Core = s.Pools[i].Core.WithoutClients()
	}
	return s
}

// RestoreState takes in what another process knew. It is called between New and
// Start; later it changes nothing. What the configuration does not name is left
// out, and of a state that is older than five minutes all but the operator's word:
// overrides, and backends that were added. A later call replaces what an earlier
// one said.
func (e *Engine) RestoreState(s State) RestoreReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.restoreLocked(&s)
}

func (e *Engine) restoreLocked(s *State) RestoreReport {
	since := time.Since(s.Taken)
	r := RestoreReport{Age: max(since, 0), Generation: e.gen.Load().Number}
	// A clock that was set back a little is nothing, one that was wrong says nothing.
	r.Stale = since > stateYoung || since < -stateYoung
	if e.closed || e.state.Load() != phaseStarting {
		r.Refused = append(r.Refused, "all of it: this process serves already")
		return r
	}
	live := e.livePools()
	for i := range s.Pools {
		at := slices.IndexFunc(live, func(p *livePool) bool { return p.name == s.Pools[i].Name })
		if at < 0 {
			r.Unknown++
			continue
		}
		r.restorePool(live[at], &s.Pools[i])
	}
	for _, l := range e.liveListeners() {
		for _, t := range s.Tickets {
			if t.Listener != l.name {
				continue
			}
			if err := l.ln.SetTicketKeys(t.Keys); err != nil {
				r.refuse("listener " + l.name + ": " + err.Error())
			}
		}
	}
	if len(s.Events) > 0 {
		before := make([]Event, len(s.Events))
		for i := range s.Events {
			before[i] = Event(s.Events[i])
		}
		e.events.inherit(before)
	}
	e.failures.Import(s.Failures)
	e.renumber(s.Generation)
	r.Generation = e.gen.Load().Number
	e.restored = true
	return r
}

// restorePool takes in what concerns one pool: first who its backends are, then
// what is known of them.
func (r *RestoreReport) restorePool(p *livePool, s *PoolState) {
	for _, line := range p.restoreAdded(s.Added, r.Age) {
		r.refuse(line)
	}
	for _, line := range p.restoreFound(s.Found, r.Age, r.Stale) {
		r.refuse(line)
	}
	core := s.Core
	if r.Stale {
		core = core.OnlyOverrides()
	}
	p.driver.resume(p, &core)
	got := p.pool.Restore(core, r.Age)
	p.restoreLearned(s.Learned, r.Age)
	for _, line := range got.Refused {
		r.refuse("pool " + p.name + ": " + line)
	}
	r.Pools++
	r.Backends += got.Backends
	r.Overrides += got.Overrides
	r.Unknown += got.Unknown
}

// resume notes which members the process before had, so that nobody reads after each
// upgrade that they were added. It is called before the pool starts.
func (d *driver) resume(p *livePool, before *pool.Saved) {
	type member struct{ id, url string }
	had := make(map[member]bool, len(before.Backends))
	for i := range before.Backends {
		had[member{before.Backends[i].ID, before.Backends[i].URL}] = true
	}
	d.resumed = make(map[string]bool, len(had))
	s := p.pool.Snapshot()
	for i := range s.Backends {
		if b := &s.Backends[i]; had[member{b.ID, b.URL}] {
			d.resumed[b.ID] = true
		}
	}
}

func (r *RestoreReport) refuse(line string) {
	switch n := len(r.Refused); {
	case n < refusedMost:
		r.Refused = append(r.Refused, line)
	case n == refusedMost:
		r.Refused = append(r.Refused, "and more")
	}
}

// renumber makes the generation that is about to serve the one after those of the
// process before, so that a number names one configuration over its end. Called
// under mu, before Start.
func (e *Engine) renumber(before uint64) {
	g := *e.gen.Load()
	if before < g.Number || before >= math.MaxInt64 {
		return
	}
	g.Number = before + 1
	e.gen.Store(&g)
	e.metrics.SetGeneration(g.Number)
}
