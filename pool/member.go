// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// member is one backend of a pool: what requests write, and what the core
// knows. Whoever touches which field is said above each group.
type member struct {
	// One line that every Done reads and writes. Reading what the core writes
	// seldom costs nothing extra here: the line has to be owned anyway.
	mode     atomic.Uint32 // modeX flags; written by the core
	goodRun  atomic.Uint32 // real successes on probation
	since    atomic.Int64  // outcomes of attempts begun before are ignored; written by the core
	probed   atomic.Int64  // when the last probe started; written by the core
	lastGood atomic.Int64  // when the latest attempt that succeeded began
	run      atomic.Uint64 // low half: bad answers in a row; high half: failed connection attempts in a row
	answers  atomic.Uint64 // final answers of any status
	latency  atomic.Uint64 // nanoseconds to the first byte, summed over answers
	b        *balance.Backend

	hist histogram // of latency; one of its lines is written by every Done

	// Constant after construction, as b.
	p    *Pool
	seq  uint64     // in order of first appearance
	core *coreState // apart, so that what requests touch lies closer together

	// Written by Done when something went wrong.
	marks        atomic.Uint32 // markX flags that the core has not consumed
	connCause    atomic.Uint32 // why a connection attempt failed last
	lastConn     atomic.Int64  // and when: one of a request, or a probe's; answers to attempts begun before say nothing about it
	next         *member       // in the list of marked members; owned by who set the first mark, then by the core
	failed       atomic.Uint64 // answers of 500 and above
	faults       atomic.Uint64 // attempts without an answer, by the backend's fault
	others       atomic.Uint64 // attempts without an answer, not its fault
	serverErrors atomic.Uint64 // 5xx that are the application's own
	badFrom      atomic.Uint64 // value of serverErrors when the window began; written by the core
	errWho       addresses     // that saw one of them in this window
	failings     failings
	signs        signs
	slowness     slowness
	untimed      atomic.Uint64 // answers whose latency says nothing
	badTimed     atomic.Uint64 // failures among the others,
	badLatency   atomic.Uint64 // and their part of latency
	report       atomic.Uint64 // the backend's last load report, see reported
	shareAsk     atomic.Bool   // the rule for 5xx shares is being looked at
	open         atomic.Bool   // takes work whatever its share: opinions are set aside; written with each publication
	keeps        atomic.Bool   // draining, and requests that prefer it are let in; written by the core
}

// Flags in member.mode.
const (
	modeAccused   = 1 << iota // suspect or unreachable: an answer proves otherwise
	modeProbation             // count real successes; one failure ends it
	modeShare                 // the ejection was for a share of 5xx
	modeWatch                 // tell the core when nothing is in flight
	modeOut                   // broken or ejected: more failures are no news
	modeFact                  // the core knows that connections fail
	modeSlowAsk               // suspected of being dead slow
	modeSlow                  // the ejection was for that

	// modeCauses are the flags that say why a member was ejected.
	modeCauses = modeShare | modeSlow
)

// Flags in member.marks: thresholds crossed.
const (
	markBad       = 1 << iota // Passive.Consecutive bad answers in a row
	markConnect               // a connection attempt failed
	markShare                 // the share of 5xx may be too large
	markProven                // Rise real successes on probation
	markRelapse               // a failure on probation
	markReachable             // an accused backend answered
	markEmpty                 // nothing is in flight
	markStrained              // there may be enough signs of overload
	markMean                  // a failure could not be charged: the mean is not known yet
)

