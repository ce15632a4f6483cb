// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
)

const (
	memoryEvery = time.Second
	memoryOften = 10 * time.Millisecond // from memoryNear of a limit on
	memoryNear  = 0.5
	memoryFresh = 250 * time.Millisecond // a collection so often while nothing is served
	memoryCalm  = 0.95                   // of the runtime's limit: below it connections are kept again

	// What a collection would not give back, as a part of the runtime's limit:
	// beyond the first the collector works without end and gains nothing.
	needShort = 0.9
	needCalm  = 0.8
	// The same of the control group: beyond the first the kernel is about to kill.
	groupShort = 0.95
	groupCalm  = 0.9
	overShort  = 1.03 // of the runtime's limit, garbage or not: the collector does not keep up
	allShort   = 0.97 // of the group's
	groupOwn   = 0.25 // who has less of it than this cannot help by refusing
)

// memory watches the process's memory against the runtime's limit and that of the
// control group, and says what is to be gone without (S17): at the runtime's limit
// connections are no longer kept, and when that is not enough nothing new is
// served until there is room. The kernel's buffers for sockets are no part of the
// runtime's memory and of the group's they are, so both are looked at.
type memory struct {
	// Constant after newMemory.
	log   *slog.Logger
	group memoryGroup
	own   bool // the runtime's limit is weir's own choice, and is moved
	// within is what of the group's limit is worked with, see usable; 0: no group.
	within int64
	read   func() memoryUse
	said   func(bool) // hears when short begins and ends

	limit   atomic.Int64 // of the runtime; math.MaxInt64: none
	budget  netconn.Budget
	total   int64         // of the machine, where the runtime has no limit; 0: unknown
	part    atomic.Uint64 // of the limit that the budget has, a float64's bits
	pressed atomic.Bool
	short   atomic.Bool
	room    atomic.Int64 // left of what the last look granted, see grow

	mu      sync.Mutex // held while looking
	granted int64      // by the last look

	collected time.Time // owned by the loop
	quit      chan struct{}
	loop      sync.WaitGroup
}

// memoryUse is what the runtime says.
type memoryUse struct {
	mapped int64 // what its limit is compared with: all, less what it gave back
	needed int64 // of that, what a collection would not give back
}

func newMemory(log *slog.Logger, m *Machine) *memory {
	out := &memory{log: log, own: m.MemoryLimit > 0, read: readMemory, said: func(bool) {}, quit: make(chan struct{})}
	out.group = findMemoryGroup(os.DirFS("/"))
	if out.group.limit > 0 {
		out.within = usable(out.group.limit)
	} else {
		out.room.Store(math.MaxInt64 / 2)
	}
	out.limit.Store(debug.SetMemoryLimit(-1))
	var host syscall.Sysinfo_t
	if syscall.Sysinfo(&host) == nil {
		out.total = int64(host.Totalram) * int64(host.Unit)
	}
	return out
}

// setBuffered says what part of the limit may be held (limits.buffered).
func (m *memory) setBuffered(part float64) {
	m.part.Store(math.Float64bits(part))
	m.share(m.limit.Load())
}

// start begins to watch, where there is a limit, and to tidy up.
func (m *memory) start() {
	m.loop.Go(m.tidy)
	if m.limit.Load() == math.MaxInt64 && m.group.limit == 0 {
		return
	}
	m.loop.Go(func() {
		t := time.NewTimer(memoryEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				m.mu.Lock()
				next := m.look()
				m.mu.Unlock()
				t.Reset(next)
				m.collect()
			case <-m.quit:
				return
			}
		}
	})
}

// close ends watching. It is called once.
func (m *memory) close() {
	close(m.quit)
	m.loop.Wait()
}

// closing reports that client connections are not to be kept.
func (m *memory) closing() bool { return m.pressed.Load() || m.short.Load() }

