// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

var poolsField = &several[Plan, Pool]{
	s:  spec{name: "pools", kind: "mapping from names to pools", doc: "groups of backends", subs: specsOf(poolFields), list: true},
	at: func(p *Plan) *[]Pool { return &p.Pools }, what: "pool", fields: poolFields,
	name: func(p *Pool) string { return p.Name },
	begin: func(d *decoder, key, _ *node, p *Pool) {
		if what, fix := goodName(key.text); what != "" {
			d.fault(key, what, fix)
		}
		p.Name, p.Pos = key.text, key.pos
	},
	end: endPool,
	after: func(_ *decoder, _ *node, _ *Plan, list []Pool) {
		slices.SortFunc(list, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	},
	ref: defaultsOf(poolFields),
}

var policies = []string{"p2c", "round_robin", "random", "least_request"}

var poolFields = []field[Pool]{
	key("balance", "p2c", choice(policies, "peak_ewma", "ring_hash", "rendezvous", "maglev"), func(p *Pool) *string { return &p.Balance }, "how backends are chosen"),
	keys("p2c", "p2c", func(p *Pool) *Pool { return p }, []field[Pool]{
		key("choices", "2", integer(2, 8), func(p *Pool) *int { return &p.Choices }, "backends that are compared"),
	}),
	keys("ewma", "peak_ewma", func(p *Pool) *Pool { return p }, []field[Pool]{
		later[Pool]("decay", "10s", duration(tick, time.Hour), "memory of latencies"),
		later[Pool]("penalty", "5s", duration(tick, time.Hour), "what a failure counts as"),
	}),
	keys("hash", "hash policies", func(p *Pool) *Pool { return p }, []field[Pool]{
		later[Pool]("key", "client_ip", listOf(text("key", nil), nil), "what is hashed"),
		later[Pool]("bounded_load", "1.25", decimal(1, 100), "most load over the mean"),
		later[Pool]("table_size", "65537", integer(1, 10_000_000), "maglev's table"),
		later[Pool]("virtual_nodes", "160", integer(1, 100_000), "ring_hash's points"),
		later[Pool]("fallback", "p2c", choice(policies), "policy when there is no key"),
	}),
	backendsField,
	keys("health", "health", func(p *Pool) *Pool { return p }, []field[Pool]{
		keys("active", "probes", func(p *Pool) *Active { return &p.Active }, activeFields).
			switched(func(a *Active) *bool { return &a.Off }).checked(checkActive),
		keys("passive", "ejection by traffic", func(p *Pool) *Passive { return &p.Passive }, passiveFields).
			switched(func(a *Passive) *bool { return &a.Off }).checked(checkPassive),
		keys("panic", "when too much of a pool looks bad", func(p *Pool) *Panic { return &p.Panic }, panicFields).
			switched(func(a *Panic) *bool { return &a.Off }),
	}),
	keys("overload", "backends that say they are full", func(p *Pool) *Pool { return p }, []field[Pool]{
		later[Pool, string]("signals", "[503_retry_after, orca, grpc_resource_exhausted, queue_full]", signals{}, "what counts as such"),
		later[Pool]("floor", "10%", share(0.0001, 1), "least share"),
	}).offMeans(func(*Pool) {}),
	keys("slow_start", "a ramp for backends that come later", func(p *Pool) *Pool { return p }, []field[Pool]{
		later[Pool]("window", "30s", duration(tick, day), "length of the ramp").off("none", 0),
		later[Pool]("from", "10%", share(0.0001, 1), "first share"),
		later[Pool]("pool_ramp", "off", duration(tick, day), "ramp of a whole pool that comes back").off("off", 0),
	}).offMeans(func(*Pool) {}),
	keys("limits", "ceilings; the first two are per backend", func(p *Pool) *PoolLimits { return &p.Limits }, poolLimitFields),
	keys("retry", "retries of the pool; every key of a route's retry too", func(p *Pool) *Pool { return p }, poolRetryFields).
		offMeans(func(p *Pool) { p.Retry.Attempts = 1 }),
	keys("sticky", "sessions", func(p *Pool) *Pool { return p }, []field[Pool]{
		later[Pool, string]("cookie", "", anything("name"), "name of the cookie").off("off", ""),
		later[Pool, string]("ttl", "", anything("duration"), "life of the cookie").off("off", ""),
		later[Pool, string]("secure", "", anything("word"), "Secure").off("off", ""),
		later[Pool, string]("same_site", "", anything("word"), "SameSite").off("off", ""),
		later[Pool, string]("secret_file", "", anything("file"), "key of signatures").off("off", ""),
	}).offMeans(func(*Pool) {}),
	keys("timeouts", "toward backends", func(p *Pool) *PoolTimeouts { return &p.Timeouts }, poolTimeoutFields).checked(warnTimeouts),
	keys("upstream", "kept connections, per backend", func(p *Pool) *Upstream { return &p.Upstream }, upstreamFields),
	keys("tls", "of https backends", func(p *Pool) *PoolTLS { return &p.TLS }, poolTLSFields).checked(checkPoolTLS),
	keys("zone", "zones", func(p *Pool) *Pool { return p }, []field[Pool]{
		later[Pool, string]("local", "", anything("zone"), "weir's own zone").off("off", ""),
		later[Pool, string]("min_size", "", anything("number"), "backends below which zones do not count").off("off", ""),
	}).offMeans(func(*Pool) {}),
	later[Pool]("send_proxy_protocol", "off", choice([]string{"v1", "v2"}), "the PROXY header toward backends").off("off", ""),
	keys("drain", "draining", func(p *Pool) *Pool { return p }, []field[Pool]{
		key("deadline", "30s", duration(tick, 7*day), func(p *Pool) *time.Duration { return &p.DrainDeadline },
			"when what a draining backend still has in flight is cut").off("none", 0),
	}),
	later[Pool]("weir", "false", boolean(), "the backends are weirs: attempts are counted along the way"),
	later[Pool]("on_broken", "keep", choice([]string{"keep", "close"}), "tunnels of a backend that broke"),
}

// signals is overload.signals: a list in any order.
type signals struct{}

func (signals) kind() string { return "list" }
func (signals) rng() string  { return "" }
func (signals) scan(d *decoder, n *node, s *spec) (string, bool) {
	if n.kind == scalar && n.text == s.def {
		n = &node{kind: list}
		for item := range strings.SplitSeq(strings.Trim(s.def, "[]"), ", ") {
			n.items = append(n.items, textNode(item))
		}
	}
	v, ok := sorted(listOf(choice([]string{"503_retry_after", "429", "orca", "grpc_resource_exhausted", "queue_full"}), nil)).scan(d, n, s)
	return strings.Join(v, " "), ok
}
func (signals) show(v string) *node { return &node{kind: scalar, text: v} }

var backendsField = &several[Pool, Backend]{
	s:  spec{name: "backends", kind: "list", doc: "URLs, or mappings with these keys", subs: specsOf(backendFields), list: true},
	at: func(p *Pool) *[]Backend { return &p.Backends }, what: "backend", fields: backendFields,
	begin: func(_ *decoder, _, n *node, b *Backend) { b.Pos = n.pos },
	short: func(d *decoder, n *node, b *Backend) bool {
		v, ok := urlCodec.scan(d, n, &spec{name: "url"})
		b.URL = v
		b.finish()
		return ok
	},
	brief: func(w *writer, b *Backend) *node {
		plain := Backend{URL: b.URL, Weight: 1}
		plain.finish()
		plain.Pos = b.Pos
		if *b != plain {
			return nil
		}
		return textNode(b.URL)
	},
	end: func(d *decoder, _, n *node, b *Backend) {
		if b.URL == "" && n.kind == mapping && n.get("url") == nil {
			d.fault(n, "a backend has no url", "add url, such as url: http://10.0.1.21:8080")
		}
		b.finish()
	},
	ref: defaultsOf(backendFields),
}

var backendFields = []field[Backend]{
	key("url", "", urlCodec, func(b *Backend) *string { return &b.URL }, "http://HOST:PORT or https://HOST:PORT"),
	key("weight", "1", integer[uint32](0, 1000), func(b *Backend) *uint32 { return &b.Weight }, "share of the work; 0 takes no new work"),
	key("zone", "none", text("zone", goodName), func(b *Backend) *string { return &b.Zone }, "where it is").off("none", ""),
	key("id", "auto", text("id", goodID), func(b *Backend) *string { return &b.ID }, "name within the pool; auto is host:port").
		decide(func(b *Backend) string { return addressOf(b.URL) }),
	key("backup", "false", boolean(), func(b *Backend) *bool { return &b.Backup }, "used only while no other backend serves"),
}

// finish derives what follows from the URL.
func (b *Backend) finish() {
	b.Address = addressOf(b.URL)
	b.TLS = strings.HasPrefix(b.URL, "https://")
	if b.ID == "" {
		b.ID = b.Address
	}
}

func addressOf(url string) string {
	_, address, _ := strings.Cut(url, "://")
	return address
}

func goodID(s string) (what, fix string) {
	if len(s) > 255 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:[]") != "" {
		return quote(s) + " is not an id", "use letters, digits and . _ - : [ ]"
	}
	return "", ""
}

