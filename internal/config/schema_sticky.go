// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"time"
)

// Sticky keeps the requests of a client on one backend, by a cookie of weir's
// own.
type Sticky struct {
	// Cookie is its name; empty: weir makes one of the pool's name.
	Cookie string
	// TTL is how long the client keeps it, renewed while the session is in use; 0:
	// until the browser ends.
	TTL      time.Duration
	Secure   string // auto, on or off
	HTTPOnly bool
	SameSite string // lax, strict or none; empty: the attribute is left out
	Path     string
	Domain   string // empty: the host alone
	// SecretFile holds the keys that sign the cookie; empty: it is not signed.
	SecretFile string
	// OnDrain is what becomes of the sessions of a draining backend: move, or keep
	// until its deadline.
	OnDrain string
}

var stickyField = maybe("sticky", "off", "a cookie keeps a client's requests on one backend while that takes work",
	func(p *Pool) **Sticky { return &p.Sticky }, stickyFields, checkSticky).orOn()

var stickyFields = []field[Sticky]{
	key("cookie", "auto", text("name", cookieName), func(s *Sticky) *string { return &s.Cookie },
		"name of the cookie; auto makes one of the pool's name, so that no two pools share one").word("auto", ""),
	key("ttl", "1h", duration(time.Second, 400*day), func(s *Sticky) *time.Duration { return &s.TTL },
		"how long the client keeps it; renewed once half of it is over. none: until the browser ends").off("none", 0),
	key("secure", "auto", choice([]string{"auto", "on", "off"}), func(s *Sticky) *string { return &s.Secure },
		"Secure: auto is on where the client came over TLS, to weir or to a trusted proxy that says so in X-Forwarded-Proto"),
	key("http_only", "true", boolean(), func(s *Sticky) *bool { return &s.HTTPOnly }, "HttpOnly: scripts do not see it"),
	key("same_site", "lax", sameSite, func(s *Sticky) *string { return &s.SameSite },
		"SameSite; none is the cookie's own word and takes Secure, off leaves the attribute out"),
	key("path", "/", text("path", cookiePath), func(s *Sticky) *string { return &s.Path }, "Path"),
	key("domain", "none", text("host", hostName), func(s *Sticky) *string { return &s.Domain }, "Domain; none: the host that was asked, alone").off("none", ""),
	key("secret_file", "none", file(), func(s *Sticky) *string { return &s.SecretFile },
		"keys that sign the cookie, which several weirs share: one in a line, the first signs, all verify").off("none", ""),
	key("on_drain", "move", choice([]string{"move", "keep"}), func(s *Sticky) *string { return &s.OnDrain },
		"sessions of a draining backend: move them at once, or keep them there until the last drain.spread before its deadline"),
}

// sameSite reads same_site, where none is a value and off is none at all.
var sameSite codec[string] = simple[string]{
	name:  "lax, strict, none or off",
	parse: parseSameSite,
	format: func(v string) string {
		if v == "" {
			return "off"
		}
		return v
	},
}

func parseSameSite(text string) (v, what, fix string) {
	switch low := strings.ToLower(text); low {
	case "lax", "strict", "none":
		return low, "", ""
	case "off", "false", "no":
		return "", "", ""
	}
	return "", quote(text) + " is not a value of SameSite", "use lax, strict or none, or off to leave it out"
}

// cookieName is a token (RFC 6265, section 4.1.1).
func cookieName(s string) (what, fix string) {
	switch {
	case len(s) > 128:
		return "the name of the cookie is too long", "at most 128 bytes"
	case !tokenPattern.MatchString(s):
		return quote(s) + " is not the name of a cookie", "use letters, digits, - and _"
	}
	return "", ""
}

func cookiePath(s string) (what, fix string) {
	if s == "" || s[0] != '/' || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e || r == ';' }) {
		return quote(s) + " is not the path of a cookie", "begin it with a slash, without spaces and semicolons"
	}
	return "", ""
}

// checkSticky refuses cookies that browsers throw away without a word (RFC
// 6265bis, sections 4.1.3 and 5.7).
func checkSticky(d *decoder, n *node, s *Sticky) {
	if s.SameSite == "none" && s.Secure == "off" {
		d.fault(n.at("same_site"), "browsers refuse a cookie with SameSite=None that is not Secure", "write secure: auto, or same_site: lax")
	}
	low := strings.ToLower(s.Cookie)
	switch secure, host := strings.HasPrefix(low, "__secure-"), strings.HasPrefix(low, "__host-"); {
	case (secure || host) && s.Secure != "on":
		d.fault(n.at("cookie"), "browsers refuse a cookie called "+s.Cookie+" that is not Secure", "write secure: on, or another name")
	case host && s.Domain != "":
		d.fault(n.at("domain"), "browsers refuse a cookie called "+s.Cookie+" that has a Domain", "remove domain, or write another name")
	case host && s.Path != "/":
		d.fault(n.at("path"), "browsers refuse a cookie called "+s.Cookie+" whose Path is not /", "remove path, or write another name")
	}
}
