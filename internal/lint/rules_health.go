// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/config"
)

// checkRules are about probes: too shallow, too deep, or off the traffic's path.
var checkRules = []Rule{
	{
		Name: "check_off", Severity: Warning,
		Title: "Backends are not probed",
		Why:   "Without probes only failing requests take a backend out, so users find the failures, and nothing but the passing of time brings it back. A backend that wants to leave cannot say so: the drain signal is the answer of the probe.",
		Fix:   "Ask a path that says whether the backend wants work; a backend of UDP what it answers: `send: 'ping\\n'`, and `body` where not any answer will do.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				here := path(at, "health", "active")
				switch {
				case !p.Active.Off || v.Plan.Check.Detection != 0: // detection_slo says it
				case p.Datagrams():
					v.found(v.at(here, at), "pool "+p.Name+" has no active checks: nobody knows of a port of UDP before it was asked something. Write health.active.send, what its backends answer, or the port and path of a check by HTTP")
				default:
					v.found(here, "pool "+p.Name+" has no active checks: users find each failure, and a backend cannot say that it is leaving", write(here, "{path: /readyz}"))
				}
			})
		},
	},
	{
		Name: "check_tcp", Severity: Note,
		Title: "Probes only see whether the port is open",
		Why:   "The kernel accepts connections for a process that hangs, so a TCP check passes while nothing answers. It also cannot see that a backend is draining, so a deployment relies on connections being refused.",
		Fix:   "Give health.active.path a readiness path: 200 while the backend wants work, 503 while it is starting or leaving. Where the backend speaks no HTTP, let the check talk to it: `send: 'PING\\r\\n'` with `body: PONG`, or a `body` that its greeting holds.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				// A check that sends and reads sees more than the port; of UDP the port beside
				// it is all there is to see.
				asks := p.Active.Send != "" || p.Active.Body != ""
				udp := slices.ContainsFunc(p.Backends, func(b config.Backend) bool { return schemeOf(&b) == "udp" })
				if !p.Active.Off && p.Active.Protocol == "tcp" && !asks && !udp {
					what := "is tcp: a process that hangs but still accepts is not seen, nor one that is draining"
					if tls := func(b config.Backend) bool { return schemeOf(&b) == "tls" }; p.Active.TLS == "on" || p.Active.TLS != "off" && slices.ContainsFunc(p.Backends, tls) {
						what = "ends with the handshake of TLS: what fails behind that is not seen, nor a process that is draining"
					}
					here := path(at, "health", "active", "path")
					edits := []config.Edit{write(here, "/readyz")}
					if proto := path(at, "health", "active", "protocol"); v.Outline.Has(proto...) {
						edits = append(edits, write(proto, "auto"))
					}
					v.found(v.at(here[:4], at), "the check of pool "+p.Name+" "+what, edits...)
				}
			})
		},
	},
	{
		Name: "check_expects_errors", Severity: Warning,
		Title: "A probe takes errors for health",
		Why:   "With 4xx or 5xx among the expected answers a misspelt path (404), a login page in between (401) and a backend that says 503 because it is leaving all pass. Redirects (3xx) usually mean that something else than the backend answered.",
		Fix:   "Expect 200-299, and ask a path that needs no login.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if !p.Active.Off && slices.ContainsFunc(p.Active.Expect, func(r config.StatusRange) bool { return r.To >= 400 }) {
					here := path(at, "health", "active", "expect")
					v.found(here, "the check of pool "+p.Name+" passes on 4xx or 5xx, so a wrong path or a draining backend counts as healthy", write(here, `"200-299"`))
				}
			})
		},
	},
	{
		Name: "check_liveness", Severity: Warning,
		Title: "A probe asks for liveness instead of readiness",
		Why:   "A liveness path says whether the process should be restarted; it goes on passing while the backend starts up or drains. A balancer wants to know whether the backend wants work: that is readiness.",
		Fix:   "Ask the readiness path.",
		find: func(v *view) {
			v.checkPaths(func(p *config.Pool, here, segments []string) {
				if slices.ContainsFunc(segments, func(s string) bool { return slices.Contains([]string{"live", "livez", "alive", "liveness"}, s) }) {
					v.found(here, "the check of pool "+p.Name+" asks "+p.Active.Path+", which says whether to restart a process, not whether it wants work", write(here, "/readyz"))
				}
			})
		},
	},
	{
		Name: "check_deep", Severity: Warning,
		Title: "A probe asks for more than the backend itself",
		Why: "A check that also asks the database fails on every backend at once when the database does, and a blip of one dependency becomes an outage of everything. (Panic mode then serves all the same, loudly.) " +
			"A check of `/` makes the whole front page, at each interval and for each balancer.",
		Fix: "Ask a readiness path that looks at the backend alone.",
		find: func(v *view) {
			deep := []string{"deep", "full", "all", "deps", "dependencies", "db", "database"}
			v.checkPaths(func(p *config.Pool, here, segments []string) {
				switch {
				case p.Active.Path == "/":
					v.found(here, "the check of pool "+p.Name+" asks for the front page, which is costly and says little about readiness", write(here, "/readyz"))
				case slices.ContainsFunc(segments, func(s string) bool { return slices.Contains(deep, s) }):
					v.found(here, "the check of pool "+p.Name+" asks "+p.Active.Path+", which seems to look at what backends share: they would all fail together", write(here, "/readyz"))
				}
			})
		},
	},
	{
		Name: "check_port", Severity: Warning,
		Title: "Probes ask another port than the traffic",
		Why:   "What listens on the other port may be well while the server of the traffic hangs, has no free worker, or is not bound at all, and the other way round.",
		Fix:   "Probe the port of the traffic.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				port := fmt.Sprint(p.Active.Port)
				if p.Active.Off || p.Active.Port == 0 || !slices.ContainsFunc(p.Backends, func(b config.Backend) bool { _, own := split(b.Address); return own != port }) {
					return
				}
				here := path(at, "health", "active", "port")
				v.found(here, "the check of pool "+p.Name+" asks port "+port+", where the traffic does not go", write(here, "auto"))
			})
		},
	},
	{
		Name: "check_host", Severity: Note,
		Title: "Probes ask for a host that no traffic asks for",
		Why:   "A server with several sites answers a host it does not know from its default site, so the check may pass while the site of the traffic fails.",
		Fix:   "Leave health.active.host at auto, or name the host of a route.",
		find:  findCheckHost,
	},
	{
		Name: "check_prefix", Severity: Warning,
		Title: "A probe asks with a prefix that routes strip",
		Why:   "Probes go to backends directly: no route applies to them, and nothing is rewritten. A path that begins with the stripped prefix asks for something that backends never see from users, often a 404.",
		Fix:   "Write the path as backends see it.",
		find: func(v *view) {
			seen := map[string]bool{}
			v.routes(func(r *config.Route, p *config.Pool, _ []string) {
				prefix := r.Rewrite.StripPrefix
				rest, ok := strings.CutPrefix(p.Active.Path, prefix)
				if p.Active.Off || prefix == "" || !ok || rest != "" && rest[0] != '/' || seen[p.Name] {
					return
				}
				seen[p.Name] = true
				if rest == "" || rest == "/" {
					rest = "/readyz"
				}
				here := path("pools", p.Name, "health", "active", "path")
				v.found(here, "the check of pool "+p.Name+" begins with "+prefix+", which the route strips from traffic but nobody from probes", write(here, config.Quote(rest)))
			})
		},
	},
	{
		Name: "fall_1", Severity: Error,
		Title: "One failed probe takes a backend out",
		Why:   "A lost packet, a pause of garbage collection or a busy moment then takes a backend out, its load moves to the others, and the next one is late: flapping. weir refuses it (in `weir run`, too) unless `fall_1` is silenced.",
		Fix:   "Write fall: 2 or more; shorten fast_interval to notice as quickly.",
	},
	{
		Name: "probe_timeout", Severity: Warning,
		Title: "The time for a probe's answer is very short, or nearly the whole interval",
		Why:   "A pause of garbage collection takes 100 ms and more; a timeout below 200 ms takes backends out for that. A timeout near the interval leaves no pause between probes of a backend that is slow, just when it is overloaded.",
		Fix:   "Leave timeout at auto: 40 % of the interval, at most 2s.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				a, here := &p.Active, path(at, "health", "active")
				if a.Off {
					return
				}
				where := v.at(path(here, "timeout"), path(here, "interval"), here)
				switch {
				case a.Timeout < 200*time.Millisecond:
					v.found(where, fmt.Sprintf("a probe of pool %s has %s to be answered: a pause of garbage collection fails it", p.Name, dur(a.Timeout)),
						write(path(here, "interval"), dur(max(a.Interval, time.Second))), write(path(here, "timeout"), "auto"))
				case a.Timeout*10 > a.Interval*8:
					v.found(where, fmt.Sprintf("a probe of pool %s may take %s of an interval of %s: a slow backend is probed without pause", p.Name, dur(a.Timeout), dur(a.Interval)),
						write(path(here, "timeout"), "auto"))
				}
			})
		},
	},
}