// urlCodec reads a backend's URL into its canonical form, with the port.
var urlCodec codec[string] = simple[string]{name: "URL", parse: parseURL, format: func(s string) string { return s }}

func parseURL(s string) (out, what, fix string) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return "", quote(s) + " has no scheme", "write http://" + strings.TrimLeft(s, "/") + " or https://..."
	}
	port := "80"
	switch scheme = strings.ToLower(scheme); scheme {
	case "http":
	case "https":
		port = "443"
	case "h2c", "grpc", "grpcs", "tcp", "udp":
		return "", scheme + " backends are not built yet in this version", "use http or https"
	default:
		return "", quote(scheme) + " is not a scheme of backends", useOne(scheme, []string{"http", "https"})
	}
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
		if rest[i:] != "/" {
			return "", quote(s) + " has a path", "write " + scheme + "://" + authority + " only; use a route's rewrite to change paths"
		}
	}
	if strings.Contains(authority, "@") {
		return "", "a backend's URL has a user name", "remove it; use request_headers.set for credentials"
	}
	host := authority
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		host, port = authority[:i], authority[i+1:]
		if what, fix := portNumber(port, false); what != "" {
			return "", what, fix
		}
	}
	host = strings.ToLower(host)
	if host == "" {
		return "", quote(s) + " has no host", "write " + scheme + "://10.0.1.21:" + port
	}
	if what, fix := hostPort(host+":"+port, false); what != "" {
		return "", what, fix
	}
	if host[0] == '[' {
		a, _ := netip.ParseAddr(strings.Trim(host, "[]")) // checked by hostPort
		host = "[" + a.String() + "]"
	}
	return scheme + "://" + host + ":" + port, "", ""
}

