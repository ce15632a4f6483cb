// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"errors"
	"fmt"
	"strings"
)

// ErrUnknownPolicy is wrapped by New's error when no policy has that name.
var ErrUnknownPolicy = errors.New("balance: unknown policy")

// Options are the settings of all policies; each reads its own. The zero value
// means every default.
type Options struct {
	// Choices is how many backends p2c compares; 0 means 2, less than 2
	// otherwise is an error. See NewP2C.
	Choices int
	// EWMA are peak_ewma's.
	EWMA EWMAConfig
	// Hash are those of ring_hash, rendezvous and maglev; what
	// HashConfig.Validate refuses is an error.
	Hash HashConfig
}

// Names returns the names that New knows, the default one first.
func Names() []string {
	return []string{"p2c", "round_robin", "random", "least_request", "peak_ewma", "ring_hash", "rendezvous", "maglev"}
}

// New returns the policy of that name. The error wraps ErrUnknownPolicy when
// there is none, and says which option is out of range otherwise.
func New(name string, opt Options) (Policy, error) {
	switch name {
	case "p2c":
		switch {
		case opt.Choices == 0:
			return NewP2C(2), nil
		case opt.Choices < 2:
			return nil, fmt.Errorf("balance: p2c compares at least 2 backends, not %d", opt.Choices)
		}
		return NewP2C(opt.Choices), nil
	case "round_robin":
		return NewRoundRobin(), nil
	case "random":
		return NewRandom(), nil
	case "least_request":
		return NewLeastRequest(), nil
	case "peak_ewma":
		return NewPeakEWMA(opt.EWMA), nil
	case "ring_hash", "rendezvous", "maglev":
		if err := opt.Hash.Validate(); err != nil {
			return nil, err
		}
		return newHash(name, opt.Hash), nil
	}
	return nil, fmt.Errorf("%w %q: known are %s", ErrUnknownPolicy, name, strings.Join(Names(), ", "))
}
