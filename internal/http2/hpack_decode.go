// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"golang.org/x/net/http2/hpack"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
)

// errCompression is a block that cannot be decoded: what both sides know of each
// other's table is lost, and with it the connection (RFC 9113 section 4.3).
var errCompression = &ConnError{Code: CodeCompression, Detail: "header block cannot be decoded"}

// maxInteger bounds an integer of HPACK: nothing that is counted here comes near.
const maxInteger = 1 << 28

// decoder reads header blocks (RFC 7541), one after another. Text of fields is
// borrowed: it lies in the block, in a table, or in memory of the decoder that
// the next field overwrites: a field costs no allocation. Why it is not x/net's
// decoder, which it is tested against, see docs/adr/0004.
//
// The zero value has a table of size 0; see reset.
type decoder struct {
	dynamic table
	allowed int // what was announced: the greatest size that the peer may choose

	block   []byte // not yet read
	begun   bool   // a field of the block has been read
	scratch sink   // decoded text of the field
	line    entry  // see lines
}

// sink is what Huffman-coded text is decoded into.
type sink []byte

func (s *sink) Write(p []byte) (int, error) {
	*s = append(*s, p...)
	return len(p), nil
}

// reset prepares for another connection.
func (d *decoder) reset(size int) {
	d.dynamic.resize(0)
	d.dynamic.limit, d.allowed, d.block = size, size, nil
}

// begin starts on a whole header block.
func (d *decoder) begin(block []byte) { d.block, d.begun = block, false }

// next reads a field into f. It returns false at the end of the block.
func (d *decoder) next(f *entry) (bool, error) {
	for len(d.block) > 0 {
		b := d.block[0]
		switch {
		case b&0x80 != 0: // section 6.1: indexed
			i, err := d.integer(7)
			if err != nil || i == 0 {
				return false, errCompression
			}
			d.begun = true
			return true, d.lookup(i, f)
		case b&0x40 != 0: // section 6.2.1: literal, to be indexed
			d.begun = true
			return true, d.literal(6, true, f)
		case b&0x20 != 0: // section 6.3: another size of the table
			n, err := d.integer(5)
			if err != nil || n > d.allowed || d.begun {
				return false, errCompression
			}
			d.dynamic.resize(n)
		default: // sections 6.2.2 and 6.2.3: literal, not to be indexed
			d.begun = true
			return true, d.literal(4, false, f)
		}
	}
	return false, nil
}

// lookup finds an entry by its index over both tables.
func (d *decoder) lookup(i int, f *entry) error {
	if i < len(statics) {
		*f = statics[i]
		return nil
	}
	if i -= len(statics); i >= d.dynamic.len() {
		return errCompression
	}
	*f = d.dynamic.at(i)
	return nil
}

// literal reads a field whose name is indexed or spelled out.
func (d *decoder) literal(prefix uint, index bool, f *entry) error {
	i, err := d.integer(prefix)
	if err != nil {
		return err
	}
	d.scratch = d.scratch[:0]
	nameLen := -1 // of a name that lies in scratch
	if i == 0 {
		name, decoded, err := d.text()
		if err != nil {
			return err
		}
		f.name, f.id = name, message.Other
		if decoded {
			nameLen = len(name)
		}
		if len(name) == 0 || name[0] != ':' {
			f.id = nameID(name)
		}
	} else {
		if err := d.lookup(i, f); err != nil {
			return err
		}
		if index && i >= len(statics) { // adding may evict it, or move it
			d.scratch = append(d.scratch, f.name...)
			nameLen = len(f.name)
		}
	}
	value, _, err := d.text()
	if err != nil {
		return err
	}
	f.value = value
	if nameLen >= 0 {
		f.name = d.scratch[:nameLen:nameLen] // decoding the value may have moved it
	}
	if index {
		d.dynamic.add(f.name, f.value, f.id)
	}
	return nil
}

// nameID is the id of a name, or unfit for one that is no name of a field.
func nameID(name []byte) message.FieldID {
	id, err := http1.NameID(name)
	if err != nil {
		return unfit
	}
	return id
}

// unfit marks names that are not to be taken: capitals, characters that a name
// may not have, or one that another parser may read as a framing field.
const unfit message.FieldID = 0xff

// text reads a string. Decoded ones lie at the end of scratch, others in the
// block.
func (d *decoder) text() (s []byte, decoded bool, _ error) {
	if len(d.block) == 0 {
		return nil, false, errCompression
	}
	coded := d.block[0]&0x80 != 0
	n, err := d.integer(7)
	if err != nil || n > len(d.block) {
		return nil, false, errCompression
	}
	s, d.block = d.block[:n:n], d.block[n:]
	if !coded {
		return s, false, nil
	}
	start := len(d.scratch)
	if _, err := hpack.HuffmanDecode(&d.scratch, s); err != nil {
		return nil, false, errCompression
	}
	return d.scratch[start:len(d.scratch):len(d.scratch)], true, nil
}

// integer reads an integer with a prefix of so many bits (section 5.1).
func (d *decoder) integer(prefix uint) (int, error) {
	mask := byte(1)<<prefix - 1
	n := int(d.block[0] & mask)
	d.block = d.block[1:]
	if n < int(mask) {
		return n, nil
	}
	for shift := uint(0); len(d.block) > 0; shift += 7 {
		b := d.block[0]
		d.block = d.block[1:]
		if shift > 28 {
			return 0, errCompression
		}
		n += int(b&0x7f) << shift
		if n > maxInteger {
			return 0, errCompression
		}
		if b&0x80 == 0 {
			return n, nil
		}
	}
	return 0, errCompression
}
