// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// HashConfig are the settings of the hash policies; each reads its own. The
// zero value means every default.
type HashConfig struct {
	// BoundedLoad is the factor c of bounded loads: a backend with c times the
	// average of requests in flight for its weight passes keys on to the next in
	// their own order. 0 means no bound, otherwise at least 1; 1.25 is usual.
	BoundedLoad float64
	// TableSize is the number of slots of maglev's table, a prime; 0 means
	// 65537. A hundred slots for each backend keep shares within 1 %.
	TableSize int
	// VirtualNodes is the number of points that ring_hash gives a backend of
	// average weight; 0 means 160.
	VirtualNodes int
	// Fallback places requests without a key; nil means p2c of two choices. It
	// belongs to the policy that it is given to.
	Fallback Policy
	// Spill, 1 to 8, is how many of the next in the key's order are compared when
	// the key's backend is saturated, that is over the bound or at its limit: the
	// one with the least load for its weight is taken. 0 means the next alone.
	Spill int
}

// What HashConfig allows.
const (
	defaultTableSize    = 65537
	maxTableSize        = 5_000_011
	defaultVirtualNodes = 160
	maxVirtualNodes     = 1 << 16
	maxSpill            = 8
)

// Validate returns an error that names the first setting out of range.
func (c HashConfig) Validate() error {
	switch {
	case c.BoundedLoad != 0 && !(c.BoundedLoad >= 1 && c.BoundedLoad < math.Inf(1)):
		return fmt.Errorf("balance: a bounded load is at least 1, not %g", c.BoundedLoad)
	case c.TableSize != 0 && (c.TableSize < 2 || c.TableSize > maxTableSize || !isPrime(c.TableSize)):
		return fmt.Errorf("balance: a table size is a prime up to %d, not %d; the next prime is %d",
			maxTableSize, c.TableSize, nextPrime(min(max(c.TableSize, 2), maxTableSize)))
	case c.VirtualNodes < 0 || c.VirtualNodes > maxVirtualNodes:
		return fmt.Errorf("balance: virtual nodes are 1 to %d, not %d", maxVirtualNodes, c.VirtualNodes)
	case c.Spill < 0 || c.Spill > maxSpill:
		return fmt.Errorf("balance: a key spills over to 1 to %d backends, not %d", maxSpill, c.Spill)
	}
	return nil
}

// completed returns the configuration with defaults in place and every value
// that Validate would refuse moved to the nearest that it would not.
func (c HashConfig) completed() HashConfig {
	switch {
	case !(c.BoundedLoad > 0): // NaN too
		c.BoundedLoad = 0
	default:
		c.BoundedLoad = min(max(c.BoundedLoad, 1), math.MaxFloat32)
	}
	if c.TableSize <= 0 {
		c.TableSize = defaultTableSize
	}
	c.TableSize = nextPrime(min(max(c.TableSize, 2), maxTableSize))
	if c.VirtualNodes <= 0 {
		c.VirtualNodes = defaultVirtualNodes
	}
	c.VirtualNodes = min(c.VirtualNodes, maxVirtualNodes)
	if c.Fallback == nil {
		c.Fallback = NewP2C(2)
	}
	c.Spill = min(max(c.Spill, 0), maxSpill)
	return c
}

// newHash returns the hash policy of that name.
func newHash(name string, cfg HashConfig) Policy {
	switch name {
	case "ring_hash":
		return NewRingHash(cfg)
	case "rendezvous":
		return NewRendezvous(cfg)
	}
	return NewMaglev(cfg)
}

// hashPolicy is what the three hash policies share.
type hashPolicy struct {
	name string
	cfg  HashConfig
}

func (p hashPolicy) Name() string { return p.name }

// Keyed reports true: equal keys go to equal backends.
func (hashPolicy) Keyed() bool { return true }

// KeepsExcluded reports true: health never rebuilds a table.
func (hashPolicy) KeepsExcluded() bool { return true }

// UsesTotal reports whether loads are bounded, or the fallback asks for the sum.
func (p hashPolicy) UsesTotal() bool {
	u, ok := p.cfg.Fallback.(TotalUser)
	return p.cfg.BoundedLoad > 0 || ok && u.UsesTotal()
}

// keyedPolicy is a hash policy with all that it implements.
type keyedPolicy interface {
	Policy
	Keyed
	Keeper
	TotalUser
}

// withLearning makes a hash policy a Learner when its fallback is one.
func withLearning(p keyedPolicy, fallback Policy) Policy {
	if l, ok := fallback.(Learner); ok {
		return struct {
			keyedPolicy
			Learner
		}{p, l}
	}
	return p
}

// byHash returns the set with its members in the order of their ids' hashes, so
// that what is built over it is equal on balancers that list them otherwise.
func byHash(s *Set) *Set {
	sorted := *s
	sorted.members = slices.DeleteFunc(slices.Clone(s.members), func(m Member) bool { return m.Backend == nil })
	slices.SortStableFunc(sorted.members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Backend.hash, b.Backend.hash), cmp.Compare(a.Backend.id, b.Backend.id))
	})
	return &sorted
}

func isPrime(n int) bool {
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return n > 1
}

// nextPrime returns the least prime that is n or more.
func nextPrime(n int) int {
	for !isPrime(n) {
		n++
	}
	return n
}
