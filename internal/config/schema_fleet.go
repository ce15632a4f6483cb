// SPDX-License-Identifier: Apache-2.0

package config

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The table of the keys of a fleet, read like those of a configuration.

var (
	fleetSchema []*spec
	fleetFields []field[Fleet]
)

func init() {
	fleetFields = []field[Fleet]{
		key("pool", "auto", text("name", goodName), func(f *Fleet) *string { return &f.Pool }, "which pool of the configuration; auto is the only one").word("auto", ""),
		key("seed", "1", seed, func(f *Fleet) *uint64 { return &f.Seed }, "of all chance; the same seed gives the same run"),
		key("duration", "60s", duration(time.Second, day), func(f *Fleet) *time.Duration { return &f.Duration }, "of virtual time"),
		key("balancers", "1", integer(1, 1000), func(f *Fleet) *int { return &f.Balancers }, "weirs side by side, each with its own counts and checks"),
		keys("arrivals", "when requests arrive", func(f *Fleet) *FleetArrivals { return &f.Arrivals }, arrivalFields).checked(checkArrivals),
		keys("server", "how a backend behaves", func(f *Fleet) *FleetServer { return &f.Server }, serverFields),
		serversField,
		keys("checks", "what the network does to probes", func(f *Fleet) *FleetChecks { return &f.Checks }, []field[FleetChecks]{
			key("latency", "1ms", duration(time.Microsecond, time.Minute), func(c *FleetChecks) *time.Duration { return &c.Latency }, "of a probe, both ways").off("none", 0),
			key("loss", "0%", share(0, 1), func(c *FleetChecks) *float64 { return &c.Loss }, "probes that get no answer"),
		}),
		keys("clients", "what those who ask do", func(f *Fleet) *FleetClients { return &f.Clients }, []field[FleetClients]{
			key("timeout", "30s", duration(tick, time.Hour), func(c *FleetClients) *time.Duration { return &c.Timeout }, "after which a client gives up").off("none", 0),
			key("retries", "0", integer(0, 10), func(c *FleetClients) *int { return &c.Retries }, "of a client, after a failed request; beside weir's own").zero(),
			key("backoff", "100ms", duration(tick, time.Hour), func(c *FleetClients) *time.Duration { return &c.Backoff }, "before the first of them, doubling, with jitter").off("none", 0),
		}),
		eventsField,
	}
	fleetSchema = specsOf(fleetFields)
	adopt(fleetSchema, nil)
}

var seed codec[uint64] = simple[uint64]{
	name: "number", limits: "0 or more",
	parse: func(text string) (uint64, string, string) {
		if what, fix := number(text, false); what != "" {
			return 0, what, fix
		}
		v, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, text + " is too large", "use a smaller number"
		}
		return v, "", ""
	},
	format: func(v uint64) string { return strconv.FormatUint(v, 10) },
}

// perSecond reads rates such as 200/s.
var perSecond codec[float64] = simple[float64]{
	name: "rate", limits: "0.01/s to 1000000/s",
	parse: func(text string) (float64, string, string) {
		bare, ok := strings.CutSuffix(text, "/s")
		if what, fix := number(bare, true); what != "" {
			return 0, quote(text) + " is not a rate", "write requests per second, such as 200/s" + odd(fix)
		}
		if !ok {
			return 0, quote(text) + " has no unit", "write " + text + "/s"
		}
		v, err := strconv.ParseFloat(bare, 64)
		if err != nil || v < 0.01 || v > 1e6 {
			return 0, text + " is out of range", "allowed is 0.01/s to 1000000/s"
		}
		return v, "", ""
	},
	format: func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) + "/s" },
}

func odd(fix string) string {
	if rest, ok := strings.CutPrefix(fix, "write "); ok && digits(rest) {
		return "; here " + rest + "/s"
	}
	return ""
}

