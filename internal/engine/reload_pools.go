// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"crypto/tls"
	"reflect"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/pool"
)

// poolChange is what a new plan makes of a running pool: everything that can
// fail has been done.
type poolChange struct {
	cfg  config.Pool
	core *pool.Config // nil: the core's settings stay
	set  *driverSettings
	seat stickyKeys
	anew bool // connections to backends are made differently
}

// change prepares a running pool for another plan, or returns nil when nothing
// but the backends may differ.
func (p *livePool) change(next *config.Pool, instance uint64) (*poolChange, error) {
	shared, err := upstreamTLS(next, p.driver.log) // again: the files may hold something else now
	if err != nil {
		return nil, err
	}
	old := p.driver.set.Load()
	keys, err := loadSticky(next) // the same holds for these
	if err != nil {
		return nil, err
	}
	c := &poolChange{cfg: *next, seat: keys, anew: !sameTLS(old.tls, shared)}
	same := sameSettings(p.cfg, *next)
	if same && !c.anew && keys.equal(p.sticky) {
		return nil, nil //nolint:nilnil // nothing to do is no error
	}
	if !c.anew {
		shared = old.tls
	}
	c.set = &driverSettings{cfg: next, tls: shared}
	if same {
		return c, nil
	}
	core, _, err := PoolConfig(next, instance)
	if err != nil {
		return nil, err
	}
	if samePolicy(&p.cfg, next) {
		core.Policy = nil // with what it knows
	}
	c.core = &core
	return c, nil
}

// apply puts a change into force. Called under the engine's mu.
func (p *livePool) apply(c *poolChange) {
	introduced := p.cfg.SendProxyProtocol != c.cfg.SendProxyProtocol
	p.cfg = c.cfg
	p.driver.set.Store(c.set)
	if !c.seat.equal(p.sticky) {
		p.seat(c.seat) // populate tells the members
	}
	if c.core != nil {
		p.pool.Reconfigure(*c.core)
	}
	// After Reconfigure: whoever was attached with the old settings is in the
	// snapshot now, whoever comes later is attached with the new ones.
	s := p.pool.Snapshot()
	for i := range s.Backends {
		if t := targetOf(s.Backends[i].Backend); t != nil {
			t.up.Reconfigure(c.set.upstream(p.driver.engine.names, t), c.anew && t.https || introduced)
			t.setProbe(c.set)
		}
	}
}

// sameSettings reports whether two plans' pools differ in their backends at most.
func sameSettings(a, b config.Pool) bool {
	a.Backends, b.Backends = nil, nil
	a.Pos, b.Pos = config.Position{}, config.Position{}
	a.Hash.Key, b.Hash.Key = nil, nil // routes make the keys
	return reflect.DeepEqual(a, b)
}

// samePolicy reports whether the policy that is in use is the one wanted.
func samePolicy(a, b *config.Pool) bool {
	x, y := a.Hash, b.Hash
	x.Key, y.Key = nil, nil
	return a.Balance == b.Balance && a.Choices == b.Choices && a.EWMA == b.EWMA && reflect.DeepEqual(x, y)
}

// sameTLS reports whether two settings from upstreamTLS verify and present the
// same.
func sameTLS(a, b *tls.Config) bool {
	if a.ServerName != b.ServerName || a.MinVersion != b.MinVersion || a.InsecureSkipVerify != b.InsecureSkipVerify ||
		!a.RootCAs.Equal(b.RootCAs) || len(a.Certificates) != len(b.Certificates) {
		return false
	}
	for i := range a.Certificates {
		x, y := a.Certificates[i].Certificate, b.Certificates[i].Certificate
		if len(x) != len(y) {
			return false
		}
		for j := range x {
			if !bytes.Equal(x[j], y[j]) {
				return false
			}
		}
	}
	return true
}
