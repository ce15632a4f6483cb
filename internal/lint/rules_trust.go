// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"net/netip"
	"strings"

	"github.com/weirlb/weir/internal/config"
)

var routeRules = []Rule{
	{
		Name: "unreachable_route", Severity: Warning, Title: "A route is never reached",
		Why: "Routes are tried by host, then path, then in the order of the file; an earlier one with the same host and path, and conditions no stricter, takes everything that this one would.",
		Fix: "Remove it, or make the other stricter; weir explain shows the order.", settle: removal(4),
	},
	{
		Name: "unused_pool", Severity: Warning, Title: "No route leads to a pool",
		Why: "Its backends are probed and never used: usually a route was forgotten, or the pool is left over.",
		Fix: "Add a route, or remove the pool.", settle: removal(2),
	},
	{
		Name: "forwards_to_self", Severity: Warning, Title: "A backend is weir itself",
		Why: "A request that reaches it comes in again, matches again and goes round until something runs out.",
		Fix: "Name the server behind weir.", settle: func(v *view, at []string) []config.Edit {
			if len(at) < 4 || len(v.Plan.Pool(at[1]).Backends) < 2 {
				return nil
			}
			return []config.Edit{remove(at[:4])}
		},
	},
	{
		Name: "localhost", Severity: Warning,
		Title: "A backend is called localhost",
		Why:   "localhost is 127.0.0.1 and ::1. A server that listens on one of them refuses the other, so connections fail half of the time or are tried twice, depending on the order in /etc/hosts, and in a container it is the container itself.",
		Fix:   "Write 127.0.0.1 or [::1], whichever the server listens on.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				for i := range p.Backends {
					b := &p.Backends[i]
					if host, _ := split(b.Address); !isLocalName(host) {
						continue
					}
					here := path(at, "backends", i)
					if url := path(here, "url"); v.Outline.Has(url...) {
						here = url
					}
					host, _ := split(b.Address)
					v.found(here, "backend "+b.ID+" is named, not addressed: "+host+" is 127.0.0.1 and ::1, and servers often listen on one of them only",
						write(here, config.Quote(strings.Replace(b.URL, "://"+host+":", "://127.0.0.1:", 1))))
				}
			})
		},
	},
}

var trustRules = []Rule{
	{
		Name: "trust_everyone", Severity: Warning, Title: "Everyone is trusted",
		Why: "Whoever is trusted says who the client is. With the whole internet in the list anyone can claim any address: rate limits, access rules and logs then say what the attacker wrote.",
		Fix: "List the addresses of the balancers in front.", settle: setting("[10.0.0.0/24]"),
	},
	{
		Name: "admin_exposed", Severity: Warning,
		Title: "The admin API can be reached from other machines",
		Why:   "It drains, disables and re-weights backends and changes the configuration. It is protected by its token alone, and the token travels in clear text. Orchestrators and scrapers need only status.",
		Fix:   "Bind it to loopback or a unix socket, and give orchestrators status.bind.",
		find: func(v *view) {
			if b := v.Plan.Admin.Bind; b != "" && !strings.HasPrefix(b, "unix:") && !loopback(b) {
				v.found(path("admin", "bind"), "the admin API on "+b+" can be reached from other machines, with its token in clear text", write(path("admin", "bind"), `"127.0.0.1:9900"`))
			}
		},
	},
	{
		Name: "debug_headers", Severity: Note,
		Title: "Clients are told which backend answered",
		Why:   "X-Served-By and Server-Timing show addresses and timings of the inside to everyone outside.",
		Fix:   "Switch them on while you look for something, or on an inner listener.",
		find: func(v *view) {
			v.listeners(func(l *config.Listener, at []string) {
				for _, b := range l.Bind {
					if here := path(at, "debug_headers"); l.DebugHeaders && !strings.HasPrefix(b, "unix:") && !loopback(b) {
						v.found(here, "listener "+l.Name+" shows its clients which backend answered", write(here, "false"))
						return
					}
				}
			})
		},
	},
	{
		Name: "insecure_skip_verify", Severity: Warning, Title: "Backends are not verified",
		Why: "Encryption without verification protects from nobody who can answer in the backend's place: anyone on the way can read and change traffic.",
		Fix: "Name who signs the backends' certificates in tls.ca.", settle: func(_ *view, at []string) []config.Edit {
			return []config.Edit{remove(path(at[:3], "insecure_skip_verify")), write(path(at[:3], "ca"), "/etc/weir/backends-ca.crt")}
		},
	},
	{
		Name: "tls_unused", Severity: Warning, Title: "`tls` of a pool says nothing",
		Why: "TLS toward backends is asked for by https:// or grpcs:// in their URLs, and by tls:// where sessions are passed on; without one the traffic is in clear text although the file seems to say otherwise.",
		Fix: "Write https://, grpcs:// or tls:// where backends speak TLS, or remove the block.", settle: removal(3),
	},
}

// loopback reports whether host:port is reached from this machine only.
func loopback(bind string) bool {
	host, _ := split(bind)
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}
