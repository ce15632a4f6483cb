// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
)

// Sticky keeps the requests of a client on one backend of a pool, by a cookie
// that names it (RFC 6265). It is immutable, but for the Sessions that it shares
// with those of other generations.
type Sticky struct {
	name     string
	ttl      int64 // in seconds; 0: the cookie ends with the browser
	secure   SecureCookie
	plain    string // what stands behind the value
	safe     string // the same, of a Secure cookie
	sessions *Sessions
}

// SecureCookie says when a cookie is Secure.
type SecureCookie uint8

// When a cookie is Secure.
const (
	SecureAuto   SecureCookie = iota // where the client's own connection is TLS, as far as one can know
	SecureAlways                     // even where browsers refuse it for that
	SecureNever
)

// StickyOptions are the attributes of the cookie. Texts must be valid parts of a
// Set-Cookie field.
type StickyOptions struct {
	Name     string        // see StickyName
	TTL      time.Duration // whole seconds; 0: until the browser ends
	Secure   SecureCookie
	HTTPOnly bool
	SameSite string // Lax, Strict or None; empty: left out. None is left out of cookies that are not Secure: browsers refuse those
	Path     string // empty: /
	Domain   string // empty: none, which means the host alone
}

// NewSticky returns a Sticky whose values s knows.
func NewSticky(opt StickyOptions, s *Sessions) *Sticky {
	out := &Sticky{name: opt.Name, ttl: int64(opt.TTL / time.Second), secure: opt.Secure, sessions: s}
	path := opt.Path
	if path == "" {
		path = "/"
	}
	attributes := func(secure bool) string {
		var b strings.Builder
		b.WriteString("; Path=" + path)
		if opt.Domain != "" {
			b.WriteString("; Domain=" + opt.Domain)
		}
		if out.ttl > 0 {
			b.WriteString("; Max-Age=" + strconv.FormatInt(out.ttl, 10))
		}
		if opt.HTTPOnly {
			b.WriteString("; HttpOnly")
		}
		if secure {
			b.WriteString("; Secure")
		}
		if opt.SameSite != "" && (secure || opt.SameSite != "None") {
			b.WriteString("; SameSite=" + opt.SameSite)
		}
		return b.String()
	}
	out.plain, out.safe = attributes(false), attributes(true)
	return out
}

// StickyName makes the name of a pool's cookie of the pool's name: weir- and eight
// characters that tell nothing of it. Two pools behind one host must not write
// over each other's cookies; nor must two weirs in a row whose pools are called
// the same, so that weir says that the pool's backends are weirs.
func StickyName(pool string, weir bool) string {
	text := "weir cookie name\x00" + pool
	if weir {
		text += "\x00weir"
	}
	sum := sha256.Sum256([]byte(text))
	return "weir-" + hex.EncodeToString(sum[:4])
}

// Name is the cookie's name.
func (s *Sticky) Name() string { return s.name }

// stickyCookie is what a request's cookie says.
type stickyCookie struct {
	backend balance.BackendID // that it names; 0: none
	told    bool              // there was a cookie of the name
	renew   bool              // it had better be written anew
	secure  bool              // the client's own connection is TLS
}

// stickyLooks bounds how many cookies of the name are looked at. A browser sends
// several when another host of the domain, or another path, has set one: the first
// that means something counts, or somebody else's cookie would be in the way for
// ever.
const stickyLooks = 8

// askCookie takes weir's cookie out of a request, and has the pool prefer the
// backend that it names. Backends never see it. Forwarding fields are settled,
// the route's edits not yet applied.
func (e *exchange) askCookie(s *Sticky) {
	e.sticky = s.take(&e.req.Fields, clock.Time(e.start).Unix())
	e.sticky.secure = e.secured(s)
	e.breq.Prefer = e.sticky.backend
}

// secured reports whether the cookie is to be Secure. A trusted proxy knows
// better than weir how the client came.
func (e *exchange) secured(s *Sticky) bool {
	switch {
	case s.secure == SecureAlways:
		return true
	case s.secure == SecureNever:
		return false
	case e.ci.scratch.proxy:
		v, ok := only(&e.req.Fields, message.XForwardedProto) // prepareFields has made it usable
		return ok && message.EqualFold(v, "https")
	}
	return e.ci.TLS
}

