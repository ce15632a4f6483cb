// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/internal/config"
)

// frontIdle is how long most balancers in front keep idle connections.
const frontIdle = time.Minute

// killMargin is what a process needs from its own deadline until it is gone.
const killMargin = 2 * time.Second

// frontRules compare weir with what is around it, as check: says.
var frontRules = []Rule{
	{
		Name: "front_idle", Severity: Error,
		Title: "weir closes idle connections before the balancer in front does",
		Why: "The balancer in front keeps connections to weir and sends requests on them. If weir closes one at that moment, the request meets a reset, and the user a 502 from the balancer in front, a few in a million, that nothing in weir's log explains. " +
			"The side that sends requests has to close first.",
		Fix:  "Make the listener's timeouts.idle longer than check.front.idle (most balancers: 60 s).",
		find: findFrontIdle,
	},
	{
		Name: "front_detection", Severity: Error,
		Title: "weir stops accepting before the balancer in front has noticed",
		Why:   "From SIGTERM on /readyz fails, and weir goes on accepting for shutdown.delay. The balancer in front needs fall x interval to take weir out; what it sends after the delay is refused.",
		Fix:   "Make shutdown.delay at least check.front.fall x check.front.interval, and the deadline longer accordingly.",
		find: func(v *view) {
			f, s := v.Plan.Check.Front, &v.Plan.Shutdown
			if f == nil {
				return
			}
			if notices := time.Duration(f.Fall) * f.Interval; s.Delay < notices {
				edits := []config.Edit{write(path("shutdown", "delay"), dur(notices))}
				if s.Deadline < notices+15*time.Second {
					edits = append(edits, write(path("shutdown", "deadline"), dur(notices+15*time.Second)))
				}
				v.found(v.at(path("shutdown", "delay"), path("check", "front")),
					fmt.Sprintf("shutdown.delay (%s) is shorter than what the balancer in front needs to notice (%s, fall x interval of check.front)", dur(s.Delay), dur(notices)), edits...)
			}
		},
	},
	{
		Name: "grace_short", Severity: Error,
		Title: "weir is killed before it has drained",
		Why:   "An orchestrator sends SIGTERM and, after its grace period, SIGKILL. weir cuts what is left at shutdown.deadline, reports it and exits; killed before that, it cuts every connection at once and says nothing. Two seconds are left for the end itself.",
		Fix:   "Lengthen the grace period (terminationGracePeriodSeconds, TimeoutStopSec) and check.grace with it, or shorten shutdown.deadline.",
		find: func(v *view) {
			c, s := &v.Plan.Check, &v.Plan.Shutdown
			if c.Grace == 0 || c.Grace >= s.Deadline+killMargin {
				return
			}
			var edits []config.Edit
			if deadline := c.Grace - killMargin; deadline > 2*time.Second {
				edits = append(edits, write(path("shutdown", "deadline"), dur(deadline)))
				if s.Delay >= deadline {
					edits = append(edits, write(path("shutdown", "delay"), part(deadline, 2)))
				}
			}
			v.found(v.at(path("shutdown", "deadline"), path("check", "grace")),
				fmt.Sprintf("shutdown.deadline (%s) is not 2s below check.grace (%s): weir would be killed while it drains", dur(s.Deadline), dur(c.Grace)), edits...)
		},
	},
	{
		Name: "detection_slo", Severity: Error,
		Title: "A dead backend can go unnoticed for longer than the goal",
		Why:   "The worst case is interval x (1 + jitter) + (fall - 1) x max(fast_interval, timeout) + timeout. A backend that falls silent answers no request for so long; those that are refused are noticed at once, whatever the checks do.",
		Fix:   "Shorten interval and timeout, in this order, before fall: fewer than two failures take backends out for a lost packet.",
		find:  findDetection,
	},
	{
		Name: "detection_long", Severity: Warning,
		Title: "A dead backend can go unnoticed for more than a minute",
		Why:   "For so long each request to a machine that fell silent ends in a timeout. If that is meant, say so in check.slo.detection.",
		Fix:   "Shorten the interval, or state the goal.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if p.Active.Off || v.Plan.Check.Detection > 0 || v.Detection == nil {
					return
				}
				if d := v.Detection(p); d > time.Minute {
					here := path(at, "health", "active")
					v.found(v.at(path(here, "interval"), here), fmt.Sprintf("pool %s can take %s to notice a silent backend", p.Name, dur(d.Round(time.Millisecond))),
						write(path(here, "interval"), "5s"), write(path(here, "timeout"), "2s"), write(path(here, "fast_interval"), "1s"), write(path(here, "fall"), "3"))
				}
			})
		},
	},
	{
		Name: "front_blind", Severity: Warning,
		Title: "The balancer in front has nothing to check",
		Why:   "Neither `status` nor a listener's `health_path` is set, so the balancer in front can only see whether weir accepts connections. It does, until the very end of a stop: the front learns of it by failing requests.",
		Fix:   "Let a listener answer a health_path, or bind status, and point the front's check there.",
		find: func(v *view) {
			if v.Plan.Check.Front == nil || v.Plan.Status.Bind != "" {
				return
			}
			for i := range v.Plan.Listeners {
				if v.Plan.Listeners[i].HealthPath != "" {
					return
				}
			}
			v.found(path("check", "front"), "no listener answers a health_path and status is not bound, so the balancer in front cannot see weir leave",
				write(path("listeners", v.Plan.Listeners[0].Name, "health_path"), "/weir-ready"))
		},
	},
	{
		Name: "front_untrusted", Severity: Note,
		Title: "A balancer is in front, but none is trusted",
		Why:   "Without trusted_proxies the address of each client is that of the balancer in front: logs, limits per client and hashes by client_ip see one client. A balancer that forwards packets leaves addresses alone; then silence this.",
		Fix:   "List the addresses of the balancer in front, and nothing else.",
		find: func(v *view) {
			if v.Plan.Check.Front == nil {
				return
			}
			v.listeners(func(l *config.Listener, at []string) {
				if len(l.TrustedProxies) == 0 && !l.ProxyProtocol.On() {
					v.found(at, "listener "+l.Name+" trusts no proxy, so each client has the address of the balancer in front", write(path(at, "trusted_proxies"), "[10.0.0.0/24]"))
				}
			})
		},
	},
}