var activeFields = []field[Active]{
	key("protocol", "auto", choice([]string{"tcp", "http"}, "grpc"), func(a *Active) *string { return &a.Protocol }, "auto is http when path is given, else tcp").
		decide(func(a *Active) string {
			if a.Path != "" {
				return "http"
			}
			return "tcp"
		}),
	key("path", "none", text("path", probePath), func(a *Active) *string { return &a.Path }, "what is asked for").off("none", ""),
	key("method", "GET", text("method", probeMethod), func(a *Active) *string { return &a.Method }, "how it is asked for"),
	key("interval", "5s", duration(10*tick, day), func(a *Active) *time.Duration { return &a.Interval }, "between the starts of two probes"),
	key("fast_interval", "1s", duration(10*tick, day), func(a *Active) *time.Duration { return &a.FastInterval }, "the same while the verdict is about to change"),
	key("jitter", "10%", share(0, 1), func(a *Active) *float64 { return &a.Jitter }, "by which intervals vary"),
	key("timeout", "auto", duration(tick, time.Hour), func(a *Active) *time.Duration { return &a.Timeout }, "of one probe, below interval; auto is 40 % of interval, at most 2s").
		decide(func(a *Active) time.Duration { return min(2*time.Second, a.Interval*2/5) }),
	key("fall", "3", integer(1, 100), func(a *Active) *int { return &a.Fall }, "failures in a row that take a backend out"),
	key("rise", "2", integer(1, 100), func(a *Active) *int { return &a.Rise }, "passes in a row that bring it back"),
	key("expect", "200-299", statusRanges, func(a *Active) *[]StatusRange { return &a.Expect }, "answers that pass"),
	key("port", "auto", integer(1, 65535), func(a *Active) *int { return &a.Port }, "auto is the backend's").word("auto", 0),
	key("host", "auto", text("host", rewriteHost), func(a *Active) *string { return &a.Host }, "Host and TLS name; auto is as for traffic").word("auto", ""),
	later[Active]("tls", "auto", choice([]string{"auto", "on", "off"}), "auto is as for traffic"),
	later[Active]("body", "none", text("text", nil), "what the answer must contain").off("none", ""),
	later[Active]("service", `""`, textCodec{name: "text", lines: true}, "gRPC service"),
	key("initial", "down", initial, func(a *Active) *bool { return &a.InitialUp }, "whether backends added later take work before their first pass"),
}