// checkPaths calls f for each pool with an HTTP check, the path of its path, and
// its lower-case segments.
func (v *view) checkPaths(f func(p *config.Pool, here, segments []string)) {
	v.pools(func(p *config.Pool, at []string) {
		if p.Active.Off || p.Active.Path == "" {
			return
		}
		words := strings.FieldsFunc(strings.ToLower(p.Active.Path), func(r rune) bool { return strings.ContainsRune("/?&=-_.", r) })
		f(p, path(at, "health", "active", "path"), words)
	})
}

func findCheckHost(v *view) {
	v.pools(func(p *config.Pool, at []string) {
		if p.Active.Off || p.Active.Host == "" {
			return
		}
		host, _ := split(p.Active.Host)
		used, any := false, false
		v.routes(func(r *config.Route, q *config.Pool, _ []string) {
			if q.Name != p.Name {
				return
			}
			any = true
			sent := r.Match.Host
			if r.Rewrite.Host != "" {
				sent, _ = split(r.Rewrite.Host)
			}
			suffix, wild := strings.CutPrefix(sent, "*")
			used = used || sent == "" || strings.EqualFold(sent, host) || wild && strings.HasSuffix(strings.ToLower(host), suffix)
		})
		if any && !used {
			here := path(at, "health", "active", "host")
			v.found(here, "the check of pool "+p.Name+" asks for "+p.Active.Host+", which no route sends there", write(here, "auto"))
		}
	})
}

