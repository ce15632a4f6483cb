// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"strings"
	"time"
)

// The table of all keys, in the order of reading: pools come before listeners,
// because routes start from what their pool says. Here are the process's own
// blocks; schema_listener.go and schema_pool.go hold the other two.

const (
	day     = 24 * time.Hour
	tick    = time.Millisecond
	manyInt = 1 << 31
)

// schema is planFields as documentation sees it.
var schema []*spec

// planFields are the keys at the top. It is set once, by init, because blocks
// refer to each other through schema.
var planFields []field[Plan]

func init() {
	planFields = []field[Plan]{
		keys("admin", "the API and the dashboard", func(p *Plan) *Admin { return &p.Admin }, adminFields).
			offMeans(func(a *Admin) { a.Bind = "" }).checked(checkAdmin),
		keys("status", "/livez, /readyz and /metrics only, for orchestrators and balancers in front", func(p *Plan) *Status { return &p.Status }, statusFields).
			offMeans(func(s *Status) { s.Bind = "" }),
		keys("log", "what is written where", func(p *Plan) *Log { return &p.Log }, logFields),
		keys("shutdown", "both run from the signal", func(p *Plan) *Shutdown { return &p.Shutdown }, shutdownFields).checked(checkShutdown),
		keys("reload", "reading the configuration again", func(p *Plan) *Reload { return &p.Reload }, reloadFields),
		keys("limits", "ceilings of the process", func(p *Plan) *Limits { return &p.Limits }, limitFields),
		keys("metrics", "labels of metrics", func(p *Plan) *Metrics { return &p.Metrics }, metricFields),
		keys("upgrade", "handing over to a new binary", func(p *Plan) *Upgrade { return &p.Upgrade }, handoverFields),
		keys("acme", "who issues the certificates of tls.acme; to use it is to agree to the authority's terms", func(p *Plan) *ACME { return &p.ACME }, acmeFields).checked(checkACME),
		key("trusted_weirs", "[]", listOf(prefixes, warnEveryone), func(p *Plan) *[]netip.Prefix { return &p.TrustedWeirs },
			"peers whose X-Weir-* request fields are believed"),
		stateField,
		keys("check", "what `weir check` compares with; changes no traffic", func(p *Plan) *Check { return &p.Check }, checkFields),
		&includeField{spec{name: "include", kind: "list of files and patterns", def: "[]",
			doc: "further files, relative to this one: their listeners and pools are added by name, other blocks stand in one file only"}},
		poolsField,
		listenersField,
	}
	schema = specsOf(printOrder())
	adopt(schema, nil)
}

var adminFields = []field[Admin]{
	key("bind", "127.0.0.1:9900", opsCodec, func(a *Admin) *string { return &a.Bind },
		"where the API is served; anything but loopback and unix sockets needs token_file").off("none", ""),
	key("token_file", "none", file(), func(a *Admin) *string { return &a.TokenFile }, "file that holds the bearer token").off("none", ""),
	key("hosts", "[]", sorted(listOf(text("host", hostName), nil)), func(a *Admin) *[]string { return &a.Hosts },
		"further Host values that are accepted"),
}

var statusFields = []field[Status]{
	key("bind", "none", opsCodec, func(s *Status) *string { return &s.Bind }, "where it is served, such as :9901").off("none", ""),
}

var logFields = []field[Log]{
	key("level", "info", choice([]string{"debug", "info", "warn", "error"}), func(l *Log) *string { return &l.Level }, "least level that is logged"),
	keys("access", "one line per request", func(l *Log) *AccessLog { return &l.Access }, accessFields).
		switched(func(a *AccessLog) *bool { return &a.Off }).checked(checkAccess),
}

var shutdownFields = []field[Shutdown]{
	key("delay", "10s", duration(tick, time.Hour), func(s *Shutdown) *time.Duration { return &s.Delay },
		"how long weir goes on accepting while /readyz fails").off("none", 0),
	key("deadline", "25s", duration(tick, day), func(s *Shutdown) *time.Duration { return &s.Deadline },
		"when what is left is cut; longer than delay"),
	spreadKey(func(s *Shutdown) *time.Duration { return &s.Spread }),
}