// look compares, and returns when to look again. m.mu is held.
func (m *memory) look() time.Duration {
	u, group := m.read(), m.group.used()
	if m.own && group > 0 {
		m.makeRoom(group - u.mapped)
	}
	limit := m.limit.Load()
	m.share(limit)
	m.press(u.mapped, limit)

	// What the collector can give back is no reason to refuse anybody.
	held := group - (u.mapped - u.needed)
	need, kill := part(u.needed, limit), part(held, m.within)
	over, all := part(u.mapped, limit), part(group, m.within)
	if part(u.mapped, m.group.limit) < groupOwn {
		kill, all = 0, 0
	}
	switch was := m.short.Load(); {
	case !was && (need >= needShort || kill >= groupShort || over >= overShort || all >= allShort):
		m.short.Store(true)
		m.log.Error("out of memory: new connections and requests are refused", "needed", u.needed, "limit", limit, "group", group, "group_limit", m.group.limit)
		m.said(true)
	case was && need < needCalm && kill < groupCalm && over < 1 && all < groupShort:
		m.short.Store(false)
		m.log.Info("there is memory again: nothing is refused for it", "needed", u.needed, "limit", limit, "group", group, "group_limit", m.group.limit)
		m.said(false)
	}
	m.grant(group)
	if max(need, kill, over) < memoryNear {
		return memoryEvery
	}
	return memoryOften
}

// share bounds what is held to its part of the limit, and without a limit to its
// part of the machine's memory.
func (m *memory) share(limit int64) {
	if limit == math.MaxInt64 {
		limit = m.total
	}
	m.budget.SetLimit(int64(float64(limit) * math.Float64frombits(m.part.Load())))
}

func (m *memory) press(mapped, limit int64) {
	switch was := m.pressed.Load(); {
	case !was && mapped >= limit:
		m.pressed.Store(true)
		m.log.Warn("memory limit reached: client connections are no longer kept", "used", mapped, "limit", limit)
	case was && mapped < int64(float64(limit)*memoryCalm):
		m.pressed.Store(false)
		m.log.Info("memory is below its limit again", "used", mapped, "limit", limit)
	}
}

// makeRoom moves the runtime's limit so that it, and what else there is in the
// group (the kernel's buffers, a process that hands over), do not come to more
// than the group may have.
func (m *memory) makeRoom(others int64) {
	most := float64(m.within)
	want := min(groupShort*most-float64(max(others, 0)), memoryShare*most)
	want = max(want, groupOwn*most)
	if was := float64(m.limit.Load()); want < was*0.99 || want > was*1.01 {
		m.limit.Store(int64(want))
		debug.SetMemoryLimit(int64(want))
	}
}

// collect keeps what look reads fresh while next to nothing is served: without
// work there would be no collection for minutes, and no end of being short.
func (m *memory) collect() {
	if m.short.Load() && time.Since(m.collected) >= memoryFresh {
		runtime.GC()
		m.collected = time.Now()
	}
}

// gauges tells how much memory there is.
func (m *memory) gauges() observe.MemoryGauges {
	g := observe.MemoryGauges{Limit: m.limit.Load(), Needed: m.read().needed, Short: m.short.Load(),
		Buffered: m.budget.Used(), BufferedLimit: m.budget.Limit()}
	if g.Limit == math.MaxInt64 {
		g.Limit = 0
	}
	return g
}

// sayMemory puts it into the feed of events.
func (e *Engine) sayMemory(short bool) {
	text := "there is memory again: nothing is refused for it"
	if short {
		text = "out of memory: new connections and requests are refused"
	}
	e.events.add(Event{At: time.Now(), Kind: "memory", Text: text})
}

func part(n, limit int64) float64 {
	if limit <= 0 {
		return 0
	}
	return float64(n) / float64(limit)
}

// readMemory asks the runtime.
func readMemory() memoryUse {
	s := [...]metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(s[:])
	n := func(i int) int64 { return int64(s[i].Value.Uint64()) }
	mapped := n(0) - n(1)
	return memoryUse{mapped: mapped, needed: mapped - n(2) - max(n(3)-n(4), 0)}
}
