// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/weirlb/weir/discover"
	"github.com/weirlb/weir/internal/config"
)

// FoundState is the last good answer of a pool's source, for another process.
type FoundState struct {
	Source  string        `json:"source"`
	Age     time.Duration `json:"age"` // since that answer
	Members []AddedState  `json:"members"`
}

// foundLife is how old an answer may be to stand in for a source that does not
// answer: addresses are given to others, the longer the likelier.
const foundLife = 24 * time.Hour

// exportFound returns whom the pool's source has named; nil: nobody yet.
func (p *livePool) exportFound() *FoundState {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	members := f.guard.Members()
	if f.cfg == nil || len(members) == 0 {
		return nil
	}
	s := &FoundState{Source: f.cfg.String(), Age: time.Since(f.last)}
	for i := range members {
		m := &members[i]
		s.Members = append(s.Members, AddedState{ID: m.ID, URL: m.URL, Weight: m.Weight, Zone: m.Zone, Priority: m.Priority, Backup: m.Backup})
	}
	return s
}

// restoreFound takes in whom another process's source had named, age ago, if it is
// the same source. A young answer is used at once, so that nothing is missing until
// the source is asked again; of an old one a name or an address may be somebody
// else's by now, so it waits, and is used only if the source does not answer.
func (p *livePool) restoreFound(s *FoundState, age time.Duration, stale bool) (refused []string) {
	f := &p.find
	f.mu.Lock()
	defer f.mu.Unlock()
	if s == nil || f.cfg == nil || s.Source != f.cfg.String() {
		return nil
	}
	old := max(s.Age, 0) + max(age, 0)
	list := make([]discover.Endpoint, 0, len(s.Members))
	for i := range s.Members {
		b, err := config.ParseBackend(s.Members[i].description())
		if err != nil {
			refused = append(refused, fmt.Sprintf("pool %s: backend %q: %s", p.name, s.Members[i].ID, firstLine(err)))
			continue
		}
		list = append(list, discover.Endpoint{ID: b.ID, URL: b.URL, Weight: b.Weight, Zone: b.Zone, Priority: b.Priority, Backup: b.Backup})
	}
	list = p.usableLocked(list)
	switch {
	case len(list) == 0 || old > foundLife || len(f.guard.Members()) > 0:
	case stale:
		f.remembered, f.rememberedAt = list, time.Now().Add(-old)
	default:
		f.last = time.Now().Add(-old)
		f.guard.Answer(discover.Finding{Endpoints: list}, len(f.listed)+len(f.added))
		p.updateLocked()
	}
	return refused
}

// recallLocked decides at the first look of a source about an old answer of
// another process: it stands in for one that failed, and is forgotten otherwise.
func (p *livePool) recallLocked(got *discover.Finding) {
	f := &p.find
	list := f.remembered
	f.remembered = nil
	if list == nil || len(got.Endpoints) > 0 || len(f.guard.Members()) > 0 {
		return
	}
	f.last = f.rememberedAt
	f.guard.Answer(discover.Finding{Endpoints: list}, len(f.listed)+len(f.added))
	p.driver.log.Warn("discovery fails at the start: the last good answer of before it is used", slog.String("source", f.cfg.String()),
		"backends", len(list), "age", time.Since(f.rememberedAt).Round(time.Second))
	p.event(fmt.Sprintf("%d backends of before the start are used, as discovery fails", len(list)))
	p.updateLocked()
}
