// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// Sample is what the admin API said at one moment.
type Sample struct {
	At     time.Time
	Status admin.Status
	Pools  []admin.Pool
	Events []admin.Event // the last ones, oldest first
}

// What may happen to a Model.
type (
	// Got is a new sample.
	Got struct{ Sample *Sample }
	// Lost says that no sample could be had.
	Lost struct {
		At  time.Time
		Why string
	}
	// Key is a key that was pressed: a character, or up, down, pgup, pgdown, home,
	// end, enter, esc, backspace, space, ctrl+c.
	Key string
	// Size is the terminal's.
	Size struct{ Width, Height int }
)

// order is what backends are sorted by.
type order int

const (
	byName order = iota
	byState
	byRequests
	byErrors
	byInFlight
	byLatency
)

// orderKeys choose an order; names are what the last line calls them.
var orderKeys = map[Key]order{"n": byName, "s": byState, "r": byRequests, "e": byErrors, "f": byInFlight, "l": byLatency}

var orderNames = []string{"name", "state", "requests/s", "errors/s", "in flight", "latency"}

// Model is the state of the view. The zero value waits for its first sample and
// shows all lines that there are; values are not shared, Update returns the next
// one.
type Model struct {
	// Every is how often a sample is taken, to be said.
	Every time.Duration

	size        Size
	now, before *Sample
	lost        Lost      // why there is none now; no Why: there is
	lostSince   time.Time // the first of those in a row
	replaced    int       // the number of the process that another came after; 0: none

	order    order
	reversed bool
	filter   string
	typing   bool
	pool     string // the only one that is shown; empty: all
	cursor   int    // the row that is chosen, among those that the filter lets through
	top      int    // the first row on the screen
	paused   bool
	done     bool
}

// Done reports that the view was told to end.
func (m Model) Done() bool { return m.done }

// Paused reports that samples are not wanted.
func (m Model) Paused() bool { return m.paused }

// Update returns the model after something has happened. What it does not know
// changes nothing.
func (m Model) Update(msg any) Model {
	switch msg := msg.(type) {
	case Got:
		m = m.got(msg.Sample)
	case Lost:
		if m.lost.Why == "" {
			m.lostSince = msg.At
		}
		m.lost = msg
	case Size:
		m.size = msg
	case Key:
		if m.typing {
			m = m.typed(msg)
		} else {
			m = m.pressed(msg)
		}
	}
	return m.settled()
}

func (m Model) got(s *Sample) Model {
	m.lost = Lost{}
	if m.now != nil && m.now.Status.PID != s.Status.PID {
		m.replaced = m.now.Status.PID
	}
	if !s.sameProcess(m.now) {
		m.before, m.now = nil, s // counters begin anew
		return m
	}
	if s.At.After(m.now.At) {
		m.before = m.now
	}
	m.now = s
	return m
}

// sameProcess reports whether counters of two samples can be compared.
func (s *Sample) sameProcess(o *Sample) bool {
	return o != nil && s.Status.PID == o.Status.PID && s.Status.Started.Equal(o.Status.Started)
}

// typed takes a key while a filter is written.
func (m Model) typed(k Key) Model {
	switch k {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "ctrl+c":
		m.done = true
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	case "space":
		m.filter += " "
	default:
		if len([]rune(string(k))) == 1 {
			m.filter += string(k)
		}
	}
	return m
}

// pressed takes a key as a command.
func (m Model) pressed(k Key) Model {
	if o, ok := orderKeys[k]; ok {
		m.reversed = o == m.order && !m.reversed
		m.order = o
		return m
	}
	switch k {
	case "q", "ctrl+c":
		m.done = true
	case "/":
		m.typing = true
	case "p", "space":
		m.paused = !m.paused
	case "up", "k":
		m.cursor--
	case "down", "j":
		m.cursor++
	case "pgup":
		m.cursor -= m.page()
	case "pgdown":
		m.cursor += m.page()
	case "home", "g":
		m.cursor = 0
	case "end", "G":
		m.cursor = len(m.rows()) - 1
	case "enter":
		if rows := m.rows(); m.cursor < len(rows) {
			m.pool = rows[m.cursor].pool.Name
			m.cursor = 0
		}
	case "esc":
		if m.filter != "" {
			m.filter = ""
		} else {
			m.pool = ""
		}
	}
	return m
}

