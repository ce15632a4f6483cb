// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/internal/observe"
)

var _ admin.SessionLister = (*Engine)(nil)

// openSession is what is kept of one until it is told.
type openSession struct {
	facts   observe.LongLived
	backend *balance.Backend
	since   balance.Instant
	told    bool
}

// Sessions implements admin.SessionLister.
func (e *Engine) Sessions(q admin.SessionQuery) (admin.Sessions, error) {
	var out admin.Sessions
	most := cmp.Or(q.Limit, admin.DefaultSessions)
	var kept []openSession
	oldest := func() {
		slices.SortFunc(kept, func(a, b openSession) int { return cmp.Compare(a.since, b.since) })
		kept = kept[:min(most, len(kept))]
	}
	e.front.tunnels.Each(func(b *balance.Backend, t l7.LongLived, told bool) {
		out.Total++
		s := openSession{facts: t.Facts(), backend: b, since: t.Since(), told: told}
		if !s.asked(&q) {
			return
		}
		out.Matched++
		if kept = append(kept, s); len(kept) >= 2*most { // no more memory than what is told needs
			oldest()
		}
	})
	oldest()
	if out.Matched == 0 {
		if err := e.knowsNames(&q); err != nil {
			return out, err
		}
	}
	now := clock.Now()
	for i := range kept {
		out.Sessions = append(out.Sessions, kept[i].inWords(now))
	}
	return out, nil
}

// asked reports whether a query asks for it.
func (s *openSession) asked(q *admin.SessionQuery) bool {
	f := &s.facts
	return (q.Listener == "" || q.Listener == f.Listener) && (q.Pool == "" || q.Pool == f.Pool) &&
		(q.Backend == "" || q.Backend == s.backend.ID()) &&
		(!q.Client.IsValid() || q.Client.Contains(f.Client.Addr().Unmap().WithZone("")))
}

func (s *openSession) inWords(now balance.Instant) admin.Session {
	f := &s.facts
	return admin.Session{
		Kind: f.Kind, Protocol: f.Protocol, Listener: f.Listener, Route: f.Route, Pool: f.Pool, Backend: s.backend.ID(),
		Client: clientInWords(f.Client), Name: f.Name, Since: clock.Time(s.since), AgeS: max(now.Sub(s.since), 0).Seconds(), Ending: s.told,
	}
}

// clientInWords is an address with its port, where that is known.
func clientInWords(a netip.AddrPort) string {
	switch {
	case !a.Addr().IsValid():
		return ""
	case a.Port() == 0:
		return a.Addr().String()
	default:
		return a.String()
	}
}

// knowsNames says that nobody knows the names of a query that has found nothing.
func (e *Engine) knowsNames(q *admin.SessionQuery) error {
	g := e.gen.Load()
	if q.Pool != "" && g.pools[q.Pool] == nil {
		return e.unknownPool(q.Pool)
	}
	if q.Listener != "" && g.Plan.Listener(q.Listener) == nil {
		var names []string
		for i := range g.Plan.Listeners {
			names = append(names, g.Plan.Listeners[i].Name)
		}
		return fmt.Errorf("%w: %s; there is %s", admin.ErrUnknownListener, q.Listener, listed(names))
	}
	return nil
}