var initial codec[bool] = simple[bool]{
	name: "up or down",
	parse: func(text string) (bool, string, string) {
		if text == "up" || text == "down" {
			return text == "up", "", ""
		}
		return false, quote(text) + " is not known here", "use up or down"
	},
	format: func(up bool) string {
		if up {
			return "up"
		}
		return "down"
	},
}

func probePath(s string) (what, fix string) {
	path, _, _ := strings.Cut(s, "?")
	if what, fix := rawPath(path); what != "" {
		return what, fix
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e || r == '#' }) {
		return quote(s) + " has characters that no request carries", "write them percent-encoded"
	}
	return "", ""
}

func probeMethod(s string) (what, fix string) {
	if what, fix := methodName.(textCodec).check(s); what != "" {
		return what, fix
	}
	if s != "GET" && s != "HEAD" && s != "OPTIONS" && s != "POST" {
		return quote(s) + " is not used for probes", "use GET, HEAD, OPTIONS or POST"
	}
	return "", ""
}

// statusRanges reads "200-299", "200,204" or a list of either.
var statusRanges codec[[]StatusRange] = listCodecOfRanges{}

type listCodecOfRanges struct{}

func (listCodecOfRanges) kind() string { return "status, range or list" }
func (listCodecOfRanges) rng() string  { return "100 to 599" }

