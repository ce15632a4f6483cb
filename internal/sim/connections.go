// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// Connections are clients that hold connections (WebSocket, gRPC behind an L4
// listener): the balancer places connections, and what is asked on one stays
// with its server.
type Connections struct {
	Name    string // "": connections-1, ...
	To      *Balancer
	Clients int           // each of whom holds one connection
	Spread  time.Duration // they come within this time, at random; 0: at once
	Hold    Dist          // how long one is held before the client makes a new one; nil: for good
	Rate    float64       // requests per second on each, at random; 0: none
	Again   Dist          // from a loss until the client connects again; nil: 0.1 to 1s
}

// Held is Connections that have been added to a world.
type Held struct {
	w       *World
	c       Connections
	dice    *Stream
	conns   []*connection
	lost    int
	refused int
	requests,
	failed int
	latency Histogram
	stopped bool
	ended   int // by Rebalance
}

// AddConnections adds clients that hold connections. Their requests are counted
// here and not in Stats.
func (w *World) AddConnections(c Connections) *Held {
	if c.Name == "" {
		c.Name = "connections-" + strconv.Itoa(len(w.held)+1)
	}
	if c.Again == nil {
		c.Again = Uniform(100*time.Millisecond, time.Second)
	}
	h := &Held{w: w, c: c, dice: w.Stream("connections " + c.Name)}
	w.held = append(w.held, h)
	for range c.Clients {
		k := &connection{h: h, dice: &Stream{h.dice.Uint64()}}
		k.life.who, k.ask.who = k, k
		k.life.code, k.ask.code = connectionConnects, connectionAsks
		k.inside.k = k
		h.conns = append(h.conns, k)
		w.agenda.plan(&k.life, w.now.Add(scaled(c.Spread, k.dice.Float64())))
	}
	return h
}

// On returns how many connections the server has.
func (h *Held) On(s *Server) int {
	n := 0
	for _, k := range h.conns {
		if k.at == s {
			n++
		}
	}
	return n
}

// Lost returns how many connections were cut by the other side.
func (h *Held) Lost() int { return h.lost }

// Refused returns how many attempts to connect failed.
func (h *Held) Refused() int { return h.refused }

// Requests returns how many requests on connections have ended, how many of them
// failed, and their latency.
func (h *Held) Requests() (ended, failed int, latency *Histogram) {
	return h.requests, h.failed, &h.latency
}

// Rebalance lets the balancer end what a server holds above its part, as a pool
// with these rules does: once a second, the oldest first. The clients come back
// after Again.
func (h *Held) Rebalance(rules pool.Rebalance) {
	var r pool.Rebalancer
	h.w.Every(time.Second, func() {
		s := h.c.To.pool.Snapshot()
		on := make([]pool.Holding, len(s.Backends))
		for i := range s.Backends {
			b := &s.Backends[i]
			on[i] = pool.Holding{Weight: b.Weight, Share: b.Share, Out: b.Draining || b.Removed || b.Admin != balance.Enabled}
			for _, k := range h.conns {
				if k.at != nil && k.at.ID() == b.ID {
					on[i].Held++
				}
			}
		}
		for i, n := range r.Step(h.w.now, &rules, on) {
			for range n {
				h.endOldest(s.Backends[i].ID)
			}
		}
	})
}

// Ended returns how many connections Rebalance has ended.
func (h *Held) Ended() int { return h.ended }

func (h *Held) endOldest(id string) {
	var oldest *connection
	for _, k := range h.conns {
		if k.at != nil && k.at.ID() == id && (oldest == nil || k.since < oldest.since) {
			oldest = k
		}
	}
	if oldest == nil {
		return
	}
	h.ended++
	oldest.close()
	h.w.agenda.cancel(&oldest.life)
	oldest.life.code = connectionConnects
	h.w.agenda.plan(&oldest.life, h.w.now.Add(max(h.c.Again.Sample(oldest.dice), 1)))
}

// Stop closes all connections.
func (h *Held) Stop() {
	h.stopped = true
	for _, k := range h.conns {
		k.close()
		h.w.agenda.cancel(&k.life)
	}
}

// connection is one client with its connection.
type connection struct {
	life, ask timer
	h         *Held
	dice      *Stream
	out       call
	open      bool
	at        *Server
	since     balance.Instant // when it was accepted
	inside    inside
}

// inside is the request under way on a connection.
type inside struct {
	k     *connection
	c     call
	busy  bool
	began balance.Instant
}

const (
	connectionConnects = iota
	connectionLeaves
	connectionAsks
)

func (k *connection) fire(code uint8) {
	w := k.h.w
	switch code {
	case connectionLeaves:
		k.close()
		fallthrough
	case connectionConnects:
		k.open = true
		n := k.dice.Uint64()
		k.out = call{caller: k, to: k.h.c.To, began: w.now, rnd: n, client: n, size: 1, hold: true}
		k.h.c.To.serve(&k.out)
	case connectionAsks:
		if k.at != nil && !k.inside.busy {
			i := &k.inside
			i.busy, i.began = true, w.now
			i.c = call{caller: i, to: k.at, began: w.now, rnd: k.dice.Uint64(), client: k.out.client, size: 1}
			k.at.serveOpen(&i.c)
		}
		k.nextAsk()
	}
}

func (k *connection) nextAsk() {
	if k.h.c.Rate > 0 && k.at != nil {
		k.h.w.agenda.plan(&k.ask, k.h.w.now.Add(scaled(time.Second, k.dice.Exp()/k.h.c.Rate)))
	}
}

// accepted says that the connection stands.
func (k *connection) accepted(c *call) {
	k.at = c.server
	w := k.h.w
	k.since = w.now
	if k.h.c.Hold != nil {
		k.life.code = connectionLeaves
		w.agenda.plan(&k.life, w.now.Add(max(k.h.c.Hold.Sample(k.dice), 1)))
	}
	k.nextAsk()
}

// answered says that there is no connection, or none any more.
func (k *connection) answered(*call, reply) {
	if k.at != nil {
		k.h.lost++
	} else {
		k.h.refused++
	}
	k.open = false
	k.gone()
	if k.h.stopped {
		return
	}
	k.life.code = connectionConnects
	k.h.w.agenda.plan(&k.life, k.h.w.now.Add(max(k.h.c.Again.Sample(k.dice), 1)))
}

// gone ends what was on the connection.
func (k *connection) gone() {
	k.h.w.agenda.cancel(&k.ask)
	if i := &k.inside; i.busy {
		k.at.cancel(&i.c)
		i.over(reply{kind: pool.Reset})
	}
	k.at = nil
}

func (k *connection) close() {
	if !k.open {
		return
	}
	k.open = false
	k.gone()
	k.h.c.To.cancel(&k.out)
}

// answered ends the request on the connection.
func (i *inside) answered(_ *call, r reply) { i.over(r) }

func (i *inside) over(r reply) {
	i.busy = false
	h := i.k.h
	h.requests++
	if r.failed() {
		h.failed++
	}
	h.latency.Add(h.w.now.Sub(i.began))
}
