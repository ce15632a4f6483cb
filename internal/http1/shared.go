// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"

	"github.com/weirlb/weir/internal/message"
)

// What a head may hold does not depend on how it is framed. The functions of
// this file are the codec's own rules, for the codecs of other versions.

// CheckMethod refuses what is no method: not a token, too long, or a standard
// method in other letters than capitals.
func CheckMethod(m []byte) *Error {
	switch {
	case !isToken(m) || len(m) > maxMethod:
		return errMethod
	case !capitals(m) && isStandard(m):
		return errMethodCase
	}
	return nil
}

// SplitTarget checks a target in origin-form, or "*" of OPTIONS, and sets Target,
// Path and Query of r, which borrow from it. Method must be set.
func (l *Limits) SplitTarget(r *message.Request, t []byte) *Error {
	if len(t) > l.target() {
		return errTargetLong
	}
	for _, c := range t {
		if class[c]&targetChar == 0 {
			if c == '#' {
				return errFragment
			}
			return errTarget
		}
	}
	if len(t) == 0 || t[0] != '/' && (string(t) != "*" || string(r.Method) != "OPTIONS") {
		return errTargetForm
	}
	r.Target, r.Path, r.Query = t, t, nil
	if q := bytes.IndexByte(t, '?'); q >= 0 {
		r.Path, r.Query = t[:q:q], t[q+1:]
	}
	return nil
}

// CheckAuthority refuses what is not host [":" port]; with port one is needed.
func CheckAuthority(a []byte, port bool) *Error { return authorityFault(a, port) }

// NameID judges a field name that has no capitals, as later versions demand.
func NameID(name []byte) (message.FieldID, *Error) {
	kind := uint8(0)
	for _, c := range name {
		k := class[c]
		if k&tokenChar == 0 || 'A' <= c && c <= 'Z' {
			return 0, errName
		}
		kind |= k
	}
	if len(name) == 0 {
		return 0, errNameEmpty
	}
	id := FieldID(name)
	if kind&oddChar != 0 && id == message.Other {
		if id = lookalikeID(name); id != message.Other && id != message.Lookalike {
			return 0, errLookalike
		}
	}
	return id, nil
}

// CheckValue refuses a value with control characters, or with white space at
// either end, which no parser would keep.
func CheckValue(v []byte) *Error {
	i := firstControl(v, 0)
	for i < len(v) && v[i] == '\t' {
		i = firstControl(v, i+1)
	}
	if i < len(v) || len(v) > 0 && (isSpace(v[0]) || isSpace(v[len(v)-1])) {
		return errValue
	}
	return nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' }

// ParseLength reads the value of Content-Length.
func ParseLength(v []byte) (int64, *Error) { return parseLength(v) }

// FilterTrailers removes what no trailer may say: framing, routing, identity and
// everything else that weir looks at, but for load reports and gRPC's status.
func FilterTrailers(f *message.Fields) {
	for i := range f.Len() {
		switch f.ID(i) {
		case message.LoadReport, message.LoadReportBin, message.GRPCStatusOf, message.GRPCPushback: // a trailer is where they are made for
		case message.Other:
			if notInTrailer(f.Name(i)) {
				f.Remove(i)
			}
		default:
			f.Remove(i)
		}
	}
}

// Fields is the greatest number of field lines, HeaderBytes the greatest size
// of a head: the limits, or their defaults.
func (l *Limits) Fields() int { return l.fields() }

// HeaderBytes is described at Fields.
func (l *Limits) HeaderBytes() int { return l.headerBytes() }
