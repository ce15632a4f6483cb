// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"strings"

	"github.com/weirlb/weir/internal/config"
)

var proxyRules = []Rule{
	{
		Name: "proxy_optional", Severity: Warning,
		Title: "A PROXY header is optional",
		Why:   "A listed peer that adds no header passes on what its clients send first, and that may be a header: whoever comes through it can claim any address. The specification forbids to guess for this reason.",
		Fix:   "Write mode: required, and give peers that send none, such as checks from other machines, a listener of their own. Optional is for the moment in which the balancer in front changes over.",
		find: func(v *view) {
			v.listeners(func(l *config.Listener, at []string) {
				if l.ProxyProtocol.Mode == "optional" {
					here := path(at, "proxy_protocol", "mode")
					v.found(here, "listener "+l.Name+" takes listed peers at their word whether they send a PROXY header or their clients do", write(here, "required"))
				}
			})
		},
	},
	{
		Name: "send_proxy_cost", Severity: Note,
		Title: "Connections to HTTP backends are of one client each",
		Why:   "A PROXY header speaks for its whole connection, so connections are not shared between clients: each new client costs one to each backend that it meets, kept ones are of use to nobody else, and a backend holds as many as there are clients. X-Forwarded-For says the same for each request.",
		Fix:   "Let backends read X-Forwarded-For from weir, and switch the header off; silence this where they cannot.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				if p.SendProxyProtocol == "" || len(p.Backends) > 0 && !strings.HasPrefix(p.Backends[0].URL, "http") {
					return
				}
				here := path(at, "send_proxy_protocol")
				v.found(here, "pool "+p.Name+" opens connections for each client anew, for the PROXY header that they begin with", write(here, "off"))
			})
		},
	},
}
