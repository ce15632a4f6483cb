// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/clock"
)

// MaxAtOnce is how many probes run at the same time, over all pools (S17).
// Detection times hold while at most MaxAtOnce x interval / timeout backends
// hang together.
const MaxAtOnce = 256

// Options configures New. The zero value works.
type Options struct {
	Version string // of weir, for the User-Agent
	// Resolve returns the addresses of a name; nil asks the system. It must
	// return when the context ends. No address, or a net.DNSError that says not
	// found, is an answer about the backend; other errors are not.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Observe is told of every finished probe, from the goroutine that calls its
	// done.
	Observe func(outcome string, took time.Duration)
	// OnPanic is told of a panic that was recovered: of a probe, which then says nothing
	// about its backend, or of what was told its result. It may be called from any
	// goroutine. nil: nobody is.
	OnPanic   func(v any, stack []byte)
	MaxAtOnce int                    // 0: MaxAtOnce
	Now       func() balance.Instant // nil: clock.Now
}

// Target is what one probe goes to.
type Target struct {
	Pool string // probes that wait take turns by pool
	// Key is the same for probes that ask the same in the same way, of whatever
	// pool, timeout included: one that is under way serves all that are asked for
	// meanwhile. Empty: not shared.
	Key string
	// Within is how long ago a probe that passed may have been sent to serve this
	// one, too; 0: it must be made, or be under way.
	Within  time.Duration
	Address string // host:port to connect to
	// Addr is Address where that is no name, parsed once for all probes; zero
	// has each probe parse it.
	Addr          netip.AddrPort
	OnTrafficPort bool        // the traffic goes there too
	TLS           *tls.Config // nil: none; else with ServerName, verified as for the traffic
	Proxy         int         // version of the PROXY header that it begins with; 0: none
	Talk          *Talk       // what is said where neither is; nil: nothing
	HTTP          *HTTP       // with Talk and GRPC nil, too: the connection (and handshake) is the check
	GRPC          *GRPC       // not with HTTP
}

// Talk is a check of a protocol that is not known here.
type Talk struct {
	Send string // first; empty: the backend speaks first, which it does over TCP alone
	// Want is what has to come, in its first 64 KiB, or in one datagram; nil: a byte, or
	// any datagram.
	Want *Match
	// Datagrams has it said over UDP, in one datagram. Not with TLS and Proxy.
	Datagrams bool
}

// HTTP is the question of an HTTP check and the answers that pass.
type HTTP struct {
	Method string // GET when empty; HEAD
	Path   string // origin-form with query, starts with "/"
	Host   string // value of the Host field
	// H2 asks over HTTP/2 without more ado; with TLS that offers protocols (NextProtos)
	// it is what is agreed on that counts.
	H2     bool
	Expect []Range // statuses that pass; 200-299 when empty
	Body   *Match  // what such an answer must contain; nil: anything
	// Overload says that an expected answer whose content is the word
	// "overloaded" means that; up to 250 ms are waited for it.
	Overload bool
	// LoadReports says that the load report (ORCA) of an expected answer is read.
	LoadReports bool
}

// Range is a range of statuses, both ends included.
type Range struct{ From, To int }

// Prober runs probes. All methods are safe for concurrent use.
type Prober struct {
	// Constant.
	opt       Options
	userAgent string
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc

	shared sharing

	mu      sync.Mutex // guards what follows
	idle    *sync.Cond // running fell to 0
	running int
	closed  bool
	conn    *connector       // nil: not needed yet, or no descriptor for it
	dialAll bool             // tests: without connector
	waiting map[string]*line // by pool; only pools with waiting probes
	turns   []*line          // the same, in the order of their turns
}

// line is the queue of one pool.
type line struct {
	pool string
	jobs []job
}

type job struct {
	target  Target
	timeout time.Duration
	done    func(health.ProbeResult)
	to      netip.AddrPort // valid: the connector can do it
	told    bool
}