// settled keeps the cursor on a row, and its row on the screen.
func (m Model) settled() Model {
	n := len(m.rows())
	m.cursor = max(min(m.cursor, n-1), 0)
	if page := m.page(); m.size.Height > 0 {
		m.top = max(min(m.top, m.cursor), m.cursor-page+1, 0)
		m.top = min(m.top, max(n-page, 0))
	}
	return m
}

// row is a line of the table: a pool, or one of its backends.
type row struct {
	pool    *admin.Pool
	backend *admin.Backend // nil: the pool itself
	was     *admin.Backend // as of the sample before; nil: unknown
	wasPool *admin.Pool
}

// rows are those that are wanted, in their order.
func (m Model) rows() (out []row) {
	if m.now == nil {
		return nil
	}
	for i := range m.now.Pools {
		p := &m.now.Pools[i]
		if m.pool != "" && p.Name != m.pool {
			continue
		}
		was := m.poolBefore(p.Name)
		before := map[string]*admin.Backend{}
		if was != nil {
			for j := range was.Members {
				before[was.Members[j].ID] = &was.Members[j]
			}
		}
		var members []row
		whole := m.matches(p.Name)
		for j := range p.Members {
			b := &p.Members[j]
			if whole || m.matches(b.ID, b.URL, b.Zone, stateOf(b), p.Name+"/"+b.ID) {
				members = append(members, row{pool: p, backend: b, was: before[b.ID], wasPool: was})
			}
		}
		if !whole && len(members) == 0 {
			continue
		}
		slices.SortStableFunc(members, m.compare)
		out = append(append(out, row{pool: p, wasPool: was}), members...)
	}
	return out
}

func (m Model) poolBefore(name string) *admin.Pool {
	if m.before == nil {
		return nil
	}
	for i := range m.before.Pools {
		if m.before.Pools[i].Name == name {
			return &m.before.Pools[i]
		}
	}
	return nil
}

// matches reports whether one of the texts has what the filter says, in whatever
// case.
func (m Model) matches(texts ...string) bool {
	want := strings.ToLower(m.filter)
	return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(strings.ToLower(t), want) })
}

// compare orders backends: the most of something first, names ascending.
func (m Model) compare(a, b row) int {
	c := 0
	switch m.order {
	case byName:
		c = strings.Compare(a.backend.ID, b.backend.ID)
	case byState:
		c = cmp.Compare(a.backend.Share, b.backend.Share)
	case byRequests:
		c = cmp.Compare(m.rate(b, requests), m.rate(a, requests))
	case byErrors:
		c = cmp.Compare(m.rate(b, failures), m.rate(a, failures))
	case byInFlight:
		c = cmp.Compare(b.backend.InFlight, a.backend.InFlight)
	case byLatency:
		c = cmp.Compare(b.backend.Latency.P99, a.backend.Latency.P99)
	}
	if m.reversed {
		return -c
	}
	return c
}

// counter chooses one of a pool's or a backend's.
type counter int

const (
	requests counter = iota
	failures
)

// rate is a counter's growth each second between the last two samples, or -1 when
// that is not known.
func (m Model) rate(r row, c counter) float64 {
	if m.before == nil || m.now == nil {
		return -1
	}
	var now, was uint64
	switch {
	case r.backend != nil && r.was != nil:
		now, was = r.backend.Requests, r.was.Requests
		if c == failures {
			now, was = r.backend.Failures, r.was.Failures
		}
	case r.backend == nil && r.wasPool != nil:
		now, was = r.pool.Requests, r.wasPool.Requests
		if c == failures {
			now, was = r.pool.Failures, r.wasPool.Failures
		}
	default:
		return -1
	}
	if now < was { // a backend that left and came back
		return -1
	}
	return float64(now-was) / m.now.At.Sub(m.before.At).Seconds()
}
