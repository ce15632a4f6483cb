// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

var routesField = routeList{&several[Listener, Route]{
	s: spec{name: "routes", kind: "list", list: true, subs: specsOf(routeFields),
		doc: "by host (exact, longest wildcard, none), then path (exact, longest prefix), then as written; the first that matches wins"},
	at: func(l *Listener) *[]Route { return &l.Routes }, what: "route", fields: routeFields,
	begin: func(_ *decoder, _, n *node, r *Route) { r.Pos = n.pos },
	end:   endRoute,
	ref:   defaultsOf(routeFields),
}}

// routeList writes a plain catch-all at the end as `pool:` beside bind, where a
// user would have put it.
type routeList struct{ *several[Listener, Route] }

func (l routeList) write(w *writer, t, ref *Listener) *node {
	if plainCatchAll(w, t) == nil {
		return l.several.write(w, t, ref)
	}
	shorter := *t
	shorter.Routes = t.Routes[:len(t.Routes)-1]
	return l.several.write(w, &shorter, ref)
}

// plainCatchAll returns the pool of the last route when that is all it says.
func plainCatchAll(w *writer, l *Listener) *node {
	if len(l.Routes) == 0 || w.full {
		return nil
	}
	n := writeBlock(w, routeFields, &l.Routes[len(l.Routes)-1], &routesField.ref)
	if len(n.pairs) != 1 || n.pairs[0].key.text != "pool" {
		return nil
	}
	return n.pairs[0].value
}

// routeName leaves out a name that was made from the match.
type routeName struct{ field[Route] }

func (f routeName) write(w *writer, r, ref *Route) *node {
	if !w.full && r.Name == r.Match.name() {
		return nil
	}
	return f.field.write(w, r, ref)
}

var routeFields = []field[Route]{
	routeName{key("name", "", text("name", goodRouteName), func(r *Route) *string { return &r.Name }, "label in metrics and logs; made from the match when absent")},
	key("raw", "false", boolean(), func(r *Route) *bool { return &r.Raw },
		"compare and forward the path's original bytes instead of its normal form"),
	keys("match", "conditions; all must hold, none matches everything", func(r *Route) *Match { return &r.Match }, matchFields),
	key[Route, string]("pool", "", poolName{}, func(r *Route) *string { return &r.Pool }, "where requests go"),
	key("listener", "none", text("listener's name", nil), func(r *Route) *string { return &r.Listener },
		"of sni listeners, in the place of a pool: the listener, with tls, that ends TLS and goes on with its own routes and settings").off("none", ""),
	later[Route, string]("split", "none", anything("mapping"), "several pools with weights").off("none", "none"),
	maybe("redirect", "none", "answer with a Location; what is absent is taken from the request", func(r *Route) **Redirect { return &r.Redirect }, redirectFields, checkRedirect),
	maybe("respond", "none", "answer without a backend", func(r *Route) **Respond { return &r.Respond }, respondFields, nil),
	keys("rewrite", "what is forwarded", func(r *Route) *Rewrite { return &r.Rewrite }, rewriteFields).offMeans(func(w *Rewrite) { *w = Rewrite{} }).checked(checkRewrite),
	keys("request_headers", "toward the backend", func(r *Route) *HeaderEdits { return &r.RequestHeaders }, editFields),
	keys("response_headers", "toward the client", func(r *Route) *HeaderEdits { return &r.ResponseHeaders }, editFields),
	keys("timeouts", "of one exchange", func(r *Route) *RouteTimeouts { return &r.Timeouts }, routeTimeoutFields).checked(warnTimeouts),
	keys("retry", "over the pool's retry, key by key", func(r *Route) *Retry { return &r.Retry }, retryFields).
		basedOn(poolRetry).offMeans(func(r *Retry) { r.Attempts = 1 }),
	keys("limits", "ceilings of the route", func(r *Route) *Route { return r }, []field[Route]{
		key("requests", "none", count[int64](manyInt), func(r *Route) *int64 { return &r.MaxRequests }, "requests in flight").off("none", 0),
	}),
	key("starttls", "none", choice([]string{"postgres"}), func(r *Route) *string { return &r.StartTLS },
		"of sni listeners: clients that ask for TLS in another protocol first are answered, and the backend is asked in their place. postgres: PostgreSQL's SSLRequest; those that begin with TLS are taken, too").off("none", ""),
	key("priority", "normal", choice([]string{"low", "normal", "high"}), func(r *Route) *string { return &r.Priority },
		"who is refused first when limits.adaptive of the pool is reached; X-Weir-Priority of a trusted weir goes before it"),
}

