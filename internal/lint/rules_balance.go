// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/config"
)

// Connections to one address and port: Linux has 28,232 local ports for them
// (net.ipv4.ip_local_port_range) and keeps each for 60 s after the close.
const (
	localPorts  = 28232
	timeWait    = 60
	portsPerSec = localPorts / timeWait
)

var retryRules = []Rule{
	{
		Name: "retry_layers", Severity: Warning,
		Title: "Retries multiply",
		Why:   "Each layer that retries multiplies what the one below gets: three layers with three attempts make 27 requests of one, just when the backends are failing. weir's budget bounds its own part over time, not the worst case of a request.",
		Fix:   "Let one layer retry, the one nearest to the user that can; redispatches, which reached no backend, need no permission and multiply nothing.",
		find:  findLayers,
	},
	{
		Name: "budget_off", Severity: Warning,
		Title: "Retries are not bounded by a budget",
		Why:   "A failing backend that is retried without bound gets twice its load when it can bear half: a retry storm keeps a service down after the cause is gone. 20 % is enough for single failures and too little for a storm.",
		Fix:   "Keep retry.budget near 20% and min_per_second small.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if here := path(at, "retry"); p.Budget.Share >= 1 || p.Budget.MinPerSecond > 100 {
					var edits []config.Edit
					if p.Budget.Share >= 1 {
						edits = append(edits, write(path(here, "budget"), "20%"))
					}
					if p.Budget.MinPerSecond > 100 {
						edits = append(edits, write(path(here, "min_per_second"), "3"))
					}
					v.found(edits[0].Path, fmt.Sprintf("pool %s may retry %.0f %% of its requests, and always %g a second: that doubles the load of backends that fail", p.Name, p.Budget.Share*100, p.Budget.MinPerSecond), edits...)
				}
			})
		},
	},
	{
		Name: "retry_when", Severity: Warning,
		Title: "Answers are retried that a retry cannot change",
		Why:   "500 and 501 are the application's answer to this request: another backend has the same bug. 429 says that this client asks too much, and retrying asks more.",
		Fix:   "Retry resets, 502, 503 and 504.",
		find: func(v *view) {
			odd := func(r *config.Retry, here []string, what string) {
				for _, code := range r.OnStatus {
					if code == 429 || code == 500 || code == 501 {
						v.found(here, fmt.Sprintf("%s retries %d, which asks the same question for the same answer", what, code), write(here, `[reset, "502", "503", "504"]`))
						return
					}
				}
			}
			v.pools(func(p *config.Pool, at []string) { odd(&p.Retry, path(at, "retry", "when"), "pool "+p.Name) })
			v.routes(func(r *config.Route, _ *config.Pool, at []string) {
				if here := path(at, "retry", "when"); v.Outline.Has(here...) {
					odd(&r.Retry, here, "route "+r.Name)
				}
			})
		},
	},
	{
		Name: "ports", Severity: Warning,
		Title: "Connections are not kept, so local ports run out",
		Why:   fmt.Sprintf("A connection that is closed keeps its local port for a minute. Linux has %d of them toward one address and port, so %d new connections a second to a backend are the end: `local_ports` errors, which look like a backend's failure from outside.", localPorts, portsPerSec),
		Fix:   "Keep idle connections (upstream.max_idle) and let each carry many requests; state the expected rate in check.rate to have it compared.",
		find:  findPorts,
	},
}

// factor is how many requests weir may make of one.
func factor(r *config.Retry) int {
	if !r.OnReset && len(r.OnStatus) == 0 {
		return 1
	}
	return r.Attempts
}

func findLayers(v *view) {
	const most = 3
	around, words := 1, []string{}
	for _, l := range v.Plan.Check.Layers {
		around *= l.Attempts
		words = append(words, fmt.Sprintf("%s %d", l.Name, l.Attempts))
	}
	if around > most {
		v.found(path("check", "layers"), fmt.Sprintf("the layers around weir alone make up to %d requests of one (%s): let one of them retry", around, strings.Join(words, " x ")))
		return
	}
	judge := func(r *config.Retry, here []string, what string) {
		f := factor(r)
		if around*f <= most || f == 1 {
			return
		}
		if around == 1 {
			v.found(path(here, "attempts"), fmt.Sprintf("%s tries up to %d times: a failing service gets %d times its load, within the budget", what, f, f), write(path(here, "attempts"), "2"))
			return
		}
		v.found(v.at(path(here, "attempts"), here, path("check", "layers")),
			fmt.Sprintf("one request may become %d: %s x %s %d", around*f, strings.Join(words, " x "), what, f), write(path(here, "when"), "none"))
	}
	v.pools(func(p *config.Pool, at []string) { judge(&p.Retry, path(at, "retry"), "pool "+p.Name) })
	v.routes(func(r *config.Route, _ *config.Pool, at []string) {
		if here := path(at, "retry"); v.Outline.Has(here...) {
			judge(&r.Retry, here, "route "+r.Name)
		}
	})
}

