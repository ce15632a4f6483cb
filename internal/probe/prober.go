// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
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
	// return when the context ends.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Observe is told of every finished probe, from the probe's goroutine.
	Observe   func(outcome string, took time.Duration)
	MaxAtOnce int                    // 0: MaxAtOnce
	Now       func() balance.Instant // nil: clock.Now
}

// Target is what one probe goes to.
type Target struct {
	Pool          string      // probes that wait take turns by pool
	Address       string      // host:port to connect to
	OnTrafficPort bool        // the traffic goes there too
	TLS           *tls.Config // nil: none; else with ServerName, verified as for the traffic
	HTTP          *HTTP       // nil: the connection (and handshake) is the check
}

// HTTP is the question of an HTTP check and the answers that pass.
type HTTP struct {
	Method string  // GET when empty; HEAD
	Path   string  // origin-form with query, starts with "/"
	Host   string  // value of the Host field
	Expect []Range // statuses that pass; 200-299 when empty
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

	mu      sync.Mutex // guards what follows
	idle    *sync.Cond // running fell to 0
	running int
	closed  bool
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
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

func orDev(version string) string {
	if version == "" {
		return "dev"
	}
	return version
}

// Probe starts one probe and returns at once. done is called exactly once,
// from another goroutine and with no lock held: with the result, or, when
// nothing can be said about the backend (a local fault, or the Prober closed),
// with Retry set. The timeout runs from when the probe itself begins, not from
// when it was asked for.
func (p *Prober) Probe(t Target, timeout time.Duration, done func(health.ProbeResult)) {
	j := job{t, timeout, done}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		go p.refuse(j)
	case p.running < p.opt.MaxAtOnce:
		p.running++
		go p.work(j)
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
	left := p.turns
	p.turns, p.waiting = nil, nil
	p.mu.Unlock()
	for _, l := range left {
		for _, j := range l.jobs {
			p.refuse(j)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		p.idle.Wait()
	}
}

func (p *Prober) refuse(j job) {
	now := p.opt.Now()
	j.done(health.ProbeResult{
		Outcome: health.NoAnswer, Sent: now, At: now, Error: "the prober is closed",
		OnTrafficPort: j.target.OnTrafficPort, Retry: true,
	})
}

// work runs a probe and then those that wait.
func (p *Prober) work(j job) {
	for {
		p.run(&j)
		p.mu.Lock()
		next, ok := p.nextLocked()
		if !ok {
			p.running--
			if p.running == 0 {
				p.idle.Broadcast()
			}
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		j = next
	}
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
