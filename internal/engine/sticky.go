// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/inputfile"
	"github.com/weirlb/weir/internal/l7"
	"github.com/weirlb/weir/pool"
)

// stickyKeys are what the cookies of a pool are signed with.
type stickyKeys struct {
	on   bool     // the pool keeps sessions
	keys [][]byte // none: its cookies are not signed
}

// loadSticky reads the keys that a plan names.
func loadSticky(p *config.Pool) (stickyKeys, error) {
	if p.Sticky == nil || p.Sticky.SecretFile == "" {
		return stickyKeys{on: p.Sticky != nil}, nil
	}
	keys, err := inputfile.Keys(p.Sticky.SecretFile)
	if err != nil {
		return stickyKeys{}, fmt.Errorf("pool %s: sticky.secret_file: %w", p.Name, err)
	}
	return stickyKeys{on: true, keys: keys}, nil
}

func (k stickyKeys) equal(o stickyKeys) bool { return reflect.DeepEqual(k, o) }

// seat puts keys into force.
func (p *livePool) seat(k stickyKeys) {
	p.sticky = k
	if k.on {
		p.sessions.SetKeys(k.keys)
	} else {
		p.sessions.Off()
	}
}

// seatMembers tells the sessions of the pool which backends there are, after each
// change of the membership.
func (p *livePool) seatMembers() {
	if !p.sessions.On() {
		return
	}
	s := p.pool.Snapshot()
	members := make([]*balance.Backend, 0, len(s.Backends))
	for i := range s.Backends {
		if !s.Backends[i].Removed {
			members = append(members, s.Backends[i].Backend)
		}
	}
	p.sessions.SetMembers(members)
}

// stickyOf is how routes to a pool keep sessions; nil: they do not.
func (p *livePool) stickyOf(cfg *config.Pool) *l7.Sticky {
	c := cfg.Sticky
	if c == nil {
		return nil
	}
	words := map[string]l7.SecureCookie{"auto": l7.SecureAuto, "on": l7.SecureAlways, "off": l7.SecureNever}
	opt := l7.StickyOptions{
		Name: c.Cookie, TTL: c.TTL, Secure: words[c.Secure], HTTPOnly: c.HTTPOnly, Path: c.Path, Domain: c.Domain,
	}
	if opt.Name == "" {
		opt.Name = l7.StickyName(cfg.Name, cfg.Weir)
	}
	if c.SameSite != "" {
		opt.SameSite = strings.ToUpper(c.SameSite[:1]) + c.SameSite[1:]
	}
	return l7.NewSticky(opt, p.sessions)
}

// cookieInWords says which backend the cookie of a request names, and what becomes
// of that; empty where sessions are not kept.
func cookieInWords(told *l7.Explained, e *pool.Explanation) string {
	switch {
	case told.Cookie == "":
		return ""
	case !told.Told:
		return "the request has no cookie " + told.Cookie + ", so it begins a session, with a cookie, where it is placed"
	case told.Ask.Prefer == 0:
		return "the cookie " + told.Cookie + " names no backend of the pool: it is damaged, made with another key or for another pool, or its backend has left; the request begins a session anew"
	}
	for i := range e.Candidates {
		c := &e.Candidates[i]
		if c.Backend.Hash() != told.Ask.Prefer {
			continue
		}
		says := "the cookie " + told.Cookie + " names " + c.Backend.ID()
		switch {
		case c.Chance >= 1 && e.Snapshot.Backends[i].Sessions:
			return says + ", which drains and keeps its sessions for now, so the request goes there"
		case c.Chance >= 1:
			return says + ", and the request goes there"
		case c.Why != "":
			return says + ", which gets none of its requests now (" + c.Why + "): the request is placed anew, and the cookie rewritten"
		}
		return says + ", which may not be free: then the request is placed anew, and the cookie rewritten"
	}
	return ""
}
