// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

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
}

// PoolState is one pool.
type PoolState struct {
	Name string     `json:"name"`
	Core pool.Saved `json:"core"`
	// Added are the backends that the API added to the running pool.
	Added []AddedState `json:"added,omitempty"`
	// Learned is when backends were seen to close idle connections.
	Learned []IdleState `json:"learned_idle,omitempty"`
}

// RestoreReport says what became of a State.
type RestoreReport struct {
	Age        time.Duration // since the export, by the wall clock
	Generation uint64        // that serves now
	Pools      int           // that took something
	Backends   int           // that know what they knew
	Overrides  int
	Unknown    int      // pools and backends that this configuration does not have
	Stale      bool     // too old for anything but overrides
	Refused    []string // what cannot be true, one line each; nothing of it was used
}

// ErrStateVersion is returned for a state that another version wrote in a form
// that this one does not know.
var ErrStateVersion = errors.New("a state of another version")

// ExportState returns what the process knows now. It may be called at any time;
// requests do not notice.
func (e *Engine) ExportState() State {
	s := State{Version: stateVersion, Weir: e.opt.Version, Taken: time.Now(), Generation: e.gen.Load().Number}
	for _, p := range e.livePools() {
		s.Pools = append(s.Pools, PoolState{Name: p.name, Added: p.exportAdded(), Learned: p.exportLearned()})
	}
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

// RestoreState takes in what another process knew. It is called between New and
// Start; later it changes nothing. What the configuration no longer names is left
// out. A later call replaces what an earlier one said.
func (e *Engine) RestoreState(s State) RestoreReport {
	r := RestoreReport{Age: max(time.Since(s.Taken), 0), Generation: e.gen.Load().Number}
	live := e.livePools()
	for i := range s.Pools {
		at := slices.IndexFunc(live, func(p *livePool) bool { return p.name == s.Pools[i].Name })
		if at < 0 {
			r.Unknown++
			continue
		}
		r.Refused = append(r.Refused, live[at].restoreAdded(s.Pools[i].Added, r.Age)...)
		live[at].restoreLearned(s.Pools[i].Learned, r.Age)
	}
	return r
}