// split is host:port without brackets; a host alone has no port.
func split(address string) (host, port string) {
	i := strings.LastIndexByte(address, ':')
	if i < 0 || strings.LastIndexByte(address, ']') > i {
		return strings.Trim(address, "[]"), ""
	}
	return strings.Trim(address[:i], "[]"), address[i+1:]
}

// healthRules are about what follows from health.
var healthRules = []Rule{
	{
		Name: "passive_off", Severity: Warning,
		Title: "Failing traffic takes no backend out",
		Why:   "A backend whose probe passes while its requests fail (a full disk, a broken release, one bad dependency) keeps its share, and a failing backend often answers fastest.",
		Fix:   "Leave passive checks on.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if here := path(at, "health", "passive"); p.Passive.Off {
					v.found(here, "pool "+p.Name+" ignores failing requests: a backend that passes its probe but fails its users keeps its share", write(here, "{consecutive: 5}"))
				}
			})
		},
	},
	{
		Name: "max_ejected_all", Severity: Warning,
		Title: "Ejection may take out the whole pool",
		Why:   "When most backends seem bad, the fault is usually shared: a dependency, a poisonous request, the network. Ejecting them all turns slow or partial answers into none.",
		Fix:   "Keep max_ejected at 50% or below.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if here := path(at, "health", "passive", "max_ejected"); !p.Passive.Off && p.Passive.MaxEjected > 0.9 {
					v.found(here, fmt.Sprintf("up to %.0f %% of pool %s may be ejected for bad answers", p.Passive.MaxEjected*100, p.Name), write(here, "50%"))
				}
			})
		},
	},
	{
		Name: "panic_off", Severity: Warning,
		Title: "Health is believed even when everything looks broken",
		Why:   "Checks fail everywhere at once for reasons that have nothing to do with serving: a wrong path after a release, a slow dependency, an expired certificate of the check. Without panic mode that is an outage; with it, below the threshold, health is distrusted and traffic spread over all, loudly.",
		Fix:   "Leave panic on; then: shed refuses instead, where serving badly is worse than not at all.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if here := path(at, "health", "panic"); p.Panic.Off {
					v.found(here, "pool "+p.Name+" has no panic mode: checks that fail everywhere stop all traffic, even if backends serve", write(here, "{threshold: 50%}"))
				}
			})
		},
	},
	{
		Name: "slow_start_off", Severity: Warning,
		Title: "A new backend gets its whole share at once",
		Why:   "Policies that look at load see an idle newcomer and send it everything, while its caches are cold, its code is not compiled and its connections are not open. In a rolling deployment each newcomer is drowned in turn.",
		Fix:   "Ramp for as long as a backend needs to warm up, 30 to 60 s usually.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if here := path(at, "slow_start"); p.SlowStart.Window == 0 && slices.Contains([]string{"p2c", "least_request", "peak_ewma"}, p.Balance) {
					v.found(v.at(path(here, "window"), here), "pool "+p.Name+" sends a cold newcomer its whole share at once, and with "+p.Balance+" at first even more", write(here, "{window: 30s}"))
				}
			})
		},
	},
	{
		Name: "single_backend", Severity: Note,
		Title: "There is nowhere else to go",
		Why:   "With one backend no retry goes elsewhere, ejection is pointless and each deployment is an outage.",
		Fix:   "Give the pool a second backend, or a backup that says sorry.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if here := path(at, "backends"); len(p.Backends) == 1 && p.Discover == nil {
					v.found(v.at(here, at), "pool "+p.Name+" has one backend: when it fails or restarts, so does the service", config.Edit{Path: path(here, 1), Value: "http://10.0.1.22:8080", Insert: true})
				}
			})
		},
	},
}
