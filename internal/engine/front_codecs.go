// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/l4"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/netconn"
)

// codecs are the versions of HTTP that one listener speaks, as one server.
type codecs struct {
	streams *streams // what speaks no HTTP; set before the first connection
	flows   *flows   // of udp; the same

	// Constant.
	e  *Engine
	h1 *http1.Server
	h2 *http2.Server

	ln       *listen.Listener       // set before the first connection
	listener atomic.Pointer[string] // its name in the plan that is in force
	floods   floodLines
}

func (f *front) newCodecs(x *l7.Exchanger) *codecs {
	e, c := f.e, &codecs{e: f.e}
	c.h2 = &http2.Server{
		Handler:      func(s *http2.ServerStream) { x.Serve(s, s.Info().(*l7.ClientInfo)) },
		Info:         func(conn any) any { return conn.(*l7.ClientInfo).Another() },
		Closing:      e.memory.closing,
		OnBadRequest: func(s *http2.ServerStream, err *http1.Error) { x.BadRequest(s, s.Info().(*l7.ClientInfo), err) },
		OnPanic:      func(v any, stack []byte) { e.bugAt("http2", v, stack) },
		OnCalm:       func(conn any, why http2.Cause) { c.flood(conn.(*l7.ClientInfo), why) },
		Budget:       &e.memory.budget,
	}
	c.h1 = &http1.Server{
		Handler: func(c *http1.ServerConn) { x.Serve(c, c.Info().(*l7.ClientInfo)) },
		HTTP2:   c.h2.Serve,
		Park:    f.parker.Park,
		Short:   e.memory.short.Load,
		Budget:  &e.memory.budget,
		Closing: e.memory.closing,
		OnBadRequest: func(s *http1.ServerConn, err *http1.Error) {
			ci := s.Info().(*l7.ClientInfo)
			if err == http1.ErrProxyHeader && ci.Proxied == nil {
				c.ln.Forged(ci.Peer)
			}
			x.BadRequest(s, ci, err)
		},
		OnPanic: func(v any, stack []byte) { e.bugAt("http1", v, stack) },
	}
	return c
}

// accept serves a connection as the plan that is in force has it.
func (c *codecs) accept(nc *netconn.Conn, info *listen.Info) { c.acceptVia(nc, info, nil) }

// acceptVia is accept of a connection that another listener has passed on, with what
// passed on the question of a client of PostgreSQL; nil: there was none.
func (c *codecs) acceptVia(nc *netconn.Conn, info *listen.Info, via *l4.Proxy) {
	if c.streams.on.Load() {
		c.streams.serve(nc, info, via)
		return
	}
	c.Serve(nc, info.ALPN, clientInfo(info))
}

// Serve serves a connection in the version that was agreed on in TLS; on a plain
// one the client says by its first bytes what it speaks.
func (c *codecs) Serve(nc *netconn.Conn, alpn string, info *l7.ClientInfo) {
	if alpn == "h2" {
		c.h2.Serve(nc, nil, info)
		return
	}
	c.h1.Serve(nc, info)
}

// Change puts a plan's settings into force.
func (c *codecs) Change(cfg *config.Listener) {
	h1 := http1.Settings{
		Limits: http1.Limits{MaxHeaderBytes: int(cfg.MaxHeaderBytes), MaxRequests: cfg.MaxRequests},
		Timeouts: http1.Timeouts{
			Header: cfg.Timeouts.Header, Idle: cfg.Timeouts.Idle, Write: cfg.Timeouts.Write,
			BodyMinRate: cfg.Timeouts.BodyMinRate, BodyGrace: cfg.Timeouts.BodyGrace,
			MaxAge: cfg.MaxAge, AgeGrace: cfg.MaxAgeGrace,
		},
		HTTP2: cfg.H2,
	}
	name := cfg.Name
	c.listener.Store(&name)
	c.streams.on.Store(cfg.Sessions())
	c.e.metrics.Floods(name, http2.CauseNames())
	c.h1.Change(h1)
	c.h2.Change(http2.Settings{Limits: h1.Limits, Timeouts: h1.Timeouts, MaxAge: cfg.MaxAge, AgeGrace: cfg.MaxAgeGrace})
}

// Drain makes connections end when they have nothing under way, spread over the
// duration.
func (c *codecs) Drain(spread time.Duration) {
	c.h1.Drain(spread)
	c.h2.Drain(spread)
}

// Undrain takes Drain back.
func (c *codecs) Undrain() {
	c.h1.Undrain()
	c.h2.Undrain()
}

// CloseAll ends every connection and returns how many requests were cut. A
// connection that is on its way from one server to the other finds it closed.
func (c *codecs) CloseAll() int {
	c.streams.px.Quit()
	return c.h1.CloseAll() + c.h2.CloseAll()
}

// Wait returns when no connection is left.
func (c *codecs) Wait() {
	c.h1.Wait()
	c.h2.Wait()
	c.streams.px.Wait()
}
