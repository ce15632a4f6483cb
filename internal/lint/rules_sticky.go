// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"slices"

	"github.com/weirlb/weir/internal/config"
)

var stickyRules = []Rule{
	{
		Name: "sticky_load", Severity: Note,
		Title: "Sessions go where they are, however loaded that is",
		Why:   "A request with the cookie is not placed by the policy: a backend that got the busy clients keeps them, a new one gets none of those there are, and when a backend goes its sessions are lost or read anew all at once. The policy balances first requests only.",
		Fix:   "Keep what a session needs where every backend finds it (a database, a signed token), and switch sticky off; until then, short lifetimes and limits.requests bound the damage.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if p.Sticky == nil || p.Limits.Requests > 0 || !slices.Contains([]string{"p2c", "least_request", "peak_ewma"}, p.Balance) {
					return
				}
				v.found(path(at, "sticky"), "pool "+p.Name+" balances by load ("+p.Balance+") the first request of a session only, and nothing bounds what the others bring to a backend", write(path(at, "limits", "requests"), "200"))
			})
		},
	},
	{
		Name: "sticky_unsigned", Severity: Warning,
		Title: "The cookie of sessions is not signed",
		Why:   "Without a key the value is a hash of the pool's name and the backend's id: whoever sees one finds the address behind it by trying, and can make one for any backend, to bring all load to it. Several weirs without a key do agree, and so does everybody else.",
		Fix:   "Make a key with `openssl rand -base64 48`, and give every weir the same file in sticky.secret_file.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if p.Sticky == nil || p.Sticky.SecretFile != "" {
					return
				}
				v.found(path(at, "sticky"), "pool "+p.Name+" names backends in a cookie that anybody can make and read", write(path(at, "sticky", "secret_file"), "/etc/weir/sticky.keys"))
			})
		},
	},
	{
		Name: "sticky_secure", Severity: Warning,
		Title: "Browsers refuse the cookie of sessions",
		Why:   "A browser takes no Secure cookie, and none with SameSite=None that is not Secure, from a plain http page. It says nothing, sends none, and every request is placed anew.",
		Fix:   "Serve the pool over TLS alone, or write secure: auto and same_site: lax. Behind a proxy that ends TLS, list it in trusted_proxies and write secure: auto.",
		find:  findStickySecure,
	},
	{
		Name: "sticky_name", Severity: Warning,
		Title: "Two pools write the same cookie",
		Why:   "A browser has one cookie of a name for a host. Two pools behind one host that use the same name write over each other's: a client that goes back and forth is placed anew each time.",
		Fix:   "Leave cookie at auto, which makes a name of the pool's, or write two.",
		find: func(v *view) {
			first := map[string]string{}
			v.pools(func(p *config.Pool, at []string) {
				if p.Sticky == nil || p.Sticky.Cookie == "" {
					return
				}
				if other, ok := first[p.Sticky.Cookie]; ok {
					here := path(at, "sticky", "cookie")
					v.found(here, fmt.Sprintf("pools %s and %s both write a cookie called %s", other, p.Name, p.Sticky.Cookie), remove(here))
					return
				}
				first[p.Sticky.Cookie] = p.Name
			})
		},
	},
}

// findStickySecure finds pools whose cookie is refused on a plain listener that
// leads to them. What a trusted proxy in front has with the client it says itself.
func findStickySecure(v *view) {
	said := map[string]bool{}
	v.listeners(func(l *config.Listener, _ []string) {
		if l.TLS != nil || len(l.TrustedProxies) > 0 {
			return
		}
		for i := range l.Routes {
			p := v.Plan.Pool(l.Routes[i].Pool)
			if p == nil || p.Sticky == nil || said[p.Name] {
				continue
			}
			at := path("pools", p.Name, "sticky")
			switch s := p.Sticky; {
			case s.Secure == "on":
				said[p.Name] = true
				v.found(path(at, "secure"), fmt.Sprintf("listener %s is plain http, and browsers take no Secure cookie there: pool %s keeps no session", l.Name, p.Name), write(path(at, "secure"), "auto"))
			case s.SameSite == "none" && s.Secure == "auto":
				said[p.Name] = true
				v.found(path(at, "same_site"), fmt.Sprintf("listener %s is plain http, where SameSite=None is left out, as browsers take it with Secure only: pages of other sites get no session of pool %s", l.Name, p.Name), write(path(at, "same_site"), "lax"))
			}
		}
	})
}
