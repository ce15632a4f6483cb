// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/tls"
	"fmt"
	"os"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/route"
)

// Verify tries everything that New would do with a plan short of binding
// sockets: it reads the files that the plan names and compiles pools and
// routes. It returns every fault it finds.
func Verify(plan *config.Plan) []error {
	var faults []error
	add := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	if f := plan.Admin.TokenFile; f != "" {
		if _, err := os.ReadFile(f); err != nil {
			add(fmt.Errorf("admin.token_file: %w", err))
		}
	}
	for i := range plan.Listeners {
		l := &plan.Listeners[i]
		if l.TLS != nil {
			for _, c := range l.TLS.Certificates {
				if _, err := tls.LoadX509KeyPair(c.Cert, c.Key); err != nil {
					add(fmt.Errorf("%slistener %s: certificate %s with key %s: %w", c.Pos, l.Name, c.Cert, c.Key, err))
				}
			}
		}
		rules := make([]route.Rule, len(l.Routes))
		for j := range l.Routes {
			rules[j] = ruleOf(&l.Routes[j], j)
		}
		if _, err := route.New(rules); err != nil {
			add(fmt.Errorf("%slistener %s: %w", l.Pos, l.Name, err))
		}
	}
	for i := range plan.Pools {
		p := &plan.Pools[i]
		if _, err := poolConfig(p, 1, true); err != nil {
			add(fmt.Errorf("%s%w", p.Pos, err))
		}
		if _, err := upstreamTLS(p); err != nil {
			add(fmt.Errorf("%s%w", p.Pos, err))
		}
	}
	return faults
}