var arrivalFields = []field[FleetArrivals]{
	key("rate", "auto", perSecond, func(a *FleetArrivals) *float64 { return &a.Rate }, "requests per second; auto follows load").word("auto", 0),
	key("load", "70%", share(0.001, 10), func(a *FleetArrivals) *float64 { return &a.Load }, "part of what the backends can do at their nominal speed"),
	key("pattern", "poisson", choice([]string{"poisson", "even", "bursts"}), func(a *FleetArrivals) *string { return &a.Pattern }, "at random, on the beat, or many at once"),
	key("burst", "50", integer(2, 100_000), func(a *FleetArrivals) *int { return &a.Burst }, "requests of one burst"),
	key("users", "none", count[int](1_000_000), func(a *FleetArrivals) *int { return &a.Users }, "a closed loop of so many, instead of a rate").off("none", 0),
	key("think", "1s", duration(tick, time.Hour), func(a *FleetArrivals) *time.Duration { return &a.Think }, "mean time between an answer and the user's next request").off("none", 0),
	key("log", "none", file(), func(a *FleetArrivals) *string { return &a.Log }, "weir's access log to replay, instead of a rate").off("none", ""),
	key("speed", "100%", share(0.001, 1000), func(a *FleetArrivals) *float64 { return &a.Speed }, "of the replay"),
	key("keys", "1000", integer(1, 10_000_000), func(a *FleetArrivals) *int { return &a.Keys }, "distinct keys, for hash policies"),
	key("skew", "0", decimal(0, 4), func(a *FleetArrivals) *float64 { return &a.Skew }, "how unequal they are: the exponent of their Zipf distribution"),
	key("heavy", "0%", share(0, 1), func(a *FleetArrivals) *float64 { return &a.Heavy }, "requests that are larger than the others"),
	key("factor", "6", decimal(1, 1000), func(a *FleetArrivals) *float64 { return &a.Factor }, "by so much"),
}

func checkArrivals(d *decoder, n *node, a *FleetArrivals) {
	given := 0
	for _, k := range []string{"rate", "users", "log"} {
		if p := n.get(k); p != nil && p.value.text != "auto" && !switchedOff(p.value) {
			if given++; given == 2 {
				d.fault(p.key, "rate, users and log each say when requests arrive", "keep one of them")
			}
		}
	}
}

var serverFields = []field[FleetServer]{
	key("service", "50ms", duration(10*time.Microsecond, time.Hour), func(s *FleetServer) *time.Duration { return &s.Service }, "mean time of work for one request"),
	key("spread", "exponential", choice([]string{"fixed", "exponential", "lognormal", "pareto"}), func(s *FleetServer) *string { return &s.Spread }, "how that time varies; pareto has the heavy tail"),
	key("concurrency", "16", integer(1, 100_000), func(s *FleetServer) *int { return &s.Concurrency }, "requests worked on at once; more wait inside the server"),
	key("queue", "1024", integer(0, 1_000_000), func(s *FleetServer) *int { return &s.Queue }, "requests that wait inside; more are answered 503").zero(),
	key("speed", "100%", share(0.001, 100), func(s *FleetServer) *float64 { return &s.Speed }, "30% takes 3.3 times as long"),
	key("errors", "0%", share(0, 1), func(s *FleetServer) *float64 { return &s.Errors }, "answers that are 500"),
	key("cold", "none", duration(tick, day), func(s *FleetServer) *time.Duration { return &s.Cold }, "how long it warms up after a start").off("none", 0),
	key("cold_speed", "20%", share(0.001, 1), func(s *FleetServer) *float64 { return &s.ColdSpeed }, "speed at the beginning of that"),
	key("boot", "2s", duration(tick, time.Hour), func(s *FleetServer) *time.Duration { return &s.Boot }, "from a start until it answers").off("none", 0),
}

var serversField = &several[Fleet, FleetServer]{
	s:  spec{name: "servers", kind: "mapping from ids to servers", doc: "backends that are not like `server`: its keys, by the backend's id", subs: specsOf(serverFields), list: true},
	at: func(f *Fleet) *[]FleetServer { return &f.Servers }, what: "server", fields: serverFields,
	name: func(s *FleetServer) string { return s.ID },
	begin: func(d *decoder, key, _ *node, s *FleetServer) {
		*s = d.fleet.Server
		s.ID, s.Pos = key.text, key.pos
		if what, fix := goodID(key.text); what != "" {
			d.fault(key, what, fix)
		}
	},
	after: func(_ *decoder, _ *node, _ *Fleet, list []FleetServer) {
		slices.SortFunc(list, func(a, b FleetServer) int { return strings.Compare(a.ID, b.ID) })
	},
}

