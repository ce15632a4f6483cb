// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/internal/config"
)

var timeoutRules = []Rule{
	{
		Name: "timeouts_nest", Severity: Warning,
		Title: "An outer timeout ends before an inner one",
		Why: "A request passes several clocks, and each should be shorter than the one around it: queue and connection, then the backend's answer, then the whole request. " +
			"When the outer one ends first, the inner one never does: the client gets `request_timeout` where weir could have said which backend was slow, ejected it, and tried another.",
		Fix:  "Make the pool's times shorter than the route's, so that there is time left for a second attempt.",
		find: findNesting,
	},
	{
		Name: "timeout_off", Severity: Warning,
		Title: "A timeout is switched off",
		Why: "What hangs there hangs until someone else ends it, and it keeps a connection, memory and a place in the limits meanwhile. " +
			"A network that drops packets without a word (a crashed machine, a forgotten firewall state) makes that happen every day somewhere. A long timeout is safer than none.",
		Fix:    "Write the longest time that is still useful.",
		settle: settleTimeoutOff,
	},
	{
		Name: "connect_long", Severity: Warning,
		Title: "Connecting may take very long",
		Why: "Within a data centre a connection is made in milliseconds or not at all. The 60 s that many examples carry mean that each request to a machine that is gone waits a minute before it is sent elsewhere, " +
			"and that weir holds all of them meanwhile. Two seconds allow one lost SYN (repeated after one second).",
		Fix: "Keep the default of 2s, or allow a little more across a wide-area network.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if p.Timeouts.Connect > 10*time.Second {
					here := path(at, "timeouts", "connect")
					v.found(here, fmt.Sprintf("pool %s waits up to %s for a connection: requests to a backend that is gone wait as long before they are sent elsewhere", p.Name, dur(p.Timeouts.Connect)), write(here, "2s"))
				}
			})
		},
	},
	{
		Name: "slow_clients", Severity: Warning,
		Title: "Slow clients may hold connections for minutes",
		Why: "A client that sends a header a byte at a time (slowloris), or reads an answer as slowly, costs it nothing and holds a connection here. " +
			"Ordinary clients send a head within a second even over a bad mobile link.",
		Fix: "Keep header near 10s and write near 30s; write counts only time without progress, so slow downloads are not cut.",
		find: func(v *view) {
			v.listeners(func(l *config.Listener, at []string) {
				for _, k := range []struct {
					key       string
					is, most  time.Duration
					otherwise string
				}{{"header", l.Timeouts.Header, time.Minute, "10s"}, {"write", l.Timeouts.Write, 5 * time.Minute, "30s"}} {
					if k.is > k.most {
						here := path(at, "timeouts", k.key)
						v.found(here, fmt.Sprintf("listener %s lets a client take %s (timeouts.%s)", l.Name, dur(k.is), k.key), write(here, k.otherwise))
					}
				}
			})
		},
	},
	{
		Name: "keepalive_long", Severity: Warning,
		Title: "Idle connections to backends are kept longer than backends keep them",
		Why: "When the backend closes an idle connection at the moment weir uses it, the request meets a reset. weir replays what is safe to replay, but a POST that was sent is lost, and the client sees a 502 now and then that nobody can reproduce. " +
			"The rule is: the side that sends requests closes first. Most servers close after 60 s or more (nginx 75 s), some much sooner (Node.js 5 s, Apache 5 s); weir honours `Keep-Alive: timeout=` and learns from the closes it sees, but the first ones it has to suffer.",
		Fix:  "Keep timeouts.keepalive below the backends' own idle timeout.",
		find: findKeepAlive,
	},
	{
		Name: "shutdown_delay", Severity: Warning,
		Title: "weir stops accepting at once when it is told to stop",
		Why:   "Whoever sends traffic to weir (a balancer, DNS, an orchestrator's endpoint list) needs time to notice that it is leaving. Without a delay the requests of that time are refused.",
		Fix:   "Let weir go on accepting, with /readyz failing, for as long as those in front need.",
		find: func(v *view) {
			if s := &v.Plan.Shutdown; s.Delay == 0 {
				edits := []config.Edit{write(path("shutdown", "delay"), "10s")}
				if s.Deadline < 15*time.Second {
					edits = append(edits, write(path("shutdown", "deadline"), "25s"))
				}
				v.found(path("shutdown", "delay"), "weir stops accepting at the signal, before anyone in front can know", edits...)
			}
		},
	},
	{
		Name: "drain_forever", Severity: Warning,
		Title: "A draining backend is waited for without end",
		Why:   "One stuck request, or one WebSocket that nobody closes, keeps the backend draining for ever, and the deployment that waits for it.",
		Fix:   "Give drain.deadline the longest time that a request may sensibly take.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if p.DrainDeadline == 0 {
					here := path(at, "drain", "deadline")
					v.found(here, "a draining backend of pool "+p.Name+" is never cut off from what it still works on", write(here, "30s"))
				}
			})
		},
	},
	{
		Name: "drain_spread", Severity: Warning,
		Title: "Tunnels and sessions are to be ended over a longer time than there is",
		Why: "`spread` counts back from `deadline`: of a spread that is longer only the part before the deadline is left, beginning at once. " +
			"Their clients then come back faster than the spread was chosen for, and those that could have left by themselves are told first.",
		Fix: "Make spread shorter than deadline, by as long as they may end by themselves.",
		find: func(v *view) {
			judge := func(what string, at []string, spread, deadline time.Duration) {
				if here := path(at, "spread"); deadline > 0 && spread > deadline {
					v.found(v.at(here, path(at, "deadline")), fmt.Sprintf("%s within %s before a deadline that is %s after the beginning", what, dur(spread), dur(deadline)), write(here, part(deadline, 2)))
				}
			}
			if v.Outline.Has("shutdown", "spread") {
				judge("weir ends tunnels and sessions", path("shutdown"), v.Plan.Shutdown.Spread, v.Plan.Shutdown.Deadline)
			}
			v.pools(func(p *config.Pool, at []string) {
				what := "tunnels"
				if sessions(p) {
					what = "sessions"
				}
				// A spread that nobody wrote concerns those whose all is to last.
				if here := path(at, "drain"); v.Outline.Has(path(here, "spread")...) || sessions(p) {
					judge("a draining backend of pool "+p.Name+" has its "+what+" ended", here, p.DrainSpread, p.DrainDeadline)
				}
			})
		},
	},
}

