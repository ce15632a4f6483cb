// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// sayLearned tells what weir has found out about a backend's idle timeout (S8).
// It is called from the poller's goroutine and does not wait.
func (d *driver) sayLearned(id string, idle time.Duration) {
	about := sayIdle(idle)
	keep := d.set.Load().cfg.Timeouts.KeepAlive
	text := "backend closes idle connections after about " + about
	attrs := []slog.Attr{slog.String("backend", id), slog.Duration("learned", idle), slog.Duration("keepalive", keep)}
	if keep == 0 || keep >= idle {
		text += fmt.Sprintf("; weir's keepalive is %s: weir now closes its own before that, and timeouts.keepalive below %s would have it so from the start", sayKeep(keep), about)
	}
	d.log.LogAttrs(context.Background(), slog.LevelInfo, text, attrs...)
	d.engine.events.add(Event{At: time.Now(), Kind: "learned_idle", Pool: d.name, Backend: id, Text: text})
}

// sayIdle rounds an idle timeout to what a person would have configured.
func sayIdle(idle time.Duration) string {
	if idle >= 10*time.Second {
		return idle.Round(time.Second).String()
	}
	return idle.Round(100 * time.Millisecond).String()
}

func sayKeep(keep time.Duration) string {
	if keep == 0 {
		return "none"
	}
	return keep.String()
}

// IdleState is what is known of when one backend closes idle connections.
type IdleState struct {
	ID   string        `json:"id"`
	URL  string        `json:"url"`
	Idle time.Duration `json:"idle"`
	Age  time.Duration `json:"age"` // since it was seen
}

// exportLearned returns what was learned of the pool's backends.
func (p *livePool) exportLearned() (out []IdleState) {
	s := p.pool.Snapshot()
	for i := range s.Backends {
		b := &s.Backends[i]
		t := targetOf(b.Backend)
		if t == nil || b.Removed {
			continue
		}
		if st := t.up.Stats(); st.LearnedIdle > 0 {
			out = append(out, IdleState{ID: b.ID, URL: b.URL, Idle: st.LearnedIdle, Age: st.LearnedAge})
		}
	}
	return out
}

// restoreLearned tells the connections to the pool's backends what another process
// had learned, age ago.
func (p *livePool) restoreLearned(list []IdleState, age time.Duration) {
	if len(list) == 0 {
		return
	}
	by := make(map[[2]string]*IdleState, len(list))
	for i := range list {
		by[[2]string{list[i].ID, list[i].URL}] = &list[i]
	}
	s := p.pool.Snapshot()
	for i := range s.Backends {
		b := &s.Backends[i]
		if l := by[[2]string{b.ID, b.URL}]; l != nil {
			if t := targetOf(b.Backend); t != nil {
				t.up.Teach(l.Idle, max(l.Age, 0)+max(age, 0))
			}
		}
	}
}