var eventFields = []field[FleetEvent]{
	key("at", "", instant, func(e *FleetEvent) *time.Duration { return &e.At }, "when, from the beginning"),
	key("do", "", choice(FleetVerbs), func(e *FleetEvent) *string { return &e.Do }, "what"),
	key("backend", "", listOf(text("id", goodID), nil), func(e *FleetEvent) *[]string { return &e.Backends }, "to whom; one or a list"),
	key("zone", "none", text("zone", goodName), func(e *FleetEvent) *string { return &e.Zone }, "to all of a zone").off("none", ""),
	key("for", "none", duration(tick, day), func(e *FleetEvent) *time.Duration { return &e.For }, "after which it is undone; pause needs it").off("none", 0),
	key("speed", "30%", share(0.001, 100), func(e *FleetEvent) *float64 { return &e.Speed }, "of slow"),
	key("errors", "100%", share(0, 1), func(e *FleetEvent) *float64 { return &e.Errors }, "of fail"),
	key("rate", "", perSecond, func(e *FleetEvent) *float64 { return &e.Rate }, "of rate"),
	key("every", "20s", duration(tick, day), func(e *FleetEvent) *time.Duration { return &e.Every }, "of deploy: from one backend to the next"),
	key("drains", "true", boolean(), func(e *FleetEvent) *bool { return &e.Drains }, "of deploy: whether each drains before it stops"),
}

var instant codec[time.Duration] = simple[time.Duration]{
	name: "duration", limits: "0s to 24h",
	parse: func(text string) (time.Duration, string, string) {
		if text == "0" || text == "0s" {
			return 0, "", ""
		}
		return duration(time.Microsecond, day).(simple[time.Duration]).parse(text)
	},
	format: showDuration,
}

var eventsField = &several[Fleet, FleetEvent]{
	s:  spec{name: "events", kind: "list", doc: "what happens meanwhile", subs: specsOf(eventFields), list: true},
	at: func(f *Fleet) *[]FleetEvent { return &f.Events }, what: "event", fields: eventFields,
	begin: func(_ *decoder, _, n *node, e *FleetEvent) { e.Pos = n.pos },
	end:   endEvent,
	ref:   defaultsOf(eventFields),
}

// endEvent checks that an event says what its verb needs.
func endEvent(d *decoder, _, n *node, e *FleetEvent) {
	for _, k := range []string{"at", "do"} {
		if n.get(k) == nil {
			d.fault(n, "an event does not say "+k, "add "+k+": "+map[string]string{"at": "10s", "do": "kill"}[k])
			return
		}
	}
	if !slices.Contains(FleetVerbs, e.Do) || math.IsNaN(e.Rate) {
		return // reported
	}
	target := len(e.Backends) > 0 || e.Zone != ""
	switch {
	case e.Do == "rate" && n.get("rate") == nil:
		d.fault(n, "rate does not say which", "add rate: 200/s")
	case e.Do == "rate" && target:
		d.fault(n, "rate is about all that arrives, not about a backend", "remove backend and zone")
	case e.Do == "add" && len(e.Backends) == 0:
		d.fault(n, "add does not say which backend", "add backend: NAME")
	case e.Do != "rate" && e.Do != "deploy" && e.Do != "add" && !target:
		d.fault(n, e.Do+" does not say to whom", "add backend: ID, or zone: NAME")
	case e.Do == "pause" && e.For == 0:
		d.fault(n, "pause does not say how long", "add for: 5s; kill is for good")
	}
	takes := map[string][]string{"slow": {"speed"}, "fail": {"errors"}, "rate": {"rate"}, "deploy": {"every", "drains"}}
	for _, p := range n.pairs {
		verb := ""
		for v, own := range takes {
			if slices.Contains(own, p.key.text) {
				verb = v
			}
		}
		if verb != "" && verb != e.Do {
			d.fault(p.key, p.key.text+" is for "+verb+", not for "+e.Do, "remove it")
		}
	}
	undone := []string{"kill", "pause", "slow", "fail", "black_hole", "unready", "drain"}
	if n.get("for") != nil && e.For > 0 && !slices.Contains(undone, e.Do) {
		d.fault(n.get("for").key, e.Do+" is not undone after a time", "use for with "+oneOf(undone))
	}
}

// FleetReference returns the table of a fleet's keys as Markdown, for
// docs/simulator.md.
func FleetReference() []byte {
	var b strings.Builder
	section(&b, "", fleetSchema, "At the top of a fleet")
	return []byte(strings.ReplaceAll(b.String(), "\n## ", "\n### "))
}