// findNesting compares each pool's times with the shortest of the routes that
// lead to it.
func findNesting(v *view) {
	type outer struct {
		request time.Duration
		at      []string
	}
	shortest := map[string]outer{}
	v.routes(func(r *config.Route, p *config.Pool, at []string) {
		t := r.Timeouts
		if t.Total > 0 && (t.Request == 0 || t.Total <= t.Request) {
			v.found(path(at, "timeouts", "total"), fmt.Sprintf("the whole exchange (total %s) ends before its first part may (request %s)", dur(t.Total), orNone(t.Request)),
				write(path(at, "timeouts", "request"), part(t.Total, 2)))
			return
		}
		if o, ok := shortest[p.Name]; t.Request > 0 && (!ok || t.Request < o.request) {
			shortest[p.Name] = outer{t.Request, path(at, "timeouts", "request")}
		}
	})
	v.pools(func(p *config.Pool, at []string) {
		o, ok := shortest[p.Name]
		if !ok {
			return
		}
		t := &p.Timeouts
		if inner := t.Connect + t.ResponseHeader; t.ResponseHeader > 0 && o.request <= inner {
			var edits []config.Edit
			if 2*t.ResponseHeader > o.request {
				edits = append(edits, write(path(at, "timeouts", "response_header"), part(o.request, 2)))
			}
			if 4*t.Connect > o.request {
				edits = append(edits, write(path(at, "timeouts", "connect"), part(o.request, 4)))
			}
			v.found(v.at(o.at, path(at, "timeouts", "response_header"), path(at, "timeouts", "connect"), at),
				fmt.Sprintf("a request may take %s, but one attempt at pool %s may take longer (connect %s + response_header %s): a slow backend is never given up for another",
					dur(o.request), p.Name, dur(t.Connect), dur(t.ResponseHeader)), edits...)
		}
		if p.Limits.Queue > 0 && p.Limits.QueueTimeout >= o.request {
			v.found(v.at(path(at, "limits", "queue_timeout"), o.at, at),
				fmt.Sprintf("a request may take %s, but wait as long in the queue of pool %s (queue_timeout %s): it is sent when nobody waits for it any more", dur(o.request), p.Name, dur(p.Limits.QueueTimeout)),
				write(path(at, "limits", "queue_timeout"), part(o.request, 4)))
		}
	})
}

func orNone(d time.Duration) string {
	if d == 0 {
		return "none"
	}
	return dur(d)
}

// standard is what timeouts are by default.
var standard = map[string]string{
	"header": "10s", "idle": "75s", "write": "30s", "body_min_rate": "240B/s",
	"request": "60s", "connect": "2s", "tls": "5s", "response_header": "30s", "stream_idle": "5m", "tunnel_idle": "1h",
}

func settleTimeoutOff(_ *view, at []string) []config.Edit {
	if value, ok := standard[at[len(at)-1]]; ok {
		return []config.Edit{write(at, value)}
	}
	return nil
}

func findKeepAlive(v *view) {
	v.pools(func(p *config.Pool, at []string) {
		here := path(at, "timeouts", "keepalive")
		keep := p.Timeouts.KeepAlive
		if v.Learned != nil {
			if first, more := soonest(v.Learned(p.Name), keep); first.After > 0 {
				v.found(v.at(here, at), fmt.Sprintf("backend %s of pool %s closes idle connections after %s%s, sooner than weir (%s); weir has learned it, but after a restart it has to learn anew",
					first.Backend, p.Name, dur(first.After.Round(time.Millisecond)), more, orNone(keep)), write(here, part(first.After*4/5, 1)))
				return
			}
		}
		if keep >= time.Minute {
			v.found(here, fmt.Sprintf("pool %s keeps idle connections for %s, longer than many servers do", p.Name, dur(keep)), write(here, "55s"))
		}
	})
}

// soonest returns the first to close among those that close before weir does,
// and says of how many that holds.
func soonest(all []Idle, keep time.Duration) (first Idle, more string) {
	n := 0
	for _, x := range all {
		if x.After <= 0 || keep > 0 && x.After > keep {
			continue
		}
		n++
		if first.After == 0 || x.After < first.After {
			first = x
		}
	}
	if n > 1 {
		more = fmt.Sprintf(" (one of %d that do so)", n)
	}
	return first, more
}