func findPorts(v *view) {
	v.pools(func(p *config.Pool, at []string) {
		u, here := &p.Upstream, path(at, "upstream")
		perRequest := 0.0
		switch {
		case u.MaxIdle == 0:
			perRequest = 1
		case u.MaxRequests > 0:
			perRequest = 1 / float64(u.MaxRequests)
		}
		rate := v.Plan.Check.Rate * perRequest / float64(max(len(p.Backends), 1))
		if p.Discover != nil {
			rate = 0 // nobody knows among how many it is spread
		}
		switch {
		case perRequest == 0, rate > 0 && rate < portsPerSec*0.8:
			return
		case rate == 0 && perRequest < 1:
			return
		}
		what := fmt.Sprintf("pool %s makes a connection for each request: beyond about %d requests a second and backend, local ports run out", p.Name, portsPerSec)
		if rate > 0 {
			what = fmt.Sprintf("pool %s makes %.0f connections a second to each backend at check.rate, and local ports allow about %d", p.Name, rate, portsPerSec)
		}
		var edits []config.Edit
		if u.MaxIdle == 0 {
			edits = append(edits, write(path(here, "max_idle"), "64"))
		}
		if u.MaxRequests > 0 {
			edits = append(edits, write(path(here, "max_requests"), "none"))
		}
		v.found(edits[0].Path, what, edits...)
	})
}

