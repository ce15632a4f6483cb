// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"errors"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// tunnel is one open tunnel, so that the end of the process can cut it.
type tunnel struct{ stop chan struct{} }

// CutTunnels ends the open tunnels, spread evenly over the duration or, once
// hurry is closed (nil: never), at once; and every one that opens later at once.
// It returns when the last has been told.
func (x *Exchanger) CutTunnels(spread time.Duration, hurry <-chan struct{}) {
	x.mu.Lock()
	x.tearing = true
	open := make([]*tunnel, 0, len(x.tunnels))
	for t := range x.tunnels {
		open = append(open, t)
	}
	x.mu.Unlock()
	var turn <-chan time.Time
	if spread > 0 && len(open) > 1 {
		t := time.NewTicker(max(spread/time.Duration(len(open)), 1))
		defer t.Stop()
		turn = t.C
	}
	for i, t := range open {
		if i > 0 && turn != nil {
			select {
			case <-turn:
			case <-hurry:
				turn = nil
			}
		}
		x.mu.Lock()
		if _, ok := x.tunnels[t]; ok {
			delete(x.tunnels, t)
			close(t.stop)
		}
		x.mu.Unlock()
	}
}

// Tunnels returns the number of open tunnels.
func (x *Exchanger) Tunnels() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.tunnels)
}

func (x *Exchanger) enter() *tunnel {
	t := &tunnel{stop: make(chan struct{})}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tearing {
		close(t.stop)
	} else {
		x.tunnels[t] = struct{}{}
	}
	return t
}

func (x *Exchanger) leave(t *tunnel) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.tunnels, t)
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
	server, first := e.up.Takeover()
	f := e.tunnel(client, server, early, first)
	e.now = clock.Now()
	_ = client.Close()
	_ = server.Close()
	e.up = nil
	return f
}

// tunnel moves bytes until both ends have finished.
func (e *exchange) tunnel(client, server *netconn.Conn, early, first []byte) Failure {
	t := e.x.enter()
	defer e.x.leave(t)
	idle := e.rt.Timeouts.TunnelIdle
	// What a tunnel sends may be all that ever tells that the other end is gone.
	// The backend's socket has this since it was dialed.
	_ = client.SetUserTimeout(upstream.DefaultUserTimeout) // an option less is no reason to refuse
	for _, c := range []*netconn.Conn{client, server} {
		c.SetReadDeadline(0)
		c.SetWriteDeadline(after(e.now, idle))
	}
	if len(first) > 0 {
		if _, err := client.Write(first); err != nil {
			return writeFailure(PhaseTunnel, err)
		}
		e.rec.BytesOut += int64(len(first))
	}
	if len(early) > 0 {
		if _, err := server.Write(early); err != nil {
			if e.up.CutShort() {
				return drainCut(PhaseTunnel, err)
			}
			return upstreamFailure(PhaseTunnel, err, true)
		}
		e.body.read += int64(len(early))
	}
	toServer, toClient, err := netconn.Tunnel(client, server, idle, t.stop)
	e.rec.BytesOut += toClient
	e.body.read += toServer
	return e.tunnelEnd(err, server)
}

// tunnelEnd names how a tunnel ended. Its end is never a failure of the backend
// in the sense of health: it answered when it said 101.
func (e *exchange) tunnelEnd(err error, server *netconn.Conn) Failure {
	if err != nil && e.up.CutShort() {
		return drainCut(PhaseTunnel, err)
	}
	f := Failure{Phase: PhaseTunnel, Kind: pool.Success, Err: err}
	var c *netconn.TunnelError
	switch {
	case err == nil:
	case errors.Is(err, netconn.ErrStopped):
		f.Fault, f.Reason = FaultWeir, message.DrainCut
		e.x.cuts.Add(1)
	case errors.Is(err, netconn.ErrIdle):
		f.Fault, f.Reason, f.Detail = FaultClient, message.StreamIdleTimeout, "tunnel_idle"
	case errors.As(err, &c) && c.Conn == server:
		f.Fault, f.Reason, f.Detail = FaultBackend, message.ResetMidResponse, "tunnel broken by the backend: "+c.Error()
	case c != nil:
		f.Fault, f.Reason, f.Detail = FaultClient, message.ClientAbort, "tunnel broken by the client: "+c.Error()
	default:
		f.Fault, f.Reason = FaultClient, message.ClientAbort
	}
	return f
}
