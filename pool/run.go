// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"time"

	"github.com/weirlb/weir/balance"
)

// shortest is the least time between two looks at the timers: in a large pool
// a thousand probes a second are not a thousand wake-ups, and those that are due
// within it are handed over together. Nothing that is timed here (probes, ends
// of ejections and drains) is harmed by being this late.
const shortest = 10 * time.Millisecond

// Start starts the pool's goroutine, which probes, times and calls the Driver.
// It must be called at most once and is ended by Close.
func (p *Pool) Start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started || p.closed {
		return
	}
	p.started = true
	p.step(event{kind: evTick}) // the five seconds of Ready begin
	go p.run()
}

func (p *Pool) run() {
	defer close(p.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next, ok := p.Advance()
		timer.Stop()
		if ok {
			timer.Reset(max(next.Sub(p.now()), shortest))
		}
		select {
		case <-p.quit:
			return
		case <-p.wakeup:
		case <-timer.C:
		}
	}
}

// Close ends the pool's goroutine and waits for it. Every backend still
// attached is reported to Driver.Gone, whatever is in flight on it. Picks go
// on being answered from the last snapshot, and leases can be finished. Results
// of probes under way are dropped.
func (p *Pool) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.stopped
		return
	}
	p.closed = true
	started := p.started
	p.mu.Unlock()
	close(p.quit)
	if !started {
		defer close(p.stopped)
	} else {
		<-p.stopped
	}
	p.mu.Lock()
	out := p.outbox
	p.outbox = nil
	for _, m := range p.core.order {
		m.core.gone = true
		out = append(out, effect{kind: doGone, m: m})
	}
	for _, m := range p.core.leaving {
		m.core.gone = true
		out = append(out, effect{kind: doGone, m: m})
	}
	clear(p.core.leaving)
	p.mu.Unlock()
	for i := range out {
		if out[i].kind != doProbe {
			p.execute(&out[i])
		}
	}
}

// Wait queues until a slot is free and reserves it into l, oldest request
// first. It is bounded by Limits.QueueTimeout, by deadline (0: none) and by
// abort (nil: never); it returns what Pick returns, QueueFull at once when the
// queue is full, QueueTimeout or Aborted. Granted may be returned even though
// abort has closed meanwhile. r must not be touched while waiting.
func (p *Pool) Wait(l *Lease, r *balance.Request, deadline balance.Instant, abort <-chan struct{}) Refusal {
	t, got := p.Enqueue(l, r)
	if t == nil {
		return got
	}
	limit := p.set.Load().Limits.QueueTimeout
	if deadline != 0 {
		left := deadline.Sub(p.now())
		if limit <= 0 || left < limit {
			limit = max(left, 1)
		}
	}
	var expired <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		expired = timer.C
	}
	why := QueueTimeout
	select {
	case got = <-t.w.ready:
		return got
	case <-expired:
	case <-abort:
		why = Aborted
	}
	if p.Abandon(t) {
		if why == QueueTimeout {
			p.refusedFull()
		}
		return why
	}
	return <-t.w.ready
}
