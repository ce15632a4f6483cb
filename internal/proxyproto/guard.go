// SPDX-License-Identifier: Apache-2.0

package proxyproto

// Guard finds a header at the beginning of bytes that pass through unread: where
// nobody may send one, a client's would be believed by whoever is behind. It
// holds nothing back. A header is refused before its beginning is complete, so
// that only a part of its first words can have passed, which nobody takes for
// one. The zero value is ready; it is its reader's.
type Guard struct {
	seen uint8 // bytes that agreed with a beginning; the last bit: of version 2
}

const (
	guardV2   = 1 << 7
	guardOver = guardV2 - 1
)

// Over reports that no header can come any more: what passes need not be shown.
func (g *Guard) Over() bool { return g.seen&guardOver == guardOver }

// Forged looks at the next bytes of a connection, and reports that with them the
// connection begins as a header does. They must not be passed on then.
func (g *Guard) Forged(b []byte) bool {
	for _, c := range b {
		if g.Over() {
			return false
		}
		at := int(g.seen & guardOver)
		if at == 0 && c == signature[0] {
			g.seen = guardV2
		}
		begin := word
		if g.seen&guardV2 != 0 {
			begin = signature
		}
		if c != begin[at] {
			g.seen = guardOver
			return false
		}
		if g.seen++; at+1 == len(begin) {
			return true
		}
	}
	return false
}
