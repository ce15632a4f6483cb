// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"time"
)

var poolsField = &several[Plan, Pool]{
	s:  spec{name: "pools", kind: "mapping from names to pools", doc: "groups of backends", subs: specsOf(poolFields), list: true},
	at: func(p *Plan) *[]Pool { return &p.Pools }, what: "pool", fields: poolFields,
	name: func(p *Pool) string { return p.Name },
	begin: func(d *decoder, key, _ *node, p *Pool) {
		p.Name, p.Pos = named(d, key)
	},
	end: endPool,
	after: func(_ *decoder, _ *node, _ *Plan, list []Pool) {
		slices.SortFunc(list, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	},
	ref: defaultsOf(poolFields),
}

var poolFields = []field[Pool]{
	key("balance", "p2c", choice(policies), func(p *Pool) *string { return &p.Balance }, "how backends are chosen"),
	keys("p2c", "p2c", func(p *Pool) *Pool { return p }, []field[Pool]{
		key("choices", "2", integer(2, 8), func(p *Pool) *int { return &p.Choices }, "backends that are compared"),
	}),
	keys("ewma", "peak_ewma", func(p *Pool) *EWMA { return &p.EWMA }, ewmaFields),
	keys("hash", "ring_hash, rendezvous and maglev", func(p *Pool) *Hash { return &p.Hash }, hashFields),
	backendsField,
	discoverField,
	keys("health", "health", func(p *Pool) *Pool { return p }, []field[Pool]{
		keys("active", "probes", func(p *Pool) *Active { return &p.Active }, activeFields).
			switched(func(a *Active) *bool { return &a.Off }).checked(checkActive),
		keys("passive", "ejection by traffic", func(p *Pool) *Passive { return &p.Passive }, passiveFields).
			switched(func(a *Passive) *bool { return &a.Off }).checked(checkPassive),
		keys("panic", "when too much of a pool looks bad", func(p *Pool) *Panic { return &p.Panic }, panicFields).
			switched(func(a *Panic) *bool { return &a.Off }),
	}),
	keys("overload", "backends that say they are full", func(p *Pool) *Overload { return &p.Overload }, overloadFields).
		switched(func(o *Overload) *bool { return &o.Off }),
	keys("slow_start", "a ramp for backends that come later", func(p *Pool) *SlowStart { return &p.SlowStart }, slowStartFields).
		offMeans(func(s *SlowStart) { s.Window, s.PoolRamp = 0, 0 }),
	keys("limits", "ceilings; the first two are per backend", func(p *Pool) *PoolLimits { return &p.Limits }, poolLimitFields),
	keys("retry", "retries of the pool; every key of a route's retry too", func(p *Pool) *Pool { return p }, poolRetryFields).
		offMeans(func(p *Pool) { p.Retry.Attempts = 1 }),
	stickyField,
	keys("timeouts", "toward backends", func(p *Pool) *PoolTimeouts { return &p.Timeouts }, poolTimeoutFields).checked(warnTimeouts),
	keys("upstream", "kept connections, per backend", func(p *Pool) *Upstream { return &p.Upstream }, upstreamFields),
	keys("tls", "of https, grpcs and tls backends", func(p *Pool) *PoolTLS { return &p.TLS }, poolTLSFields).checked(checkPoolTLS),
	maybe("subset", "off", "one of many balancers uses a part of the pool", func(p *Pool) **Subset { return &p.Subset }, subsetFields, checkSubset),
	maybe("zone", "off", "backends near to weir are preferred while they can take their part", func(p *Pool) **Zone { return &p.Zone }, zoneFields, checkZone),
	key("overprovisioning", "1.4", decimal(1, 100), func(p *Pool) *float64 { return &p.Overprovisioning },
		"how much of a tier may be lost before the next takes a part: at 1.4 a tier serves alone while more than 71 % of it serves"),
	sendProxyField,
	keys("drain", "draining", func(p *Pool) *Pool { return p }, []field[Pool]{
		key("deadline", "30s", duration(tick, 7*day), func(p *Pool) *time.Duration { return &p.DrainDeadline },
			"when what a draining backend still has in flight is cut").off("none", 0),
		spreadKey(func(p *Pool) *time.Duration { return &p.DrainSpread }),
	}),
	key("weir", "false", boolean(), func(p *Pool) *bool { return &p.Weir },
		"the backends are weirs: each attempt tells them its number, so that they say which answers were retried already"),
	key("on_broken", "keep", choice([]string{"keep", "close"}), func(p *Pool) *string { return &p.OnBroken }, "what becomes of the tunnels of a backend that broke"),
	maybe("rebalance", "off", "tunnels of backends that have more than their part are ended a few at a time, so that their clients come back elsewhere",
		func(p *Pool) **Rebalance { return &p.Rebalance }, rebalanceFields, nil).orOn(),
}

var poolLimitFields = []field[PoolLimits]{
	key("connections", "none", count[int64](manyInt), func(l *PoolLimits) *int64 { return &l.Connections }, "connections to one backend").off("none", 0),
	key("requests", "none", count[int64](manyInt), func(l *PoolLimits) *int64 { return &l.Requests }, "requests in flight on one backend").off("none", 0),
	key("pool_requests", "none", count[int64](manyInt), func(l *PoolLimits) *int64 { return &l.PoolRequests }, "requests in flight in the pool").off("none", 0),
	key("queue", "128", integer(0, 1_000_000), func(l *PoolLimits) *int { return &l.Queue }, "requests that wait when all is full; 0: answered at once").zero(),
	key("queue_timeout", "2s", duration(tick, time.Hour), func(l *PoolLimits) *time.Duration { return &l.QueueTimeout }, "how long they wait"),
	maybe("adaptive", "off", "a limit of the pool that finds itself; above it requests are refused as shed, the least important first",
		func(l *PoolLimits) **AdaptiveLimit { return &l.Adaptive }, adaptiveFields, checkAdaptive).orOn(),
}

var adaptiveFields = []field[AdaptiveLimit]{
	key("floor", "16", integer[int64](1, manyInt), func(a *AdaptiveLimit) *int64 { return &a.Floor }, "least requests in flight"),
	key("ceiling", "none", count[int64](manyInt), func(a *AdaptiveLimit) *int64 { return &a.Ceiling }, "most, and where it begins").off("none", 0),
	key("tolerance", "2", decimal(1.2, 10), func(a *AdaptiveLimit) *float64 { return &a.Tolerance }, "how many times the latency without load is accepted"),
}

func checkAdaptive(d *decoder, n *node, a *AdaptiveLimit) {
	if a.Ceiling > 0 && a.Ceiling < a.Floor {
		at := n.at("ceiling")
		d.fault(at, "ceiling ("+itoa(int(a.Ceiling))+") is below floor ("+itoa(int(a.Floor))+")", "make it larger, or floor smaller")
	}
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
	key("tls", "5s", duration(tick, time.Hour), func(t *PoolTimeouts) *time.Duration { return &t.TLS }, "TLS handshake with a backend; of tls backends within timeouts.connect, too").off("none", 0),
	key("response_header", "30s", duration(tick, day), func(t *PoolTimeouts) *time.Duration { return &t.ResponseHeader },
		"last byte of the request until the head of the response; restarted by 1xx").off("none", 0),
	key("stream_idle", "5m", duration(tick, 7*day), func(t *PoolTimeouts) *time.Duration { return &t.StreamIdle }, "without a byte either way").off("none", 0),
	key("tunnel_idle", "1h", duration(tick, 7*day), func(t *PoolTimeouts) *time.Duration { return &t.TunnelIdle }, "the same for WebSocket").off("none", 0),
	key("tunnel_age", "none", duration(time.Second, 30*day), func(t *PoolTimeouts) *time.Duration { return &t.TunnelAge }, "after this time, a tenth more or less, a WebSocket is ended").off("none", 0),
	key("keepalive", "55s", duration(tick, day), func(t *PoolTimeouts) *time.Duration { return &t.KeepAlive }, "how long an idle connection is kept; less when the backend says so"),
}

var upstreamFields = []field[Upstream]{
	key("max_idle", "64", integer(0, 100_000), func(u *Upstream) *int { return &u.MaxIdle }, "idle connections kept for longer than a second").zero(),
	key("max_requests", "none", count[int64](manyInt), func(u *Upstream) *int64 { return &u.MaxRequests }, "requests per connection").off("none", 0),
	later[Upstream]("bind", "[]", listOf(text("address", nil), nil), "addresses to connect from"),
	key("reuse_unsafe_within", "500ms", duration(tick, time.Hour), func(u *Upstream) *time.Duration { return &u.ReuseUnsafeWithin },
		"requests that may not be replayed use only connections idle for less than this"),
	key("max_connection_age", "none", duration(time.Second, 30*day), func(u *Upstream) *time.Duration { return &u.MaxConnectionAge }, "after which a connection is not used again").off("none", 0),
	key("h2", "false", boolean(), func(u *Upstream) *bool { return &u.H2 }, "https backends are offered HTTP/2; h2c, grpc and grpcs backends are always spoken to in it"),
	key("max_streams", "100", integer(1, 100_000), func(u *Upstream) *int { return &u.MaxStreams }, "requests at once on one connection over HTTP/2; fewer when the backend says so"),
	key("ping", "10s", duration(time.Second, time.Hour), func(u *Upstream) *time.Duration { return &u.Ping },
		"silence after which such a connection is asked whether its backend is there; as long may the answer take").off("none", 0),
}

var poolTLSFields = []field[PoolTLS]{
	key("ca", "system", file(), func(t *PoolTLS) *string { return &t.CA }, "PEM file of who signs the backends' certificates").word("system", ""),
	key("server_name", "auto", text("host", hostName), func(t *PoolTLS) *string { return &t.ServerName }, "name that is verified; auto is the URL's").word("auto", ""),
	key("cert", "none", file(), func(t *PoolTLS) *string { return &t.Cert }, "client certificate").off("none", ""),
	key("key", "none", file(), func(t *PoolTLS) *string { return &t.Key }, "its key").off("none", ""),
	key("min_version", "1.2", tlsVersion, func(t *PoolTLS) *uint16 { return &t.MinVersion }, "oldest TLS version"),
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
	checkRebalance(d, n, p)
	checkSendProxy(d, n, p)
	given := n.get("backends")
	listed := given != nil && given.value.kind == list
	if p.Discover != nil {
		endDiscover(d, n, p)
	}
	switch {
	case !saysNothing(n, "discover") && (given == nil || listed && len(given.value.items) == 0):
		checkBalance(d, n, p)
		return
	case given == nil && !n.lacks("backends"):
		return // reported
	case given == nil:
		d.fault(key, "pool "+p.Name+" has no backends", "add backends: [http://10.0.1.21:8080], or discover")
		return
	case listed && len(given.value.items) == 0:
		d.fault(given.value, "pool "+p.Name+" has no backends", "list at least one URL")
		return
	case !listed || len(p.Backends) != len(given.value.items):
		return // reported
	}
	ids, addresses := map[string]*node{}, map[string]*node{}
	weight, primary, secure := uint64(0), false, false
	for i := range p.Backends {
		b, at := &p.Backends[i], given.value.items[i]
		weight += uint64(b.Weight)
		primary = primary || !b.Backup || b.Priority > 0
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
	if weight == 0 && p.Discover == nil {
		d.fault(given.value, "every backend has weight 0, so nothing takes work", "give at least one a weight")
	}
	if !primary && p.Discover == nil {
		d.warn(given.value, "all_backup", "every backend of pool "+p.Name+" is a backup, so they are used as if none were")
	}
	checkBalance(d, n, p)
	checkShares(d, n, p, given.value.items)
	if t := n.get("tls"); t != nil && !secure && p.Active.TLS != "on" && p.Discover == nil && p.TLS != defaultsOf(poolTLSFields) {
		scheme := "https"
		if p.Scheme() == "tcp" {
			scheme = "tls"
		}
		d.warn(t.key, "tls_unused", "no backend of pool "+p.Name+" is "+scheme+", so tls says nothing")
	}
}
