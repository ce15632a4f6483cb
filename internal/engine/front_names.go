// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/l4"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/route"
)

// names are how an sni listener chooses: by what a client says in its hello. They
// are immutable.
type names struct {
	table    *route.Names
	within   time.Duration // from accept until the hello is complete; 0: no bound
	postgres bool          // a route wants PostgreSQL's question before TLS answered
}

// nameRules are the routes of an sni listener as the table has them.
func nameRules(l *config.Listener) []route.NameRule {
	rules := make([]route.NameRule, len(l.Routes))
	for i := range l.Routes {
		r := &l.Routes[i]
		rules[i] = route.NameRule{SNI: r.Match.SNI, ALPN: r.Match.ALPN, Asked: r.StartTLS != "", Index: i}
	}
	return rules
}

// buildNames compiles the names of an sni listener; nil for others.
func buildNames(l *config.Listener) *names {
	if l.Protocol != "sni" {
		return nil
	}
	table, err := route.NewNames(nameRules(l))
	if err != nil {
		return nil // a configuration has been checked for it, and its rules for requests, too
	}
	n := &names{table: table, within: l.Timeouts.Header}
	for i := range l.Routes {
		n.postgres = n.postgres || l.Routes[i].StartTLS == "postgres"
	}
	return n
}

// serveNamed reads what the client asks for and carries the session there.
func (s *streams) serveNamed(c *netconn.Conn, ci *l4.Client, info *listen.Info, r *streamRoutes) {
	var by balance.Instant
	if r.names.within > 0 {
		by = ci.Began.Add(r.names.within)
	}
	g, bad := s.px.ReadHello(c, by, r.names.postgres)
	if bad != nil {
		if bad.Forged {
			s.codecs.ln.Forged(ci.Peer)
		}
		s.px.Refuse(c, ci, r.none, bad.Reason, bad.Detail)
		return
	}
	defer g.Release()
	if g.Cancel {
		s.px.Cancel(c, ci, r.none, g.Prefix)
		return
	}
	ci.Name, ci.Asked = g.Name, g.Asked
	ci.Hello = &observe.Session{Name: g.Name, ECH: g.ECH}
	i, ok := r.names.table.Match(&route.Asking{Name: g.Name, ALPN: g.ALPN, Asked: g.Asked})
	if !ok {
		l4.TellUnknown(c)
		s.px.Refuse(c, ci, r.none, message.NoRoute, unnamed(&g))
		return
	}
	if to := r.to[i]; to != nil {
		s.passOn(c, info, &g, to)
		return
	}
	s.px.Serve(c, ci, r.all[i], g.Prefix)
}

// unnamed says why nobody is there for a client.
func unnamed(g *l4.Greeting) string {
	switch {
	case g.Name == "" && g.ECH:
		return "the client names no server, and may hide one by ECH"
	case g.Name == "":
		return "the client names no server"
	case g.Asked:
		return "no route takes the name from a client that asks for TLS first"
	default:
		return "no route takes the name, or none of the protocols that are offered"
	}
}
