// SPDX-License-Identifier: Apache-2.0

package orca

import "bytes"

// parseText reads name=value pairs separated by commas. Names that are not known
// (named_metrics.queue, for one) are passed over; a known one may be there once.
func parseText(b []byte) (r Report, ok bool) {
	var seen [3]bool
	for more := true; more; {
		pair := b
		if i := bytes.IndexByte(b, ','); i >= 0 {
			pair, b = b[:i], b[i+1:]
		} else {
			more = false
		}
		name, value, found := bytes.Cut(pair, equals)
		name, value = bytes.Trim(name, " \t"), bytes.Trim(value, " \t")
		if !found || len(name) == 0 {
			return Report{}, false
		}
		to := r.metric(name)
		if to == nil || bytes.IndexByte(name, '_') < 0 {
			continue // the names of JSON are none here
		}
		v, good := number(value)
		if !good || !first(&r, to, &seen) {
			return Report{}, false
		}
		*to = v
	}
	return r, true
}

var equals = []byte("=")

// first notes that a metric was given and reports whether it is the first time.
func first(r *Report, to *float64, seen *[3]bool) bool {
	i := 0
	switch to {
	case &r.Memory:
		i = 1
	case &r.Application:
		i = 2
	}
	was := seen[i]
	seen[i] = true
	return !was
}