func (listCodecOfRanges) scan(d *decoder, n *node, s *spec) ([]StatusRange, bool) {
	items := n.items
	switch {
	case n.kind == scalar:
		items = nil
		for part := range strings.SplitSeq(n.text, ",") {
			items = append(items, &node{kind: scalar, text: strings.TrimSpace(part), pos: n.pos, width: n.width})
		}
	case n.kind != list:
		d.fault(n, s.name+" is "+n.kind.String(), `write "200-299", or a list`)
		return nil, false
	}
	var out []StatusRange
	for _, i := range items {
		if i.kind == faulty {
			return nil, false
		}
		from, to, ranged := strings.Cut(i.text, "-")
		if !ranged {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if i.kind != scalar || err1 != nil || err2 != nil || a < 100 || b > 599 || a > b || len(from) != 3 || len(to) != 3 {
			d.fault(i, quote(i.text)+" is not a status or a range of them", `write "200-299" or "200,204"`)
			return nil, false
		}
		out = append(out, StatusRange{a, b})
	}
	if len(out) == 0 {
		d.fault(n, "nothing is expected, so no probe could pass", `write "200-299"`)
		return nil, false
	}
	return out, true
}

func (listCodecOfRanges) show(v []StatusRange) *node {
	var parts []string
	for _, r := range v {
		if r.From == r.To {
			parts = append(parts, itoa(r.From))
		} else {
			parts = append(parts, itoa(r.From)+"-"+itoa(r.To))
		}
	}
	return &node{kind: scalar, text: strings.Join(parts, ","), quoted: true}
}

func checkActive(d *decoder, n *node, a *Active) {
	switch {
	case a.Protocol == "http" && a.Path == "":
		d.fault(n.at("protocol"), "an http check needs a path", "add path, such as path: /readyz")
	case a.Protocol == "tcp" && a.Path != "":
		d.fault(n.at("path"), "a tcp check has no path", "remove path, or write protocol: http")
	case a.Protocol == "tcp":
		std := defaultsOf(activeFields)
		for _, k := range []struct {
			name  string
			given bool
		}{{"method", a.Method != std.Method}, {"expect", !slices.Equal(a.Expect, std.Expect)}, {"host", a.Host != std.Host}} {
			if k.given {
				d.fault(n.at(k.name), k.name+" says nothing with a tcp check", "add path to make it an http check, or remove "+k.name)
			}
		}
	}
	if a.Timeout >= a.Interval {
		d.fault(n.at("timeout"), "the timeout ("+showDuration(a.Timeout)+") is not below the interval ("+showDuration(a.Interval)+")",
			"make it shorter, or leave it out: auto is "+showDuration(min(2*time.Second, a.Interval*2/5)))
	}
	if a.FastInterval > a.Interval {
		at, fix := n.at("fast_interval"), "write at most "+showDuration(a.Interval)
		if n.get("fast_interval") == nil {
			at, fix = n.at("interval"), "add fast_interval: "+showDuration(a.Interval)+" or less"
		}
		d.fault(at, "fast_interval ("+showDuration(a.FastInterval)+") is longer than interval ("+showDuration(a.Interval)+")", fix)
	}
	if a.Fall == 1 && !slices.Contains(d.plan.Check.Silence, "fall_1") {
		d.fault(n.at("fall"), "with fall: 1 one lost packet takes a backend out", "write fall: 2 or more, or list fall_1 in check.silence")
	}
}

var passiveFields = []field[Passive]{
	key("consecutive", "5", integer(1, 1_000_000), func(p *Passive) *int { return &p.Consecutive }, "bad answers in a row that eject").off("none", 0),
	key("consecutive_connect", "2", integer(1, 1_000_000), func(p *Passive) *int { return &p.ConsecutiveConnect }, "failed connections in a row that break"),
	key("eject", "30s", duration(10*tick, day), func(p *Passive) *time.Duration { return &p.Eject }, "first ejection; the second lasts twice as long, and so on"),
	key("max_eject", "300s", duration(10*tick, 7*day), func(p *Passive) *time.Duration { return &p.MaxEject }, "longest ejection"),
	key("max_ejected", "50%", share(0, 1), func(p *Passive) *float64 { return &p.MaxEjected }, "part of the pool that may be ejected by opinions"),
}

func checkPassive(d *decoder, n *node, p *Passive) {
	if p.Eject > p.MaxEject {
		d.fault(n.at("eject"), "eject ("+showDuration(p.Eject)+") is longer than max_eject ("+showDuration(p.MaxEject)+")", "make max_eject longer")
	}
}

var panicFields = []field[Panic]{
	key("threshold", "50%", share(0.0001, 1), func(p *Panic) *float64 { return &p.Threshold }, "part of a pool that must serve for health to be believed"),
	key("then", "serve", choice([]string{"serve", "shed", "failover"}), func(p *Panic) *string { return &p.Then }, "use all backends, refuse, or go to the backups"),
	key("floor", "1", integer(0, 10_000), func(p *Panic) *int { return &p.Floor }, "opinions never leave fewer serving backends than this").off("none", 0),
}

var poolLimitFields = []field[PoolLimits]{
	key("connections", "none", count[int64](manyInt), func(l *PoolLimits) *int64 { return &l.Connections }, "connections to one backend").off("none", 0),
	key("requests", "none", count[int64](manyInt), func(l *PoolLimits) *int64 { return &l.Requests }, "requests in flight on one backend").off("none", 0),
	key("pool_requests", "none", count[int64](manyInt), func(l *PoolLimits) *int64 { return &l.PoolRequests }, "requests in flight in the pool").off("none", 0),
	key("queue", "128", integer(0, 1_000_000), func(l *PoolLimits) *int { return &l.Queue }, "requests that wait when all is full; 0: answered at once").zero(),
	key("queue_timeout", "2s", duration(tick, time.Hour), func(l *PoolLimits) *time.Duration { return &l.QueueTimeout }, "how long they wait"),
}

var poolRetryFields = append([]field[Pool]{
	key("budget", "20%", share(0, 10), func(p *Pool) *float64 { return &p.Budget.Share }, "retries per request over the window"),
	key("window", "10s", duration(time.Second, time.Hour), func(p *Pool) *time.Duration { return &p.Budget.Window }, "over which the budget counts"),
	key("min_per_second", "3", decimal(0, 1_000_000), func(p *Pool) *float64 { return &p.Budget.MinPerSecond }, "retries that are always allowed"),
	keys("backoff", "before a retry", func(p *Pool) *Budget { return &p.Budget }, []field[Budget]{
		key("base", "25ms", duration(tick, time.Minute), func(b *Budget) *time.Duration { return &b.Base }, "first wait, jittered").off("none", 0),
		key("max", "250ms", duration(tick, time.Hour), func(b *Budget) *time.Duration { return &b.Max }, "longest wait").off("none", 0),
	}).offMeans(func(b *Budget) { b.Base, b.Max = 0, 0 }).checked(func(d *decoder, n *node, b *Budget) {
		if b.Base > b.Max {
			d.fault(n.at("base"), "base ("+showDuration(b.Base)+") is longer than max ("+showDuration(b.Max)+")", "make max longer")
		}
	}),
}, lift(retryFields, func(p *Pool) *Retry { return &p.Retry })...)

var poolTimeoutFields = []field[PoolTimeouts]{
	key("connect", "2s", duration(tick, time.Hour), func(t *PoolTimeouts) *time.Duration { return &t.Connect }, "connection to a backend").off("none", 0),
	key("tls", "5s", duration(tick, time.Hour), func(t *PoolTimeouts) *time.Duration { return &t.TLS }, "TLS handshake with a backend").off("none", 0),
	key("response_header", "30s", duration(tick, day), func(t *PoolTimeouts) *time.Duration { return &t.ResponseHeader },
		"last byte of the request until the head of the response; restarted by 1xx").off("none", 0),
	key("stream_idle", "5m", duration(tick, 7*day), func(t *PoolTimeouts) *time.Duration { return &t.StreamIdle }, "without a byte either way").off("none", 0),
	key("tunnel_idle", "1h", duration(tick, 7*day), func(t *PoolTimeouts) *time.Duration { return &t.TunnelIdle }, "the same for WebSocket").off("none", 0),
	key("keepalive", "55s", duration(tick, day), func(t *PoolTimeouts) *time.Duration { return &t.KeepAlive }, "how long an idle connection is kept; less when the backend says so"),
}

var upstreamFields = []field[Upstream]{
	key("max_idle", "64", integer(0, 100_000), func(u *Upstream) *int { return &u.MaxIdle }, "idle connections kept").zero(),
	key("max_requests", "none", count[int64](manyInt), func(u *Upstream) *int64 { return &u.MaxRequests }, "requests per connection").off("none", 0),
	later[Upstream]("bind", "[]", listOf(text("address", nil), nil), "addresses to connect from"),
	key("reuse_unsafe_within", "500ms", duration(tick, time.Hour), func(u *Upstream) *time.Duration { return &u.ReuseUnsafeWithin },
		"requests that may not be replayed use only connections idle for less than this"),
	key("max_connection_age", "none", duration(time.Second, 30*day), func(u *Upstream) *time.Duration { return &u.MaxConnectionAge }, "after which a connection is not used again").off("none", 0),
}

var poolTLSFields = []field[PoolTLS]{
	key("ca", "system", file(), func(t *PoolTLS) *string { return &t.CA }, "PEM file of who signs the backends' certificates").word("system", ""),
	key("server_name", "auto", text("host", hostName), func(t *PoolTLS) *string { return &t.ServerName }, "name that is verified; auto is the URL's").word("auto", ""),
	key("cert", "none", file(), func(t *PoolTLS) *string { return &t.Cert }, "client certificate").off("none", ""),
	key("key", "none", file(), func(t *PoolTLS) *string { return &t.Key }, "its key").off("none", ""),
	key("insecure_skip_verify", "false", boolean(), func(t *PoolTLS) *bool { return &t.InsecureSkipVerify }, "do not verify backends"),
}

func checkPoolTLS(d *decoder, n *node, t *PoolTLS) {
	if (t.Cert == "") != (t.Key == "") {
		d.fault(n, "cert and key go together", "give both, or none")
	}
	if t.InsecureSkipVerify {
		d.warn(n.at("insecure_skip_verify"), "insecure_skip_verify", "backends are not verified: anyone on the way can read and change traffic; give tls.ca instead")
	}
}

// endPool checks what lies across the keys of a pool.
func endPool(d *decoder, key, n *node, p *Pool) {
	given := n.get("backends")
	switch {
	case given == nil:
		d.fault(key, "pool "+p.Name+" has no backends", "add backends: [http://10.0.1.21:8080]")
		return
	case given.value.kind == list && len(given.value.items) == 0:
		d.fault(given.value, "pool "+p.Name+" has no backends", "list at least one URL")
		return
	case given.value.kind != list || len(p.Backends) != len(given.value.items):
		return // reported
	}
	ids, addresses := map[string]*node{}, map[string]*node{}
	weight, primary, secure := uint64(0), false, false
	for i := range p.Backends {
		b, at := &p.Backends[i], given.value.items[i]
		weight += uint64(b.Weight)
		primary = primary || !b.Backup
		secure = secure || b.TLS
		if first := ids[b.ID]; first != nil {
			d.fault(at.at("id"), "two backends are called "+quote(b.ID), "give one another id, or remove it; the first is in line "+itoa(first.pos.Line))
		} else if first := addresses[b.Address]; first != nil {
			d.warn(at, "same_address", "backend "+b.ID+" has the address of the one in line "+itoa(first.pos.Line)+"; use weight to give a server more work")
		}
		ids[b.ID], addresses[b.Address] = at, at
		if b.Weight == 0 {
			d.warn(at.at("weight"), "weight_0", "backend "+b.ID+" has weight 0 and takes no new work")
		}
	}
	if weight == 0 {
		d.fault(given.value, "every backend has weight 0, so nothing takes work", "give at least one a weight")
	}
	if !primary {
		d.warn(given.value, "all_backup", "every backend of pool "+p.Name+" is a backup, so they are used as if none were")
	}
	if t := n.get("tls"); t != nil && !secure && p.TLS != (PoolTLS{}) {
		d.warn(t.key, "tls_unused", "no backend of pool "+p.Name+" is https, so tls says nothing")
	}
}