var matchFields = []field[Match]{
	key("host", "none", matchHost, func(m *Match) *string { return &m.Host },
		`exact, or "*.example.com" for one or more labels; without port, case and trailing dot`).off("none", ""),
	key("path", "none", text("path", nil), func(m *Match) *string { return &m.Path }, "the whole path").off("none", ""),
	key("path_prefix", "none", text("path", nil), func(m *Match) *string { return &m.PathPrefix },
		"whole segments: /v1 matches /v1 and /v1/..., never /v10").off("none", ""),
	key("methods", "[]", listOf(methodName, nil), func(m *Match) *[]string { return &m.Methods }, "any of these"),
	key[Match, []HeaderMatch]("headers", "{}", fieldMap[HeaderMatch]{
		value: func(name, value string) HeaderMatch { return HeaderMatch{name, value} },
		parts: func(h HeaderMatch) (string, string) { return h.Name, h.Value },
	}, func(m *Match) *[]HeaderMatch { return &m.Headers }, "field lines with exactly these values"),
	later[Match]("path_regex", "none", text("pattern", nil), "a pattern of paths").off("none", ""),
	later[Match, string]("query", "{}", anything("mapping"), "query parameters").off("none", ""),
	later[Match, string]("cookies", "{}", anything("mapping"), "cookies").off("none", ""),
	later[Match]("client", "[]", listOf(prefixes, nil), "addresses of clients").off("none", nil),
	key("sni", "[]", oneOrMore(listOf(serverName, nil)), func(m *Match) *[]string { return &m.SNI },
		`server names that the client asks for in TLS, exact or "*.example.com" for one or more labels; without: any, and none`).off("none", nil),
	key("alpn", "[]", oneOrMore(listOf(protocolID, nil)), func(m *Match) *[]string { return &m.ALPN },
		"on sni listeners: the route is for clients that offer at least one of these protocols in TLS, such as h2 or postgresql; without: for all").off("none", nil),
}

// anything stands for the values of keys that are not built.
type anything string

func (a anything) kind() string { return string(a) }
func (anything) rng() string    { return "" }
func (anything) scan(_ *decoder, n *node, _ *spec) (string, bool) {
	if len(n.pairs)+len(n.items) > 0 {
		return "given", true
	}
	return n.text, true
}
func (anything) show(v string) *node { return &node{kind: scalar, text: v} }

var methodName codec[string] = text("method", func(s string) (what, fix string) {
	switch {
	case !tokenPattern.MatchString(s):
		return quote(s) + " is not a method", "write methods as in HTTP, such as GET"
	case s != strings.ToUpper(s):
		return quote(s) + " is not a method: case counts", "write " + strings.ToUpper(s)
	case s == "CONNECT" || s == "TRACE":
		return s + " is always answered with 405", "remove it"
	}
	return "", ""
})

// matchHost reads a host to match, in lower case.
var matchHost codec[string] = simple[string]{
	name: "host",
	parse: func(s string) (string, string, string) {
		host := strings.ToLower(strings.TrimSuffix(s, "."))
		if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil && a.Is6() {
			return "[" + strings.Trim(host, "[]") + "]", "", ""
		}
		switch {
		case host == "*":
			return "", quote(s) + " is not a host", "leave host out to match every host"
		case strings.Contains(host, "://"):
			return "", quote(s) + " is a URL", "write the host only"
		case strings.Contains(host, "/"):
			return "", quote(s) + " has a path", "write the host here and the path in path_prefix"
		case strings.Contains(host, ":"):
			return "", quote(s) + " has a port", "write the host only: ports are not compared"
		}
		bare, wild := strings.CutPrefix(host, "*.")
		if strings.Contains(bare, "*") || wild && bare == "" {
			return "", quote(s) + " has a wildcard inside a name", `a wildcard stands for whole labels at the front: "*.example.com"`
		}
		if what, fix := hostName(bare); what != "" {
			return "", what, fix
		}
		return host, "", ""
	},
	format: func(s string) string { return s },
}