var limitFields = []field[Limits]{
	key("max_connections", "auto", integer[int64](1, manyInt), func(l *Limits) *int64 { return &l.MaxConnections },
		"client connections of the process; auto is 80 % of half of RLIMIT_NOFILE").word("auto", 0),
	key("buffered", "10%", share(0.001, 0.9), func(l *Limits) *float64 { return &l.Buffered },
		"part of GOMEMLIMIT, or else of memory, for what is held of all requests together: content kept for a replay, large heads, HTTP/2 content that the other side does not take yet"),
}

var metricFields = []field[Metrics]{
	key("codes", "class", choice([]string{"class", "exact"}), func(m *Metrics) *string { return &m.Codes },
		"label of codes: class is 2xx, 4xx, ... with 429, 499, 502, 503 and 504 verbatim"),
	key("backend_series", "500", integer(0, 1_000_000), func(m *Metrics) *int { return &m.BackendSeries },
		"pools above this size have no series per backend").zero(),
}

var checkFields = []field[Check]{
	keys("slo", "goals", func(c *Check) *Check { return c }, []field[Check]{
		key("detection", "none", duration(tick, day), func(c *Check) *time.Duration { return &c.Detection },
			"a dead backend must be out of rotation by then").off("none", 0),
	}),
	maybe("front", "none", "the balancer in front of weir", func(c *Check) **Front { return &c.Front }, frontFields, nil),
	layersField,
	key("rate", "none", perSecond, func(c *Check) *float64 { return &c.Rate }, "requests per second that are expected at the peak").off("none", 0),
	key("grace", "none", duration(tick, day), func(c *Check) *time.Duration { return &c.Grace },
		"the orchestrator's grace period before it kills").off("none", 0),
	key("silence", "[]", sorted(listOf(findingName, nil)), func(c *Check) *[]string { return &c.Silence }, "names of findings that are not reported"),
}

var frontFields = []field[Front]{
	key("idle", "60s", duration(tick, day), func(f *Front) *time.Duration { return &f.Idle }, "how long it keeps idle connections to weir"),
	key("interval", "5s", duration(tick, day), func(f *Front) *time.Duration { return &f.Interval }, "how often it checks weir"),
	key("fall", "3", integer(1, 100), func(f *Front) *int { return &f.Fall }, "after how many failed checks it gives weir up"),
}

func checkAdmin(d *decoder, n *node, a *Admin) {
	if a.Bind != "" && a.TokenFile == "" && !isPrivate(a.Bind) {
		d.fault(n.at("bind"), "the admin API on "+quote(a.Bind)+" can be reached from other machines",
			"give token_file, or bind it to 127.0.0.1 or to a unix socket")
	}
}

// isPrivate reports whether an address can be reached from this machine only.
func isPrivate(bind string) bool {
	if strings.HasPrefix(bind, "unix:") {
		return true
	}
	host, _ := splitBind(bind)
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// splitBind splits host:port; the host is without brackets, empty for all.
func splitBind(bind string) (host, port string) {
	i := strings.LastIndexByte(bind, ':')
	if i < 0 {
		return bind, ""
	}
	return strings.Trim(bind[:i], "[]"), bind[i+1:]
}

func checkShutdown(d *decoder, n *node, s *Shutdown) {
	if s.Deadline <= s.Delay {
		d.fault(n.at("deadline"), "the deadline ("+showDuration(s.Deadline)+") is not after the delay ("+showDuration(s.Delay)+"); both run from the signal",
			"make deadline longer, or delay shorter")
	}
}

func warnEveryone(d *decoder, n *node, list []netip.Prefix) bool {
	for _, p := range list {
		if p.Bits() == 0 {
			d.warn(n, "trust_everyone", p.String()+" trusts every peer: anyone can claim any client address; list the balancers in front instead")
		}
	}
	return true
}
