// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"

	"github.com/weirlb/weir/internal/message"
)

// Fields of one hop (RFC 9110 section 7.6.1). What goes: Connection and what it
// names, Keep-Alive, Proxy-Connection, TE, Upgrade, HTTP2-Settings, and
// Transfer-Encoding, which the codec writes anew. TE survives as "trailers",
// because weir carries trailers. What stays, although older lists count it as
// hop-by-hop: Trailer (it describes the message), Proxy-Authenticate and
// Proxy-Authorization (section 11.7: they concern the hop that asked; weir
// never asks, and a backend whose 407 passed can only be answered if the
// credentials pass too).
//
// Via is not added. Section 7.6.3 asks gateways for it, yet no gateway in this
// place sends it by default, and servers act on it to the user's harm (nginx
// stops compressing when it sees one). What Via is for, loops and versions,
// X-Weir-Attempt and the record's protocol say better.

// removeNamed removes the fields that Connection names. Some can never be
// removed that way: a client could otherwise strip what a trusted proxy before
// weir said about it, or its own framing (S13). Connection, Upgrade and TE are
// seen to by themselves.
func removeNamed(f *message.Fields) {
	for i := range f.Len() {
		if f.ID(i) != message.Connection || f.Removed(i) {
			continue
		}
		for list := f.Value(i); len(list) > 0; {
			var name []byte
			name, list, _ = bytes.Cut(list, []byte(","))
			name = trimOWS(name)
			if len(name) == 0 {
				continue
			}
			for j := range f.Len() {
				if !f.Removed(j) && !neverNamed(f.ID(j)) && bytes.EqualFold(f.Name(j), name) {
					f.Remove(j)
				}
			}
		}
	}
}

func neverNamed(id message.FieldID) bool {
	switch id {
	case message.Host, message.ContentLength, message.TransferEncoding, message.Connection, message.Upgrade, message.TE,
		message.XForwardedFor, message.XForwardedProto, message.XForwardedHost, message.XForwardedPort,
		message.XRealIP, message.Forwarded, message.XRequestID, message.Traceparent, message.Tracestate,
		message.ClientCert, message.Authorization, message.ProxyAuthorization, message.Cookie, message.SetCookie, message.WeirAny,
		message.Expect, message.Date:
		return true
	default:
		return false
	}
}

// hopResponse removes from an answer what concerns one hop, and what weirs say
// to weirs. It reports whether a Date is there, and whether a weir behind this
// one has said that the answer is not to be retried.
func hopResponse(r *message.Response) (dated, final bool) {
	f := &r.Fields
	if r.ConnectionNamed {
		removeNamed(f)
	}
	for i := range f.Len() {
		switch f.ID(i) {
		case message.Other:
		case message.Connection, message.KeepAlive, message.ProxyConnection, message.TE, message.XRequestID:
			f.Remove(i)
		case message.WeirAny:
			final = final || saysNo(f, i)
			f.Remove(i)
		case message.Upgrade:
			// With 101 the codec writes the field. With 426 it is the answer's point
			// (RFC 9110 section 15.5.22), where weir would tunnel what it asks for.
			if r.Status == 426 && message.EqualFold(f.Value(i), "websocket") {
				continue
			}
			f.Remove(i)
		case message.Date:
			dated = dated || !f.Removed(i)
		}
	}
	return dated, final
}

// onlyTrailers reports that a TE value is or contains "trailers".
func onlyTrailers(v []byte) bool {
	for len(v) > 0 {
		var t []byte
		t, v, _ = bytes.Cut(v, []byte(","))
		t, _, _ = bytes.Cut(t, []byte(";"))
		if message.EqualFold(trimOWS(t), "trailers") {
			return true
		}
	}
	return false
}