// coreState is what the core knows of a member. Guarded by Pool.mu.
type coreState struct {
	spec      Spec
	weight    uint32 // in force
	leaving   bool
	gone      bool
	tier      *tier
	health    health.Machine
	class     class   // as counted in tier, and so are
	mass      uint32  // the weight,
	low       bool    // whether overload has brought it to the floor
	left      float32 // and the part of the weight that overload leaves
	floored   bool
	since     balance.Instant // when it was added
	round     bool            // its first probe is awaited by Ready
	timers    [timerKinds]timer
	last      Check
	probing   bool
	again     bool // a probe must follow the one under way at once
	started   balance.Instant
	probes    uint64          // started so far, feeds the jitter
	accused   balance.Instant // when real traffic made it suspect
	byWork    bool            // it is suspect by real traffic
	fact      balance.Instant // when a connection attempt failed last
	hasFact   bool
	returning bool // it was filed as unreachable, and nothing else has spoken against it since
	drain     bool // takes no new work, by the operator's word or removal
	unempty   bool // and had work in flight then
	deadline  balance.Instant
	cut       int64 // in flight when the deadline of the drain passed
	outByWork bool  // counted in core.outByWork
	pressure  pressure
	moved     bool            // on the list of those that changed class in this step
	took      bool            // took work when the last step ended
	idle      balance.Instant // since when it did not
	slowAt    balance.Instant // when it was found dead slow last
	passed    bool            // some probe has
	failRun   int             // failed probes in a row
	failSince balance.Instant // when the first of them was sent
	ownFails  int             // of the probes before them: how many failed
	ownPasses int             // and passed
	notReady  bool            // counted among those that turned not_ready lately
	seen      uint64          // the last Update that named it
	watched   bool            // on the list for the rule of 5xx shares
	summed    bool            // counted in stats.windowed

	// Figures at the last statistics ticks.
	seenAnswers, seenLatency uint64
	seenBad, seenBadLatency  uint64
	ewma                     float64 // nanoseconds
	base                     [2]tally
	errTwoBefore             bool
	failTwoBefore            bool
	hist                     *[2]histogramCopy
}

// tally is what the rules for 5xx shares and success rates count.
type tally struct{ answers, bad, faults, failures uint64 }

func (m *member) tally() tally {
	return tally{m.answers.Load(), m.serverErrors.Load(), m.faults.Load(), m.failings.count.Load()}
}

// timed counts the answers whose latency was noted.
func (m *member) timed() uint64 {
	n := m.untimed.Load() // first, as it is written last
	return m.answers.Load() - n
}

// mark tells the core once about a threshold that was crossed.
func (m *member) mark(v uint32) {
	if m.marks.Load()&v != 0 || m.marks.Or(v) != 0 {
		return // known, or already on the list
	}
	p := m.p
	for {
		head := p.marked.Load()
		m.next = head
		if p.marked.CompareAndSwap(head, m) {
			if head == nil {
				p.poke()
			}
			return
		}
	}
}

// observe learns from one outcome. It is the hot half of Done.
func (m *member) observe(p *Pool, began balance.Instant, o *Outcome) {
	if o.Kind != Success {
		m.failure(began, o)
		return
	}
	m.answers.Add(1)
	if !o.Tunnel {
		first := o.firstByte()
		m.latency.Add(uint64(first))
		m.hist.add(first)
	} else {
		m.untimed.Add(1)
	}
	if o.HasLoad || o.Overloaded || o.Status == 429 || o.RetryAfter {
		m.strained(began, o)
	}
	if !p.clients.two.Load() {
		p.clients.see(o.Client)
	}
	if o.Status >= 500 {
		m.badAnswer(began, o)
		return
	}
	if int64(began) < m.since.Load() {
		return
	}
	if run := m.run.Load(); run != 0 {
		if run>>32 != 0 && int64(began) < m.lastConn.Load() {
			m.run.And(^uint64(1<<32 - 1)) // says nothing about connecting since
		} else {
			m.run.Store(0)
		}
	}
	// The core asks for two things: whether a success began after a given
	// probe was sent, and (where the driver sent it later) after about then.
	if last := m.lastGood.Load(); int64(began) > last &&
		(last <= m.probed.Load() || int64(began)-last > int64(time.Millisecond)) {
		m.lastGood.Store(int64(began))
	}
	if mode := m.mode.Load(); mode != 0 {
		m.goodWhile(mode, began, o)
	}
}

// goodWhile takes an answer below 500 of a backend that is being watched.
func (m *member) goodWhile(mode uint32, began balance.Instant, o *Outcome) {
	m.acquit(mode, began, o)
	if mode&(modeSlow|modeSlowAsk) != 0 && m.slow(mode, o) {
		return
	}
	if mode&modeProbation != 0 && int(m.goodRun.Add(1)) >= max(m.p.set.Load().Active.Rise, 1) {
		m.mark(markProven)
	}
}

// acquit takes an answer of any status. Only an attempt not begun before the last
// failed connection, and over a connection of its own, says that the backend can
// be reached: a server that no longer listens finishes what it had begun and
// serves the connections it has.
func (m *member) acquit(mode uint32, began balance.Instant, o *Outcome) {
	if mode&modeAccused != 0 && !o.Reused && int64(began) >= m.lastConn.Load() {
		m.mark(markReachable)
	}
}

