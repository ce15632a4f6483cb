// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l4"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/netconn"
)

// passing says which listener ends the TLS of connections that a route of an sni
// listener takes, by the route's index; nil: the route has a pool.
func passing(l *config.Listener, listeners map[string]*liveListener) []*liveListener {
	out := make([]*liveListener, len(l.Routes))
	for i := range l.Routes {
		if name := l.Routes[i].Listener; name != "" {
			out[i] = listeners[name]
		}
	}
	return out
}

// passOn has another listener go on with a connection whose hello was read.
func (s *streams) passOn(c *netconn.Conn, info *listen.Info, g *l4.Greeting, to *liveListener) {
	var via *l4.Proxy
	if g.Asked {
		via = s.px
	}
	s.codecs.ln.Pass(c, to.ln, g.Prefix, *info, func(c *netconn.Conn, info listen.Info) { to.srv.acceptVia(c, &info, via) })
}
