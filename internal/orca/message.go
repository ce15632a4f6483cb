// SPDX-License-Identifier: Apache-2.0

package orca

import (
	"encoding/binary"
	"math"
)

// Numbers of the fields of OrcaLoadReport that are read; all are doubles.
const (
	fieldCPU         = 1
	fieldMemory      = 2
	fieldApplication = 9
)

// Wire types of protobuf's encoding. Groups (3 and 4) are in no message of
// version 3.
const (
	wireVarint = 0
	wire64     = 1
	wireBytes  = 2
	wire32     = 5
)

// parseMessage reads an OrcaLoadReport in protobuf's wire format. As the format
// has it, the last of several values of a field counts, and fields that are not
// known, or of another type, are passed over.
func parseMessage(b []byte) (r Report, ok bool) {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return Report{}, false
		}
		b = b[n:]
		size := 0
		switch tag & 7 {
		case wireVarint:
			if _, size = binary.Uvarint(b); size <= 0 {
				return Report{}, false
			}
		case wire64:
			size = 8
		case wire32:
			size = 4
		case wireBytes:
			length, n := binary.Uvarint(b)
			if n <= 0 || length > uint64(len(b)) {
				return Report{}, false
			}
			size = n + int(length)
		default:
			return Report{}, false
		}
		if size > len(b) {
			return Report{}, false
		}
		if to := r.field(tag >> 3); to != nil && tag&7 == wire64 {
			v := math.Float64frombits(binary.LittleEndian.Uint64(b))
			if !(v >= 0) || math.IsInf(v, 1) {
				return Report{}, false
			}
			*to = v
		}
		b = b[size:]
	}
	return r, true
}

func (r *Report) field(n uint64) *float64 {
	switch n {
	case fieldCPU:
		return &r.CPU
	case fieldMemory:
		return &r.Memory
	case fieldApplication:
		return &r.Application
	}
	return nil
}