func findFrontIdle(v *view) {
	v.listeners(func(l *config.Listener, at []string) {
		idle, here := l.Timeouts.Idle, path(at, "timeouts", "idle")
		f := v.Plan.Check.Front
		switch {
		case idle == 0:
		case f != nil && idle <= f.Idle:
			v.found(v.at(here, at), fmt.Sprintf("listener %s closes idle connections after %s, not later than the balancer in front (check.front.idle %s): a request may meet a connection that is being closed",
				l.Name, dur(idle), dur(f.Idle)), write(here, dur(f.Idle+15*time.Second)))
		case f == nil && len(l.TrustedProxies) > 0 && idle <= frontIdle:
			v.foundAs(Warning, v.at(here, at), fmt.Sprintf("listener %s closes idle connections after %s; the proxies it trusts probably keep them for 60s: a request may meet a connection that is being closed",
				l.Name, dur(idle)), write(here, "75s"))
		}
	})
}

func findDetection(v *view) {
	goal := v.Plan.Check.Detection
	if goal == 0 || v.Detection == nil {
		return
	}
	v.pools(func(p *config.Pool, at []string) {
		here := path(at, "health", "active")
		edits := []config.Edit{
			write(path(here, "interval"), part(goal, 4)), write(path(here, "fast_interval"), part(goal, 8)),
			write(path(here, "timeout"), part(goal, 8)), write(path(here, "fall"), "2"),
		}
		switch {
		case p.Active.Off:
			v.found(v.at(here, at), fmt.Sprintf("pool %s has no active checks, so check.slo.detection (%s) is not met", p.Name, dur(goal)), edits...)
		default:
			if d := v.Detection(p); d > goal {
				v.found(v.at(here, at), fmt.Sprintf("pool %s can take %s to notice a silent backend, longer than check.slo.detection (%s)", p.Name, dur(d.Round(time.Millisecond)), dur(goal)), edits...)
			}
		}
	})
}
