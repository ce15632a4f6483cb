// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package observe

import (
	"errors"
	"net/netip"
)

func usedPorts(map[netip.AddrPort]bool, uint16, uint16) (map[netip.AddrPort]int, error) {
	return nil, errors.ErrUnsupported
}

func portRange() (low, high uint16, reserved int, err error) { return 0, 0, 0, errors.ErrUnsupported }