func goodRouteName(s string) (what, fix string) {
	if len(s) > 128 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' && r != ' ' || r > 0x7e || r == '"' }) {
		return quote(s) + " is not a name", "use up to 128 printable ASCII characters"
	}
	return "", ""
}

// poolName reads the name of a pool; whether it exists is checked when all
// pools are known.
type poolName struct{}

func (poolName) kind() string        { return "pool's name" }
func (poolName) rng() string         { return "" }
func (poolName) show(v string) *node { return textNode(v) }

func (poolName) scan(d *decoder, n *node, s *spec) (string, bool) {
	v, ok := text("pool's name", nil).scan(d, n, s)
	if ok {
		d.poolRefs = append(d.poolRefs, poolRef{n, v})
	}
	return v, ok
}

var redirectFields = []field[Redirect]{
	key("code", "308", codes(301, 302, 303, 307, 308), func(r *Redirect) *int { return &r.Code }, "status"),
	key("scheme", "none", choice([]string{"http", "https"}), func(r *Redirect) *string { return &r.Scheme }, "of the new URL").off("none", ""),
	key("host", "none", text("host", hostName), func(r *Redirect) *string { return &r.Host }, "of the new URL").off("none", ""),
	key("port", "none", integer(1, 65535), func(r *Redirect) *int { return &r.Port },
		"of the new URL; absent: the scheme's when scheme is given, else the request's").off("none", 0),
	key("path", "none", text("path", redirectPath), func(r *Redirect) *string { return &r.Path }, "replaces path and query").off("none", ""),
}

func checkRedirect(d *decoder, n *node, r *Redirect) {
	same := r.Scheme == "" && r.Host == "" && r.Port == 0 && r.Path == ""
	for _, name := range []string{"scheme", "host", "port", "path"} {
		if p := n.get(name); p != nil && !switchedOff(p.value) || p == nil && !n.lacks(name) {
			same = false // wrong, perhaps, but that is said elsewhere
		}
	}
	if same {
		d.fault(n, "this redirects to where the request came from", "give scheme, host, port or path")
	}
}

func redirectPath(s string) (what, fix string) {
	if s == "" || s[0] != '/' || strings.HasPrefix(s, "//") || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e || r == '\\' }) {
		return quote(s) + " is not a path", "begin it with one slash and write other characters percent-encoded"
	}
	return "", ""
}

// codes reads one of some status codes.
func codes(list ...int) codec[int] {
	var words []string
	for _, c := range list {
		words = append(words, itoa(c))
	}
	return simple[int]{
		name: oneOf(words),
		parse: func(text string) (int, string, string) {
			if i := slices.Index(words, text); i >= 0 {
				return list[i], "", ""
			}
			return 0, quote(text) + " is not allowed here", "use " + oneOf(words)
		},
		format: strconv.Itoa,
	}
}

var respondFields = []field[Respond]{
	key("code", "200", integer(200, 599), func(r *Respond) *int { return &r.Code }, "status"),
	key[Respond, string]("body", `""`, textCodec{name: "text", lines: true}, func(r *Respond) *string { return &r.Body }, "content"),
	key("content_type", "text/plain; charset=utf-8", text("media type", fieldValue), func(r *Respond) *string { return &r.ContentType }, "Content-Type"),
}

var rewriteFields = []field[Rewrite]{
	key("strip_prefix", "none", text("path", stripPath), func(r *Rewrite) *string { return &r.StripPrefix },
		"taken off the front of the path, whole segments only").off("none", ""),
	key("host", "none", text("host", rewriteHost), func(r *Rewrite) *string { return &r.Host }, "replaces Host").off("none", ""),
	key("path", "none", text("path", rawPath), func(r *Rewrite) *string { return &r.Path }, "replaces the path").off("none", ""),
}

func stripPath(s string) (what, fix string) {
	if what, fix := rawPath(s); what != "" {
		return what, fix
	}
	if strings.HasSuffix(s, "/") {
		bare := strings.TrimRight(s, "/")
		if bare == "" {
			return "stripping / leaves nothing to forward", "remove strip_prefix"
		}
		return quote(s) + " ends in a slash", "write " + bare + "; whole segments are stripped anyway"
	}
	return "", ""
}

func rewriteHost(s string) (what, fix string) {
	if strings.Contains(s, ":") {
		return hostPort(s, false)
	}
	return hostName(s)
}

