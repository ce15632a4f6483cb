// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	"github.com/weirlb/weir/internal/acme"
	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/inputfile"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/route"
)

// Verify tries everything that New would do with a plan short of taking ports
// and paths, which a running weir may have: it reads the files that the plan
// names, looks whether this machine has the addresses, and compiles pools and
// routes. It returns every fault it finds and changes nothing.
func Verify(plan *config.Plan) []error {
	faults := verify(plan, func(bind string, _ bool) error { return listen.CheckBind(bind) })
	if err := checkState(plan.StateFile); err != nil {
		// Not a fault to New: what runs goes on without it, and says so.
		faults = append(faults, fmt.Errorf("state_file: %s cannot be written: %w", plan.StateFile, err))
	}
	return faults
}

// verify is Verify with another check of addresses; private is said of those for
// operators.
func verify(plan *config.Plan, check func(bind string, private bool) error) []error {
	var faults []error
	add := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	if f := plan.Admin.TokenFile; f != "" {
		if err := admin.CheckTokenFile(f); err != nil {
			add(fmt.Errorf("admin: %w", err))
		}
	}
	if a := &plan.Log.Access; !a.Off {
		if err := observe.CheckAccessLog(a.Path); err != nil {
			add(fmt.Errorf("log.access.path: %w", err))
		}
	}
	for _, own := range []struct{ what, bind string }{{"admin", plan.Admin.Bind}, {"status", plan.Status.Bind}} {
		if own.bind == "" {
			continue
		}
		if err := check(own.bind, true); err != nil {
			add(fmt.Errorf("%s: %w", own.what, err))
		}
	}
	faults = append(faults, VerifyText(plan)...)
	for i := range plan.Listeners {
		l := &plan.Listeners[i]
		for _, bind := range binds(l) {
			if err := check(bind, false); err != nil {
				add(fmt.Errorf("%slistener %s: %w", l.Pos, l.Name, err))
			}
		}
		faults = append(faults, certificateFaults(l)...)
	}
	if opt, ok := acmeOptions(plan); ok {
		if err := acme.Check(opt); err != nil {
			add(err)
		}
	}
	for i := range plan.Pools {
		p := &plan.Pools[i]
		if _, err := upstreamTLS(p, nil); err != nil {
			add(fmt.Errorf("%s%w", p.Pos, err))
		}
		if _, err := loadSticky(p); err != nil {
			add(fmt.Errorf("%s%w", p.Pos, err))
		}
	}
	return faults
}

// VerifyText is what of Verify holds on any machine: it compiles pools and routes,
// and looks at no file and no address.
func VerifyText(plan *config.Plan) (faults []error) {
	for i := range plan.Listeners {
		l := &plan.Listeners[i]
		rules := make([]route.Rule, len(l.Routes))
		for j := range l.Routes {
			rules[j] = ruleOf(&l.Routes[j], j)
		}
		if _, err := route.New(rules); err != nil {
			faults = append(faults, fmt.Errorf("%slistener %s: %w", l.Pos, l.Name, err))
		}
	}
	for i := range plan.Pools {
		p := &plan.Pools[i]
		if _, _, err := PoolConfig(p, 1); err != nil {
			faults = append(faults, fmt.Errorf("%s%w", p.Pos, err))
		}
	}
	return faults
}

// certificateFaults loads a listener's certificates and says what is wrong.
func certificateFaults(l *config.Listener) (faults []error) {
	if l.TLS == nil {
		return nil
	}
	for _, c := range l.TLS.Certificates {
		if _, err := inputfile.KeyPair(c.Cert, c.Key); err != nil {
			faults = append(faults, fmt.Errorf("%slistener %s: certificate %s with key %s: %w", c.Pos, l.Name, c.Cert, c.Key, err))
		}
	}
	if err := clientAuth(l.TLS).Check(); err != nil {
		faults = append(faults, fmt.Errorf("%slistener %s: %w", l.Pos, l.Name, err))
	}
	if err := listen.CheckTicketKeys(l.TLS.TicketKeysFile); err != nil {
		faults = append(faults, fmt.Errorf("%slistener %s: %w", l.Pos, l.Name, err))
	}
	return faults
}
