// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"

	"github.com/weirlb/weir/internal/config"
)

var limitRules = []Rule{
	{
		Name: "adaptive_never", Severity: Warning,
		Title: "The adaptive limit is never reached",
		Why: "`limits.adaptive` never goes below its floor. Where a fixed limit of the same pool allows no more than that in flight, it is always the fixed one that is met: requests wait in the queue, " +
			"in the order in which they came, instead of being refused at once with the least important ones first.",
		Fix:  "Make the floor smaller, or the fixed limit larger: `requests` is then what one backend can bear at all, and the adaptive limit what is worth while.",
		find: findAdaptiveNever,
	},
	{
		Name: "priority_unused", Severity: Warning,
		Title: "`priority` of a route changes nothing",
		Why:   "A route's priority decides who is refused first at the adaptive limit of its pool, and is told to backends that are weirs. Without `limits.adaptive` and without `weir: true` nobody asks for it: under overload the important requests wait with all others.",
		Fix:   "Switch the limit on, or take the priority away.",
		find: func(v *view) {
			v.routes(func(r *config.Route, p *config.Pool, at []string) {
				here := path(at, "priority")
				if p == nil || r.Priority == "normal" || p.Limits.Adaptive != nil || p.Weir || !v.Outline.Has(here...) {
					return
				}
				v.found(here, fmt.Sprintf("pool %s has no adaptive limit at which priority %s would count, and its backends are no weirs", p.Name, r.Priority),
					write(path("pools", p.Name, "limits", "adaptive"), "on"))
			})
		},
	},
}

func findAdaptiveNever(v *view) {
	v.pools(func(p *config.Pool, at []string) {
		a := p.Limits.Adaptive
		if a == nil {
			return
		}
		most, what := p.Limits.PoolRequests, "pool_requests allows"
		if n := p.Limits.Requests * int64(len(p.Backends)); n > 0 && p.Discover == nil && (most == 0 || n < most) {
			most, what = n, "requests allows its backends"
		}
		if most == 0 || most > a.Floor {
			return
		}
		here := v.at(path(at, "limits", "adaptive", "floor"), path(at, "limits", "adaptive"))
		var edits []config.Edit
		if floor := most / 2; floor > 0 {
			edits = append(edits, write(path(at, "limits", "adaptive", "floor"), fmt.Sprint(floor)))
		}
		v.found(here, fmt.Sprintf("pool %s: the adaptive limit is never below %d, and %s no more than %d in flight", p.Name, a.Floor, what, most), edits...)
	})
}