// take looks for cookies of the name and removes them; the others stay as they
// are. now is the time in seconds.
func (s *Sticky) take(f *message.Fields, now int64) (a stickyCookie) {
	looks := 0
	for i := range f.Len() {
		if f.ID(i) != message.Cookie || f.Removed(i) {
			continue
		}
		line := f.Value(i)
		own, others := false, false
		for rest := line; len(rest) > 0; {
			var pair []byte
			pair, rest = nextPair(rest)
			value, ok := s.owns(pair)
			if !ok {
				others = others || len(pair) > 0
				continue
			}
			own, a.told = true, true
			if looks++; a.backend == 0 && looks <= stickyLooks {
				a.backend, a.renew = s.read(value, now)
			}
		}
		switch {
		case own && others:
			f.Rewrite(i, func(b []byte) []byte { return s.appendOthers(b, line) })
		case own:
			f.Remove(i)
		}
	}
	return a
}

// nextPair cuts the first cookie off a line, without white space around it.
func nextPair(line []byte) (pair, rest []byte) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		return trimOWS(line[:i]), line[i+1:]
	}
	return trimOWS(line), nil
}

// owns returns the value of a pair of the cookie's name. Names are compared as
// they are; a pair without "=" has none.
func (s *Sticky) owns(pair []byte) (value []byte, ok bool) {
	n := len(s.name)
	if len(pair) <= n || string(pair[:n]) != s.name {
		return nil, false
	}
	rest := trimOWS(pair[n:])
	if len(rest) == 0 || rest[0] != '=' {
		return nil, false
	}
	return trimOWS(rest[1:]), true
}

// appendOthers appends the cookies of a line that are not weir's.
func (s *Sticky) appendOthers(b, line []byte) []byte {
	first := true
	for rest := line; len(rest) > 0; {
		var pair []byte
		pair, rest = nextPair(rest)
		if _, ok := s.owns(pair); ok || len(pair) == 0 {
			continue
		}
		if !first {
			b = append(b, "; "...)
		}
		b = append(b, pair...)
		first = false
	}
	return b
}

// read returns which backend a value names, and whether it had better be written
// anew: half of its time is over, or a key made it that makes none any more.
func (s *Sticky) read(value []byte, now int64) (b balance.BackendID, renew bool) {
	t, made, ok := parseValue(value)
	if !ok {
		return 0, false
	}
	b, old := s.sessions.find(t)
	if b == 0 {
		return 0, false
	}
	return b, old || s.due(made, now)
}

// clockSkew is how far the clocks of two weirs may differ without renewing each
// other's cookies.
const clockSkew = 60

// due reports that a cookie made at a time (0: it does not say) is to be renewed.
// The time is not signed: whoever changes it gets a new cookie sooner or later.
func (s *Sticky) due(made, now int64) bool {
	if s.ttl == 0 {
		return made != 0 // it would end some day
	}
	age := now - made
	return age >= (s.ttl+1)/2 || age < -clockSkew
}

// settleCookie says what became of the request's session, and writes the cookie
// where it changes. An answer of 5xx begins no session: the backend that gives it
// may be about to be taken out, and answers fast perhaps.
func (e *exchange) settleCookie(s *Sticky) {
	f := &e.res.Fields
	s.dropForeign(f)
	a, b := &e.sticky, e.backend
	outcome := observe.StickyNew
	switch {
	case a.backend == b.Hash():
		outcome = observe.StickyKept
	case a.backend != 0:
		outcome = observe.StickyMoved
	case a.told:
		outcome = observe.StickyUnknown
	}
	e.rec.Sticky = outcome
	if e.rt.PoolSeries != nil {
		e.rt.PoolSeries.Sticky(outcome)
	}
	if outcome == observe.StickyKept && !a.renew || e.res.Status >= 500 {
		return
	}
	now := clock.Time(e.start).Unix()
	f.AddFunc(message.SetCookie, "Set-Cookie", func(t []byte) []byte { return s.append(t, b, now, a.secure) })
	// A cache that kept it would send everybody to one backend (RFC 9111, section
	// 7.3); in this form the rest of the answer may be kept (section 5.2.2.4).
	f.Add(message.Other, "Cache-Control", `no-cache="set-cookie"`)
}

// append writes the cookie that names a backend.
func (s *Sticky) append(t []byte, b *balance.Backend, now int64, secure bool) []byte {
	t = append(append(t, s.name...), '=')
	t = appendValue(t, s.sessions.token(b), now, s.ttl > 0)
	if secure {
		return append(t, s.safe...)
	}
	return append(t, s.plain...)
}

// dropForeign removes what a backend sets under the name of weir's cookie: of two
// a browser keeps the last, and weir's own comes only when it changes.
func (s *Sticky) dropForeign(f *message.Fields) {
	for i := range f.Len() {
		if f.ID(i) != message.SetCookie || f.Removed(i) {
			continue
		}
		pair, _ := nextPair(f.Value(i))
		if _, ok := s.owns(pair); ok {
			f.Remove(i)
		}
	}
}
