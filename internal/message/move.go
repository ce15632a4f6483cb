// SPDX-License-Identifier: Apache-2.0

package message

import "unsafe"

// Move makes a slice of the text in from one of the text in to, which begins with
// the same bytes; any other slice stays as it is. What to does not reach to is left
// out.
func Move(p *[]byte, from, to []byte) {
	if cap(*p) == 0 || len(from) == 0 {
		return
	}
	// Offsets of another object are none: the subtraction wraps around to something
	// that is too large, or lies outside all the same.
	at := uintptr(unsafe.Pointer(unsafe.SliceData(*p))) - uintptr(unsafe.Pointer(unsafe.SliceData(from)))
	if at >= uintptr(len(from)) {
		return
	}
	start := min(int(at), len(to))
	end := min(start+len(*p), len(to))
	*p = to[start:end:end]
}

// Move makes a head whose text lies in from lie in to, a copy of its beginning that
// reaches to the end of the head: who keeps the head for long need not keep a buffer
// that is larger.
func (r *Request) Move(from, to []byte) {
	for _, p := range []*[]byte{&r.Method, &r.Target, &r.Path, &r.Query, &r.Authority, &r.Routed, &r.Fields.src} {
		Move(p, from, to)
	}
}
