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

// codeTable maps a status to the id by which it is counted, and, when it has
// one, to its fast cell. Every status is counted by itself; what a scrape shows
// of it is decided then.
type codeTable struct {
	id     [statusEnd]uint16 // status -> label id
	fast   [statusEnd]uint8  // status -> fast cell, or slowCode
	ofFast [fastCodes]uint16
	exact  []string // label id -> the status
	class  []string // label id -> its class, or the status where S18 keeps that apart
}

// verbatim are the codes that S18 keeps apart from their class.
var verbatim = [...]int{429, 499, 502, 503, 504}

// usualCodes are those that have a fast cell.
var usualCodes = [fastCodes]int{200, 201, 204, 206, 301, 302, 303, 304, 307, 400, 401, 403, 404, 101}

func newCodeTable() *codeTable {
	t := &codeTable{exact: []string{"none"}, class: []string{"none"}}
	for i := range t.fast {
		t.fast[i] = slowCode
	}
	for s := 100; s < statusEnd; s++ {
		t.id[s] = uint16(len(t.exact))
		t.exact = append(t.exact, strconv.Itoa(s))
		t.class = append(t.class, strconv.Itoa(s/100)+"xx")
	}
	for _, s := range verbatim {
		t.class[t.id[s]] = strconv.Itoa(s)
	}
	for i, s := range usualCodes {
		t.fast[s] = uint8(i)
		t.ofFast[i] = t.id[s]
	}
	return t
}

// outcome is what a cell of weir_requests_total counts within one series.
type outcome struct {
	code   uint16 // label id
	reason message.Reason
}