// New returns a Prober. Close ends it.
func New(opt Options) *Prober {
	if opt.MaxAtOnce <= 0 {
		opt.MaxAtOnce = MaxAtOnce
	}
	if opt.Now == nil {
		opt.Now = clock.Now
	}
	if opt.Resolve == nil {
		opt.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	p := &Prober{opt: opt, userAgent: "weir-probe/" + orDev(opt.Version), waiting: make(map[string]*line)}
	p.idle = sync.NewCond(&p.mu)
	p.shared.with = p.hand
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

func orDev(version string) string {
	if version == "" {
		return "dev"
	}
	return version
}

// Probe starts one probe, or joins another (see Target.Key), and returns at once.
// done is called exactly once, from another goroutine, or from within Probe where
// an earlier result serves, and with no lock held: with the result, or, when
// nothing can be said about the backend (a local fault, or the Prober closed),
// with Retry set. It must not wait for anything: other results come from the
// same goroutine. The timeout runs from when the probe itself begins, not from
// when it was asked for.
func (p *Prober) Probe(t Target, timeout time.Duration, done func(health.ProbeResult)) {
	if t.Key != "" {
		if done = p.shared.join(&t, p.opt.Now(), done); done == nil {
			return
		}
	}
	j := job{target: t, timeout: timeout, done: done}
	if to, ok := plain(&t); ok {
		j.to = to
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		go p.refuse(j)
	case p.running < p.opt.MaxAtOnce:
		p.running++
		if !p.connectLocked(&j) {
			go p.work(j)
		}
	default:
		l := p.waiting[t.Pool]
		if l == nil {
			l = &line{pool: t.Pool}
			p.waiting[t.Pool] = l
			p.turns = append(p.turns, l)
		}
		l.jobs = append(l.jobs, j)
	}
}

// Close abandons running probes, answers those that wait, and returns when all
// are over.
func (p *Prober) Close() {
	p.cancel()
	p.mu.Lock()
	p.closed = true
	conn := p.conn
	if conn != nil {
		conn.rouseLocked()
	}
	left := p.turns
	p.turns, p.waiting = nil, nil
	p.mu.Unlock()
	for _, l := range left {
		for _, j := range l.jobs {
			p.refuse(j)
		}
	}
	p.mu.Lock()
	for p.running > 0 {
		p.idle.Wait()
	}
	p.mu.Unlock()
	if conn != nil {
		<-conn.over
	}
}

// closedVerdict ends what Close cuts off.
var closedVerdict = verdict{outcome: health.NoAnswer, text: "the prober is closed", retry: true}

func (p *Prober) refuse(j job) { p.tell(&j, closedVerdict, p.opt.Now(), time.Time{}) }

// tell hands out the verdict of a probe that began at sent, which is start.
func (p *Prober) tell(j *job, v verdict, sent balance.Instant, start time.Time) {
	j.told = true
	if p.opt.Observe != nil && !v.retry {
		p.observe(v.outcome.String(), time.Since(start))
	}
	p.hand(j.done, health.ProbeResult{
		Outcome: v.outcome, Sent: sent, At: p.opt.Now(), Cause: v.cause, Status: v.status,
		Load: v.load, HasLoad: v.hasLoad,
		Error: v.text, OnTrafficPort: j.target.OnTrafficPort, Retry: v.retry,
	})
}

func (p *Prober) observe(outcome string, took time.Duration) {
	defer p.caught()
	p.opt.Observe(outcome, took)
}

// hand tells one of those who wait for a result. A panic there is its own.
func (p *Prober) hand(done func(health.ProbeResult), r health.ProbeResult) {
	defer p.caught()
	done(r)
}

// caught, deferred, keeps a panic from ending the process, and who comes next from
// being missed.
func (p *Prober) caught() { p.panicked(recover()) }

func (p *Prober) panicked(v any) {
	if v != nil && p.opt.OnPanic != nil {
		p.opt.OnPanic(v, debug.Stack())
	}
}

// brokenVerdict is that of a probe that panicked.
var brokenVerdict = verdict{outcome: health.NoAnswer, text: "a defect of weir, see its log", retry: true}

// connectLocked hands a probe that may run to the connector, if it is one for
// it.
func (p *Prober) connectLocked(j *job) bool {
	if !j.to.IsValid() || p.dialAll {
		return false
	}
	if p.conn == nil {
		if p.conn = newConnector(p); p.conn == nil {
			return false
		}
	}
	p.conn.addLocked(j)
	return true
}

// leaveLocked ends so many running probes that nothing takes the place of.
func (p *Prober) leaveLocked(n int) {
	if p.running -= n; p.running == 0 {
		p.idle.Broadcast()
	}
}

// work runs a probe and then those that wait.
func (p *Prober) work(j job) {
	for {
		p.attempt(&j)
		p.mu.Lock()
		next, ok := p.nextLocked()
		if !ok {
			p.leaveLocked(1)
		}
		handed := ok && p.connectLocked(&next)
		p.mu.Unlock()
		if !ok || handed {
			return
		}
		j = next
	}
}

// attempt is run. Where that panics the probe has said nothing.
func (p *Prober) attempt(j *job) {
	sent, start := p.opt.Now(), time.Now()
	defer func() {
		v := recover()
		p.panicked(v)
		if v != nil && !j.told {
			p.tell(j, brokenVerdict, sent, start)
		}
	}()
	p.run(j)
}

// nextLocked takes the oldest probe of the pool whose turn it is, so that one
// large pool that hangs does not starve the others.
func (p *Prober) nextLocked() (job, bool) {
	if len(p.turns) == 0 {
		return job{}, false
	}
	l := p.turns[0]
	p.turns = p.turns[1:]
	j := l.jobs[0]
	l.jobs[0] = job{}
	l.jobs = l.jobs[1:]
	if len(l.jobs) > 0 {
		p.turns = append(p.turns, l)
	} else {
		delete(p.waiting, l.pool)
	}
	return j, true
}
