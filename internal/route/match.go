// SPDX-License-Identifier: Apache-2.0

package route

import (
	"bytes"

	"github.com/weirlb/weir/internal/message"
)

// maxHost bounds the hosts that are looked up (RFC 1035: 253 characters, and
// room for a trailing dot). Longer ones match no rule with a host.
const maxHost = 256

// Match returns the Index of the first rule that matches, and sets r.Routed to
// the path to forward: the normal form, or r.Path itself for a raw rule. ok is
// false when none matches; r.Routed is then the normal form. err is non-nil
// when the path has no normal form and no raw rule may take it.
//
// Nothing is allocated, except that a path which is not in normal form may grow
// r.Scratch, which r.Routed then lies in.
func (t *Table) Match(r *message.Request) (number int, ok bool, err *Error) {
	r.Routed = r.Path
	var buf [maxHost]byte
	host := hostOf(&buf, r.Authority)
	if len(r.Path) == 1 && r.Path[0] == '*' {
		// OPTIONS *: the server as a whole. Rules without a path match.
		e := earlier(t.normal.find(host, r.Path, r), t.raw.find(host, r.Path, r))
		return e.number(), e != nil, nil
	}

	normal, bad := r.Path, (*Error)(nil)
	if !isPlain(r.Path) {
		normal, bad = rewrite(r.Scratch[:0], r.Path, false)
		if bad != nil {
			return t.matchBad(r, host, bad)
		}
		r.Scratch = normal
		if bytes.Equal(normal, r.Path) {
			normal = r.Path
		}
	}
	best := t.normal.find(host, normal, r)
	if t.raw.size > 0 {
		if e := t.raw.find(host, r.Path, r); earlier(e, best) == e && e != nil {
			return e.index, true, nil // r.Routed is r.Path
		}
	}
	r.Routed = normal
	return best.number(), best != nil, nil
}

// Misdirected reports, of a request that Match has found no rule for, that one
// would take it on a connection with another server name: the client has reused a
// connection for a host that the connection is not for (RFC 9110, section 15.5.20).
func (t *Table) Misdirected(r *message.Request) bool {
	if t.nameless == nil || !r.TLS {
		return false
	}
	_, ok, err := t.nameless.Match(r)
	return ok && err == nil
}

// matchBad routes a path without a normal form: only a raw rule may take it,
// and not when a careless reading belongs to an earlier rule.
func (t *Table) matchBad(r *message.Request, host []byte, bad *Error) (int, bool, *Error) {
	if t.raw.size == 0 {
		return -1, false, bad
	}
	best := t.raw.find(host, r.Path, r)
	if best == nil {
		return -1, false, bad
	}
	careless, _ := rewrite(r.Scratch[:0], r.Path, true) // a lenient reading has no errors
	r.Scratch = careless
	if e := t.normal.find(host, careless, r); e != nil && e.rank < best.rank {
		return -1, false, bad
	}
	return best.index, true, nil
}

func (e *entry) number() int {
	if e == nil {
		return -1
	}
	return e.index
}

// earlier returns the entry that comes first in the order; nil comes last.
func earlier(a, b *entry) *entry {
	switch {
	case a == nil:
		return b
	case b == nil || a.rank < b.rank:
		return a
	default:
		return b
	}
}

// find returns the first entry of the index that matches, or nil. host is clean.
func (x *index) find(host, path []byte, r *message.Request) *entry {
	if len(host) > 0 {
		if p := x.exact[string(host)]; p != nil {
			if e := p.find(path, r); e != nil {
				return e
			}
		}
		if e := x.findWild(host, path, r); e != nil {
			return e
		}
	}
	if x.any == nil {
		return nil
	}
	return x.any.find(path, r)
}

// findWild tries the wildcards of a host, longest first: every suffix behind a
// dot, from the left.
func (x *index) findWild(host, path []byte, r *message.Request) *entry {
	if len(x.wild) == 0 {
		return nil
	}
	for i := 1; i < len(host); i++ { // from 1: a wildcard stands for at least one character
		if host[i] != '.' {
			continue
		}
		if p := x.wild[string(host[i+1:])]; p != nil {
			if e := p.find(path, r); e != nil {
				return e
			}
		}
	}
	return nil
}

// find returns the first entry for the path, or nil.
func (p *paths) find(path []byte, r *message.Request) *entry {
	if len(p.exact) > 0 {
		if e := first(p.exact[string(path)], r); e != nil {
			return e
		}
	}
	// Walk down as far as segments are known, then back up over those with rules.
	s, i := p.root, 0
	for i < len(path) && path[i] == '/' && s.next != nil {
		end := len(path)
		if j := bytes.IndexByte(path[i+1:], '/'); j >= 0 {
			end = i + 1 + j
		}
		child := s.next[string(path[i+1:end])]
		if child == nil {
			break
		}
		s, i = child, end
	}
	// Behind any segment but the last one reached there is a slash.
	for slash := i < len(path) && path[i] == '/'; s != nil; s, slash = s.up, true {
		if slash {
			if e := first(s.slash, r); e != nil {
				return e
			}
		}
		if e := first(s.bare, r); e != nil {
			return e
		}
	}
	return nil
}

// first returns the first entry whose further conditions hold. Entries are in
// order.
func first(list []*entry, r *message.Request) *entry {
	for _, e := range list {
		if e.holds(r) {
			return e
		}
	}
	return nil
}

// hostOf returns the host of an authority as rules spell it: without port and
// trailing dot, in lower case. It is empty when there is none or it is too long
// to be one.
func hostOf(buf *[maxHost]byte, authority []byte) []byte {
	host := authority
	if i := bytes.LastIndexByte(host, ':'); i >= 0 && bytes.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	if n := len(host); n > 0 && host[n-1] == '.' {
		host = host[:n-1]
	}
	if len(host) > len(buf) {
		return nil
	}
	for i, c := range host {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		buf[i] = c
	}
	return buf[:len(host)]
}