// badAnswer takes an answer of 500 or above.
func (m *member) badAnswer(began balance.Instant, o *Outcome) {
	m.failed.Add(1)
	if !o.Tunnel {
		m.badTimed.Add(1)
		m.badLatency.Add(uint64(o.firstByte()))
	}
	m.charge(o)
	if int64(began) < m.since.Load() || !m.p.set.Load().Passive.Enabled {
		return
	}
	mode := m.mode.Load()
	m.acquit(mode, began, o)
	if m.run.Load()>>32 != 0 && int64(began) >= m.lastConn.Load() {
		m.run.And(1<<32 - 1) // it can be connected to
	}
	verdict := health.Judge(o.Status, o.RetryAfter)
	if verdict == health.Bad && o.Behind {
		// A balancer that says so is alive. When what is behind it fails, it most
		// often fails behind its peers as well, and ejecting them one after the other
		// would be an outage more. It goes only if it fails far more than they do.
		verdict = health.ServerError
	}
	switch verdict {
	case health.Bad:
		m.bad(mode, o)
	case health.ServerError:
		m.run.And(^uint64(1<<32 - 1)) // no longer in a row
		m.serverError(mode, o)
	}
}

// bad counts a failure that ejects when it comes in a row.
func (m *member) bad(mode uint32, o *Outcome) {
	m.failings.count.Add(1)
	m.failings.who.see(o.Client)
	run := uint32(m.run.Add(1))
	switch {
	case mode&modeOut != 0:
	case mode&modeProbation != 0:
		m.mark(markRelapse)
	case m.p.set.Load().Passive.Consecutive > 0 && int(run) >= m.p.set.Load().Passive.Consecutive:
		m.mark(markBad)
	}
}

// serverError counts a 5xx that is the application's own.
func (m *member) serverError(mode uint32, o *Outcome) {
	n := m.serverErrors.Add(1)
	m.failings.count.Add(1)
	m.failings.who.see(o.Client)
	m.errWho.see(o.Client)
	switch {
	case mode&modeOut != 0:
	case mode&(modeProbation|modeShare) == modeProbation|modeShare:
		m.mark(markRelapse)
	case n-m.badFrom.Load() >= health.ShareAnswers*health.ShareBad && !m.shareAsk.Load():
		if m.shareAsk.CompareAndSwap(false, true) {
			m.mark(markShare)
		}
	}
}

// failure takes an outcome without an answer.
func (m *member) failure(began balance.Instant, o *Outcome) {
	switch o.Kind {
	case ClientFault, LocalFault, Canceled:
		m.others.Add(1)
		if o.Overtaken {
			m.hist.add(o.Total) // at least; see latencies
		}
		return
	case Reset:
		if o.Stale || !o.Sent {
			// The backend closed an idle connection as we took it: that is
			// nobody's fault and says nothing.
			m.others.Add(1)
			return
		}
	}
	m.faults.Add(1)
	m.charge(o)
	if int64(began) < m.since.Load() {
		return
	}
	cause := o.Kind.cause()
	if cause == health.CauseNone { // reset, malformed, response timeout
		if m.p.set.Load().Passive.Enabled {
			m.bad(m.mode.Load(), o)
		}
		return
	}
	m.connCause.Store(uint32(cause))
	if cause.Fact() {
		// A fact, whether or not traffic may judge health.
		m.lastConn.Store(int64(o.Now))
		m.b.SetUnreachable(true)
	}
	if !m.p.set.Load().Passive.Enabled {
		m.mark(markConnect)
		return
	}
	m.run.Add(1 << 32)
	switch mode := m.mode.Load(); {
	case mode&modeOut == 0:
		m.b.SetSuspect(true)
		m.mark(markConnect)
	case cause.Fact() && mode&modeFact == 0:
		m.mark(markConnect)
	default:
		// No news; the core looks at lastConn when the fact expires.
	}
}

// charge keeps a failed attempt counted as load.
func (m *member) charge(o *Outcome) {
	if mean := time.Duration(m.p.mean.Load()); mean > 0 {
		m.b.Charge(o.Now, mean, o.Total)
		return
	}
	if !m.p.meanAsked.Load() && m.p.meanAsked.CompareAndSwap(false, true) {
		m.mark(markMean)
	}
}

// requests returns the attempts with any outcome, and of them the backend's
// failures.
func (m *member) requests() (all, failures uint64) {
	answers, faults := m.answers.Load(), m.faults.Load()
	return answers + faults + m.others.Load(), m.failed.Load() + faults
}

// takesWork reports whether a slot may be handed on without a pick.
func (m *member) takesWork() bool {
	return m.b.Admin() == balance.Enabled && !m.b.Unreachable() && !m.b.Suspect() &&
		(m.b.Share() > 0 || m.open.Load())
}