func checkRewrite(d *decoder, n *node, r *Rewrite) {
	if r.StripPrefix != "" && r.Path != "" {
		d.fault(n.at("strip_prefix"), "strip_prefix and path exclude each other", "keep one of them")
	}
}

var editFields = []field[HeaderEdits]{
	key[HeaderEdits, []Header]("set", "{}", headers, func(e *HeaderEdits) *[]Header { return &e.Set }, "replace every field of the name"),
	key[HeaderEdits, []Header]("add", "{}", headers, func(e *HeaderEdits) *[]Header { return &e.Add }, "one more field"),
	key("remove", "[]", sorted(listOf(text("field name", fieldName), nil)), func(e *HeaderEdits) *[]string { return &e.Remove }, "fields to drop, before set and add"),
}

var headers = fieldMap[Header]{
	value: func(name, value string) Header { return Header{name, value} },
	parts: func(h Header) (string, string) { return h.Name, h.Value },
}

var routeTimeoutFields = []field[RouteTimeouts]{
	key("request", "60s", duration(tick, day), func(t *RouteTimeouts) *time.Duration { return &t.Request },
		"head of the request until head of the response; covers queue, connect and all attempts; not for upgrades and gRPC calls").off("none", 0),
	key("total", "none", duration(tick, 30*day), func(t *RouteTimeouts) *time.Duration { return &t.Total },
		"head of the request until the last byte of the response").off("none", 0),
}

// endRoute checks what lies across the keys of a route.
func endRoute(d *decoder, _, n *node, r *Route) {
	m := n.at("match")
	check := plainPath
	if r.Raw {
		check = rawPath
	}
	for _, k := range []struct{ name, value string }{{"path", r.Match.Path}, {"path_prefix", r.Match.PathPrefix}} {
		if k.value == "" {
			continue
		}
		what, fix := patternOfPaths(k.value)
		if what == "" {
			what, fix = check(k.value)
		}
		if what != "" {
			d.fault(m.at(k.name), what, fix)
		}
	}
	if r.Match.Path != "" && r.Match.PathPrefix != "" {
		d.fault(m.at("path_prefix"), "path and path_prefix exclude each other", "keep one of them")
	}
	var given []string
	for _, name := range []string{"pool", "listener", "redirect", "respond", "split"} {
		if p := n.get(name); p != nil && (name == "pool" || !switchedOff(p.value)) {
			given = append(given, name)
		}
	}
	switch {
	case len(given) == 0 && !n.lacks("pool"): // reported
	case len(given) == 0:
		d.fault(n, "this route says nowhere to go", "add pool: NAME, redirect or respond")
	case len(given) > 1:
		d.fault(n.get(given[1]).key, given[1]+" and "+given[0]+" exclude each other", "keep one of them")
	}
}

// patternOfPaths says what to write instead of what nginx has in front of a path,
// and of regular expressions. What begins with a slash is a path, whatever follows.
func patternOfPaths(s string) (what, fix string) {
	bare := strings.TrimLeft(s, "=^~* ")
	switch {
	case bare == s && !strings.HasPrefix(s, `\`):
		return "", ""
	case strings.HasPrefix(s, "=") && strings.HasPrefix(bare, "/"):
		return quote(s) + " is not a path", "write path: " + bare + ", which matches nothing else"
	case strings.HasPrefix(s, "^~") && strings.HasPrefix(bare, "/"):
		return quote(s) + " is not a path", "write path_prefix: " + bare
	}
	what = quote(s) + " is a pattern, and only whole paths and prefixes are compared here"
	exact, whole := strings.CutSuffix(bare, "$")
	i := strings.IndexAny(exact, `\.*+?()[]{}|$^`)
	switch {
	case strings.HasPrefix(bare, "/") && whole && i < 0:
		return what, "write path: " + exact
	case strings.HasPrefix(bare, "/") && i < 0:
		return what, "write path_prefix: " + bare + " for all that is below, or path: " + bare + " for it alone"
	}
	if i > 0 && bare[0] == '/' {
		if dir := bare[:strings.LastIndexByte(bare[:i], '/')]; dir != "" {
			return what, "write path_prefix: " + dir + " for all that is below"
		}
	}
	return what, "write a route for each path_prefix or path that it stands for"
}