var balanceRules = []Rule{
	{
		Name: "hash_client_ip", Severity: Warning,
		Title: "Users behind one address share one backend",
		Why:   "A company, a school or a mobile network shows thousands of users as one address, and all of them hash to one backend. A phone that changes networks changes its backend. With a bound on load the surplus moves on; without one the backend is simply hot.",
		Fix:   "Hash what tells users apart (cookie:NAME, header:NAME), and keep bounded_load.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if !p.Keyed() || len(p.Hash.Key) != 1 || p.Hash.Key[0].From != "client_ip" || sessions(p) { // which have nothing else to be placed by
					return
				}
				as := Warning
				if p.Hash.BoundedLoad > 0 || p.Hash.Spill > 0 {
					as = Note
				}
				here := path(at, "hash", "key")
				v.foundAs(as, v.at(here, path(at, "balance")), "pool "+p.Name+" hashes the client's address: all users behind one address are one key", write(here, `"cookie:session"`))
			})
		},
	},
	{
		Name: "hash_unbounded", Severity: Warning,
		Title: "A hot key may overload its backend",
		Why:   "A hash spreads keys, not load: one popular key brings all its requests to one backend, however loaded. With bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016) a backend above bounded_load times the mean passes the surplus to the next one in the key's own order.",
		Fix:   "Keep bounded_load at 1.25, or set spill. Where sessions have to stay with their backend, off is right, and limits of the pool protect each backend.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				here := path(at, "hash", "bounded_load")
				switch {
				case !p.Keyed() || p.Hash.BoundedLoad != 0 || p.Hash.Spill != 0:
				case sessions(p): // to keep clients in their places is what it was written for
					v.foundAs(Note, here, "pool "+p.Name+" sends all sessions from one address to one backend, however loaded that is: clients behind one address, too")
				default:
					v.found(here, "pool "+p.Name+" sends a key to its backend however loaded that is", write(here, "1.25"))
				}
			})
		},
	},
	{
		Name: "ring_nodes", Severity: Warning,
		Title: "The ring has few points, so shares differ widely",
		Why:   "Shares of a hash ring differ by about 1/sqrt(virtual_nodes): with 10 points by 30 %, with 160 by 8 %. When a backend leaves, few points also mean that few others take its keys.",
		Fix:   "Use at least 100, or maglev, whose shares differ by a percent.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if here := path(at, "hash", "virtual_nodes"); p.Balance == "ring_hash" && p.Hash.VirtualNodes < 100 {
					v.found(here, fmt.Sprintf("pool %s has %d points for each backend: shares differ widely", p.Name, p.Hash.VirtualNodes), write(here, "160"))
				}
			})
		},
	},
	{
		Name: "maglev_table", Severity: Warning,
		Title: "The Maglev table is small for the pool",
		Why:   "The shares of Maglev differ by about backends / table_size. The paper (Eisenbud et al. 2016, section 3.4) asks for a hundred slots and more for each backend.",
		Fix:   "Use a prime of at least 100 times the number of backends.",
		settle: func(v *view, at []string) []config.Edit {
			p := v.Plan.Pool(at[1])
			return []config.Edit{write(path(at[:2], "hash", "table_size"), fmt.Sprint(nextPrime(max(65537, 100*len(p.Backends)))))}
		},
	},
	{
		Name: "hash_unused", Severity: Warning, Title: "`hash` says nothing with this policy",
		Why: "The keys of `hash` are read by ring_hash, rendezvous and maglev only. Whoever wrote them expects stickiness that is not there.",
		Fix: "Choose one of these policies, or remove the block.", settle: func(_ *view, at []string) []config.Edit {
			return []config.Edit{write(path(at[:2], "balance"), "maglev")}
		},
	},
	{
		Name: "ewma_unused", Severity: Warning, Title: "`ewma` says nothing with this policy",
		Why: "The keys of `ewma` are read by peak_ewma only.",
		Fix: "Choose peak_ewma, or remove the block.", settle: func(_ *view, at []string) []config.Edit {
			return []config.Edit{write(path(at[:2], "balance"), "peak_ewma")}
		},
	},
	{
		Name: "weight_0", Severity: Warning, Title: "A backend takes no new work",
		Why: "Weight 0 keeps a backend in the list and off the work. In a file that is usually left over from a maintenance; `weir drain` does the same without a file, and is shown as such.",
		Fix: "Give it a weight, or remove it.", settle: setting("1"),
	},
	{
		Name: "same_address", Severity: Warning, Title: "Two backends are one server",
		Why: "It is probed twice, has two states that can differ, and counts twice when the pool's health is counted.",
		Fix: "Use weight to give a server more work.", settle: removal(4),
	},
	{
		Name: "all_backup", Severity: Warning, Title: "Every backend is a backup",
		Why: "Backups take work when those that are none lose health. With nothing but backups they are used as if none were.",
		Fix: "Mark as backups only what should wait.", settle: func(v *view, at []string) []config.Edit {
			if len(v.Plan.Pool(at[1]).Backends) == 0 || !v.Outline.Has(path(at[:3], 0, "backup")...) {
				return nil
			}
			return []config.Edit{remove(path(at[:3], 0, "backup"))}
		},
	},
	{
		Name: "backup_priority", Severity: Warning, Title: "backup says nothing beside priority",
		Why: "The priority decides the tier; a reader would expect a backup to come last.",
		Fix: "Keep one of them.", settle: removal(5),
	},
	{
		Name: "zone_unused", Severity: Warning, Title: "`zone` changes nothing",
		Why: "Preferring near backends needs backends that say where they are, some in weir's own zone, and as many in all as zone.min_size asks. Otherwise traffic crosses zones although the file seems to say that it does not.",
		Fix: "Give backends their zone, or remove the block.", settle: removal(3),
	},
	{
		Name: "subset_unused", Severity: Warning, Title: "`subset` changes nothing",
		Why: "A subset as large as the pool is the pool.",
		Fix: "Make size smaller, or remove the block.", settle: removal(3),
	},
}

// nextPrime returns the least prime from n on.
func nextPrime(n int) int {
	for ; ; n++ {
		prime := n > 1
		for i := 2; i*i <= n && prime; i++ {
			prime = n%i != 0
		}
		if prime {
			return n
		}
	}
}

// localNames are names that mean this machine.
var localNames = []string{"localhost", "localhost.localdomain", "ip6-localhost"}

func isLocalName(host string) bool { return slices.Contains(localNames, host) }
