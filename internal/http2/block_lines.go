// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// lines reads all lines of a whole block, heads and trailers of either side, and has
// take judge each until one is bad, or they are too many or too large. The rest is read
// all the same, since the table changes with it; rest (nil: nobody) sees the bad line and
// those behind it. n is how many there are; an error is a block that cannot be decoded.
func (d *decoder) lines(block []byte, lim *http1.Limits, take func(f *entry, n int) *http1.Error, rest func(f *entry)) (n int, bad *http1.Error, _ error) {
	size, most, fields := 0, lim.HeaderBytes(), lim.Fields()
	f := &d.line
	for d.begin(block); ; {
		more, err := d.next(f)
		if err != nil || !more {
			return n, bad, err
		}
		size += len(f.name) + len(f.value) + entryOverhead
		n++
		switch {
		case bad != nil:
		case size > most:
			bad = errTooLarge
		case n > fields:
			bad = errTooMany
		default:
			bad = take(f, n)
		}
		if bad != nil && rest != nil {
			rest(f)
		}
	}
}

// addTrailer takes one line of trailers.
func addTrailer(t *message.Fields, f *entry) *http1.Error {
	switch {
	case len(f.name) > 0 && f.name[0] == ':':
		return errPseudoTrailer
	case f.id == unfit:
		return errName
	case f.id == message.Connection || f.id == message.TransferEncoding:
		return errConnField
	}
	if e := http1.CheckValue(f.value); e != nil {
		return e
	}
	t.AddRaw(f.id, f.name, f.value)
	return nil
}
