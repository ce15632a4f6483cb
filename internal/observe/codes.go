// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strconv"

	"github.com/weirlb/weir/internal/message"
)

// Each stripe of a Series has a fixed cell for the codes that make up normal
// traffic; everything else (a reason that is not ok, a rare exact code) has a
// cell on a list that is walked.
const (
	fastCodes  = 14
	slowCode   = 0xff
	statusEnd  = 600
	connFresh  = fastCodes     // cells behind the codes: connections opened
	connReused = fastCodes + 1 // and used again
	cellsFast  = fastCodes + 2
)

// codeTable maps a status to its label and, when it has one, its fast cell.
type codeTable struct {
	id     [statusEnd]uint16 // status -> label id
	fast   [statusEnd]uint8  // status -> fast cell, or slowCode
	label  []string          // label id -> label
	ofFast [fastCodes]uint16
}

// verbatim are the codes that S18 keeps apart from their class.
var verbatim = [...]int{429, 499, 502, 503, 504}

// exactFast are the codes that get a fast cell when codes are exact.
var exactFast = [fastCodes]int{200, 201, 204, 206, 301, 302, 303, 304, 307, 400, 401, 403, 404, 101}

func newCodeTable(exact bool) *codeTable {
	t := &codeTable{label: []string{"none"}}
	for i := range t.fast {
		t.fast[i] = slowCode
	}
	name := func(label string, statuses ...int) {
		id := uint16(len(t.label))
		t.label = append(t.label, label)
		for _, s := range statuses {
			t.id[s] = id
		}
	}
	if exact {
		for s := 100; s < statusEnd; s++ {
			name(strconv.Itoa(s), s)
		}
		for i, s := range exactFast {
			t.fast[s] = uint8(i)
			t.ofFast[i] = t.id[s]
		}
		return t
	}
	for class := 1; class < statusEnd/100; class++ {
		var all []int
		for s := class * 100; s < class*100+100; s++ {
			all = append(all, s)
		}
		name(strconv.Itoa(class)+"xx", all...)
	}
	for _, s := range verbatim {
		name(strconv.Itoa(s), s)
	}
	for s := range t.id {
		t.fast[s] = uint8(t.id[s])
	}
	for i := range t.label {
		t.ofFast[i] = uint16(i)
	}
	return t
}

// outcome is what a cell of weir_requests_total counts within one series.
type outcome struct {
	code   uint16 // label id
	reason message.Reason
}
