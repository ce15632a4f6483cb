// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l4"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
)

// front is everything that faces clients: sockets, codecs and exchanges of all
// listeners, and what they share. It outlives generations.
type front struct {
	// Constant.
	e      *Engine
	gate   *listen.Gate
	parker *listen.Parker
	// tunnels are those of all listeners.
	tunnels *l7.Tunnels
	relay   *l4.Relay      // moves the bytes of sessions
	flows   *l4.FlowRelay  // and the datagrams of flows
	loops   sync.WaitGroup // accepting listeners

	mu        sync.Mutex // guards what follows
	listeners map[string]*liveListener
	retired   []*liveListener // no longer in the plan; their connections finish
	slots     []bool          // of Generation.handlers: given out
	started   bool

	reapers sync.WaitGroup // those that wait for retired ones
}

func newFront(e *Engine, plan *config.Plan) (*front, error) {
	parker, err := listen.NewParker(func(v any, stack []byte) { e.bugAt("resume", v, stack) })
	if err != nil {
		return nil, fmt.Errorf("waiting for idle connections: %w", err)
	}
	return &front{
		e: e, parker: parker, tunnels: l7.NewTunnels(), relay: l4.NewRelay(func(v any) { e.bug("l4_loop", v) }), flows: l4.NewFlowRelay(func(v any) { e.bug("l4_flows", v) }), listeners: make(map[string]*liveListener),
		gate: listen.NewGate(maxConnections(plan.Limits.MaxConnections, e.fileLimit.Load())),
	}, nil
}

// start begins to accept on every listener.
func (f *front) start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = true
	for _, l := range f.listeners {
		f.serve(l)
	}
}

func (f *front) serve(l *liveListener) {
	f.loops.Go(func() {
		if l.cfg.Datagrams() {
			if err := l.ln.ServePackets(l.srv.flows); err != nil {
				f.e.log.Error("the listener does not serve", "listener", l.name, "error", err)
			}
			return
		}
		l.ln.ServeBare(listen.Bare{Wanted: l.srv.streams.wantsBare, Serve: l.srv.streams.serveBare, Watch: f.relay.Watch})
		err := l.ln.Serve(func(c *netconn.Conn, info listen.Info) {
			l.srv.accept(c, &info)
		})
		if err != nil {
			f.e.log.Error("accepting ended", "listener", l.name, "error", err)
		}
	})
}

// all returns the listeners, sorted by name.
func (f *front) all() []*liveListener {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*liveListener, 0, len(f.listeners))
	for _, l := range f.listeners {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *liveListener) int { return cmp.Compare(a.name, b.name) })
	return out
}

// ever returns the listeners that retired, too.
func (f *front) ever() []*liveListener {
	all := f.all()
	f.mu.Lock()
	defer f.mu.Unlock()
	return append(all, f.retired...)
}

// connections counts the open client connections.
func (f *front) connections() int { return f.gate.Open() }

// drain makes answers say Connection: close and closes idle connections spread
// over the duration.
func (f *front) drain(spread time.Duration) {
	for _, l := range f.ever() {
		l.srv.Drain(spread)
	}
}

// undrain takes drain back.
func (f *front) undrain() {
	for _, l := range f.all() {
		l.srv.Undrain()
	}
}

// stop ends accepting. It returns when those are accepted who were connecting.
func (f *front) stop() {
	for _, l := range f.ever() {
		l.ln.Stop()
	}
	f.loops.Wait()
}

// empty returns a channel that is closed when, after stop, the last connection
// has ended.
func (f *front) empty() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, l := range f.ever() {
			l.ln.Wait()
			l.srv.Wait()
		}
	}()
	return done
}

// endTunnels ends all tunnels within the duration, spread evenly over it; at once
// when hurry is closed. It returns when all are told.
func (f *front) endTunnels(within time.Duration, hurry <-chan struct{}) {
	f.tunnels.Close(observe.TunnelByShutdown, l7.TunnelHurry)
	f.tunnels.End(&l7.Wave{Cause: observe.TunnelByShutdown, Within: within, Hurry: hurry})
}

// cutCount returns how many requests and tunnels were cut at the end.
func (f *front) cutCount() (n int64) {
	for _, l := range f.ever() {
		n += l.x.CutCount() + l.srv.streams.px.CutCount() + l.srv.flows.CutCount()
	}
	return n
}

// cut ends every connection and returns how many were in use. Tunnels that are
// left have a moment to take their Close frame.
func (f *front) cut() (n int) {
	all := f.ever()
	var ending []<-chan struct{}
	for _, l := range all {
		l.x.Cut()
		if n, gone := l.x.EndCalls(); n > 0 {
			ending = append(ending, gone)
		}
	}
	f.tunnels.Cut(observe.TunnelByShutdown, l7.TunnelHurry)
	moment := time.NewTimer(2 * l7.TunnelHurry)
	defer moment.Stop()
	select {
	case <-f.tunnels.Gone():
	case <-moment.C:
	}
	f.endCalls(ending)
	for _, l := range all {
		n += l.srv.CloseAll()
	}
	return n
}

// endCalls waits until gRPC's clients have been told that their calls have ended.
func (f *front) endCalls(ending []<-chan struct{}) {
	if len(ending) == 0 {
		return
	}
	moment := time.NewTimer(l7.TunnelHurry)
	defer moment.Stop()
	for _, gone := range ending {
		select {
		case <-gone:
		case <-moment.C:
			return
		}
	}
	// They are about to be told. A connection that has nothing else to carry ends by
	// itself when it is.
	moment.Reset(l7.TunnelHurry)
	select {
	case <-f.empty():
	case <-moment.C:
	}
}

// close stops and cuts whatever is left, and waits for it.
func (f *front) close() error {
	all := f.ever()
	for _, l := range all {
		l.ln.StopNow()
	}
	f.loops.Wait() // who is accepted now is cut, too
	f.cut()
	// One that has not ended by then never will, which is no reason for the process to
	// stay.
	ended := within(f.e.ending, func() {
		for _, l := range all {
			if f.started {
				l.ln.Wait()
			}
			l.srv.Wait()
		}
		f.reapers.Wait()
	})
	if !ended {
		f.e.bug("close", "connections that were cut do not end: they are left behind")
		return nil // nothing that they use is taken from them
	}
	f.relay.Close()
	f.flows.Close()
	return f.parker.Close()
}
