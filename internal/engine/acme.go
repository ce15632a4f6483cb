// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirlb/weir/internal/acme"
	"github.com/weirlb/weir/internal/config"
)

// issued keeps the certificates that ACME obtains. Without names in the plan there
// is no Manager, and nothing runs.
type issued struct {
	// Guarded by Engine.mu, as all of a change is.
	now  *acme.Manager // that serves; nil: none
	next *acme.Manager // staged; may be the one that serves
}

// acmeOptions translates a plan; ok is false where it names nothing.
func acmeOptions(plan *config.Plan) (opt acme.Options, ok bool) {
	a := &plan.ACME
	return acme.Options{
		Directory: a.Directory, CAFile: a.CA, Email: a.Email, Storage: a.Storage, Key: a.Key,
		HTTP: slices.Contains(a.Challenges, "http-01"), TLS: slices.Contains(a.Challenges, "tls-alpn-01"),
		EABKeyID: a.EABKeyID, EABKeyFile: a.EABKeyFile,
	}, len(plan.ACMENames()) > 0
}

// stage makes the Manager that a plan wants, with the certificates that the storage
// has: a listener can serve them at once.
func (c *issued) stage(e *Engine, plan *config.Plan) error {
	opt, ok := acmeOptions(plan)
	switch {
	case !ok:
		c.next = nil
		return nil
	case c.now != nil && c.now.Same(opt):
		c.next = c.now
	default:
		m, err := acme.New(opt, acme.Hooks{Logger: e.log.With("from", "acme"), OnOrder: e.ordered})
		if err != nil {
			return err
		}
		c.next = m
	}
	c.next.Load(plan.ACMENames())
	return nil
}

// drop gives up what stage made.
func (c *issued) drop() {
	if c.next != nil && c.next != c.now {
		c.next.Close()
	}
	c.next = c.now
}

// adopt puts it into force. Certificates are ordered once challenges can be
// answered: when serving says that listeners accept.
func (c *issued) adopt(e *Engine, plan *config.Plan, serving bool) {
	old := c.now
	c.now = c.next
	if old != nil && old != c.now {
		e.retirer.Go(old.Close)
	}
	if serving {
		c.manage(plan)
	}
}

func (c *issued) manage(plan *config.Plan) {
	if c.now != nil {
		c.now.Manage(plan.ACMENames())
	}
}

// close ends orders under way.
func (c *issued) close() {
	if c.now != nil {
		c.now.Close()
	}
}

// ordered hears the end of each attempt to get a certificate.
func (e *Engine) ordered(name string, err error) {
	e.metrics.Order(err)
	ev := Event{At: time.Now(), Kind: "certificate", Text: "certificate of " + name + " issued"}
	if err != nil {
		ev.Kind, ev.Text = "certificate_failed", fmt.Sprintf("certificate of %s is not issued: %s", name, firstLine(err))
	}
	e.events.add(ev)
}

// challenge returns who answers validators on a listener: plain ones are asked by
// http-01.
func (c *issued) challenge(l *config.Listener) func(host, path string) []byte {
	if c.next == nil || l.TLS != nil {
		return nil
	}
	return c.next.Challenge
}
