// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// Aging is a Downstream whose connection has a greatest age: when everything on
// it, a tunnel included, is to have ended. 0: never.
type Aging interface {
	EndsBy() balance.Instant
}

// switchProtocols opens the tunnel after a backend's 101. Only WebSocket is
// tunnelled: h2c and whatever else a client might ask for would carry requests
// past weir's eyes, so their Upgrade never reaches a backend, and a 101 that
// nobody asked for is no answer (the codec refuses it).
func (e *exchange) switchProtocols() Failure {
	if !e.req.WebSocket || !e.res.WebSocket {
		return Failure{Fault: FaultBackend, Phase: PhaseAwait, Reason: message.UpgradeRefused, Kind: pool.Malformed, Detail: "101 to another protocol"}
	}
	e.prepareAnswer()
	e.answered = true
	e.rec.Status = 101
	e.rec.Tunnel = true
	if err := e.d.WriteHead(&e.res, nil, true); err != nil {
		return writeFailure(PhaseRelay, err)
	}
	e.w.end() // the tunnel reads both sides
	client, early := e.d.Takeover()
	// What a tunnel sends may be all that ever tells that the other end is gone.
	// The backend's socket has this since it was dialed.
	_ = client.SetUserTimeout(upstream.DefaultUserTimeout) // an option less is no reason to refuse
	server, first := e.up.Takeover()
	e.slim()
	carry := func() Failure {
		f := e.tunnel(client, server, early, first)
		e.now = clock.Now()
		_ = client.Close()
		_ = server.Close()
		e.up = nil
		f.Sent = f.failed() && e.headSent
		return f
	}
	d, ok := e.d.(interface{ Detach() (over func()) })
	if !ok {
		return carry()
	}
	e.carry = func() { e.detach(d.Detach(), carry) }
	return Failure{}
}

// detach goes on with the exchange on a goroutine whose stack has only the tunnel on
// it, which may be open for hours. over gives the client's connection back.
func (e *exchange) detach(over func(), tunnel func() Failure) {
	e.carry = nil
	go func() {
		defer over()
		defer e.close()
		f := tunnel()
		e.finish(&f)
	}()
}

// slim lets go of what a tunnel does not need, which may be open for hours.
func (e *exchange) slim() {
	e.res.Fields.Reset(nil)
	if s, ok := e.d.(interface{ Slim(kept ...*[]byte) }); ok {
		r := &e.rec
		s.Slim(&r.Method, &r.Host, &r.Path, &r.Query, &e.requestID)
	}
}

// tunnel moves bytes until both ends have finished, or weir ends it.
func (e *exchange) tunnel(client, server *netconn.Conn, early, first []byte) Failure {
	t := &tunnel{
		backend: e.backend, since: e.now, facts: e.facts("tunnel"), client: client, server: server,
		idle: e.rt.Timeouts.TunnelIdle, ends: e.tunnelEnds(),
	}
	t.claimed = func() { e.x.tunnels.forget(t) }
	t.begin(e.now)
	if e.rt.PoolSeries != nil {
		e.rt.PoolSeries.TunnelOpened()
	}
	e.x.tunnels.Enter(t)
	defer e.x.tunnels.Leave(t)
	err := t.move(early, first, func(v any) { e.x.bug("l7_tunnel", v) })
	e.rec.BytesOut += t.down.moved
	e.body.read += t.up.moved
	return e.tunnelEnd(t, err)
}

// tunnelEnds is when a tunnel that begins now has reached its greatest age.
// Those that began together do not end together.
func (e *exchange) tunnelEnds() balance.Instant {
	var by balance.Instant
	if age := e.rt.Timeouts.TunnelAge; age > 0 {
		by = e.now.Add(Jittered(age, rand.Float64()))
	}
	if a, ok := e.d.(Aging); ok {
		by = earliest(by, a.EndsBy())
	}
	return by
}

// Jittered is an age by up to a tenth shorter or longer, by a number in [0, 1).
func Jittered(age time.Duration, draw float64) time.Duration {
	return time.Duration(float64(age) * (0.9 + 0.2*draw))
}

// tunnelEnd names how a tunnel ended. Its end is never a failure of the backend
// in the sense of health: it answered when it said 101.
func (e *exchange) tunnelEnd(t *tunnel, err error) Failure {
	if t.ending() {
		return e.tunnelEnded(t)
	}
	if err != nil && e.up.CutShort() {
		e.countTunnel(nil, observe.TunnelByDrain, observe.TunnelCut) // what drains counts what its deadline cuts
		return drainCut(PhaseTunnel, err)
	}
	f := Failure{Phase: PhaseTunnel, Kind: pool.Success, Err: err}
	var c *tunnelError
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded): // of a write
		f.Fault, f.Reason, f.Detail = FaultClient, message.StreamIdleTimeout, "tunnel_idle"
	case errors.As(err, &c) && !c.client:
		f.Fault, f.Reason, f.Detail = FaultBackend, message.ResetMidResponse, "tunnel broken by the backend: "+c.Error()
	case c != nil && e.x.cutting.Load():
		e.x.cuts.Add(1)
		f.Fault, f.Reason = FaultWeir, message.DrainCut
	case c != nil:
		f.Fault, f.Reason, f.Detail = FaultClient, message.ClientAbort, "tunnel broken by the client: "+c.Error()
	default:
		f.Fault, f.Reason = FaultClient, message.ClientAbort
	}
	return f
}

// tunnelEnded names how a tunnel ended that weir ended.
func (e *exchange) tunnelEnded(t *tunnel) Failure {
	why, how := observe.TunnelCause(t.why.Load()), t.outcome()
	e.countTunnel(e.backend, why, how)
	f := Failure{Fault: FaultWeir, Phase: PhaseTunnel, Kind: pool.Success, Detail: why.String() + ": "}
	switch why {
	case observe.TunnelByAge:
		f.Reason = message.MaxAge
	case observe.TunnelByRebalance:
		f.Reason = message.Rebalanced
	case observe.TunnelByIdle:
		f.Fault, f.Reason, f.Detail = FaultClient, message.StreamIdleTimeout, "tunnel_idle: "
	default:
		f.Reason = message.DrainCut
		if how == observe.TunnelClosed {
			f.Reason = message.DrainClosed
		} else if why == observe.TunnelByShutdown {
			e.x.cuts.Add(1)
		}
	}
	switch {
	case t.up.frames.Broken() || t.down.frames.Broken():
		side := "client"
		if t.down.frames.Broken() {
			side = "backend"
		}
		f.Detail += "cut, the " + side + " had sent a frame of impossible length"
	case how == observe.TunnelClosed:
		f.Detail += "both peers closed"
	case how == observe.TunnelCut:
		f.Detail += "cut, no place for a Close frame came"
	case !t.down.heard && !t.up.heard:
		f.Detail += "cut, neither peer answered the Close frame"
	case !t.up.heard:
		f.Detail += "cut, the client did not answer the Close frame"
	default:
		f.Detail += "cut, the backend did not answer the Close frame"
	}
	return f
}

func (e *exchange) countTunnel(of *balance.Backend, why observe.TunnelCause, how observe.TunnelOutcome) {
	e.x.tunnels.count(of, why, how)
	if e.rt.PoolSeries != nil {
		e.rt.PoolSeries.TunnelEnded(why, how)
	}
}
