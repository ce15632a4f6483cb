// SPDX-License-Identifier: Apache-2.0

package http1

import "github.com/weirlb/weir/internal/message"

// nameEqual compares a field name with a lower-case one, ignoring case. Setting
// bit 0x20 folds letters and leaves "-" and digits as they are; no other tchar
// folds onto one of those, so name must hold tchars only.
func nameEqual(name []byte, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i := range len(lower) {
		if name[i]|0x20 != lower[i] {
			return false
		}
	}
	return true
}

// FieldID returns the id of a field name, which must be a token. Names are told
// apart by length, then by a letter, and only then compared.
func FieldID(name []byte) message.FieldID {
	var id message.FieldID
	var want string
	switch len(name) {
	case 2:
		id, want = message.TE, "te"
	case 3:
		id, want = message.Via, "via"
	case 4:
		if name[0]|0x20 == 'h' {
			id, want = message.Host, "host"
		} else {
			id, want = message.Date, "date"
		}
	case 6:
		switch name[0] | 0x20 {
		case 'c':
			id, want = message.Cookie, "cookie"
		case 'e':
			id, want = message.Expect, "expect"
		case 's':
			id, want = message.Server, "server"
		}
	case 7:
		switch name[0] | 0x20 {
		case 't':
			id, want = message.Trailer, "trailer"
		case 'u':
			id, want = message.Upgrade, "upgrade"
		case 'r':
			id, want = message.Referer, "referer"
		}
	case 9:
		if name[0]|0x20 == 'f' {
			id, want = message.Forwarded, "forwarded"
		} else if name[2]|0x20 == 'r' {
			id, want = message.XRealIP, "x-real-ip"
		}
	case 10:
		switch name[0] | 0x20 {
		case 'c':
			id, want = message.Connection, "connection"
		case 'k':
			id, want = message.KeepAlive, "keep-alive"
		case 's':
			id, want = message.SetCookie, "set-cookie"
		case 't':
			id, want = message.Tracestate, "tracestate"
		case 'u':
			id, want = message.UserAgent, "user-agent"
		}
	default:
		return longFieldID(name)
	}
	if want != "" && nameEqual(name, want) {
		return id
	}
	return weirOrOther(name)
}

func longFieldID(name []byte) message.FieldID {
	var id message.FieldID
	var want string
	switch len(name) {
	case 11:
		switch name[0] | 0x20 {
		case 'c':
			id, want = message.ClientCert, "client-cert"
		case 'g':
			id, want = message.GRPCStatusOf, "grpc-status"
		case 'r':
			id, want = message.RetryAfter, "retry-after"
		case 't':
			id, want = message.Traceparent, "traceparent"
		}
	case 12:
		switch name[0] | 0x20 {
		case 'c':
			id, want = message.ContentType, "content-type"
		case 'g':
			id, want = message.GRPCTimeout, "grpc-timeout"
		case 'm':
			id, want = message.MaxForwards, "max-forwards"
		case 'x':
			id, want = message.XRequestID, "x-request-id"
		}
	case 13:
		id, want = message.Authorization, "authorization"
	case 14:
		if name[0]|0x20 == 'c' {
			id, want = message.ContentLength, "content-length"
		} else {
			id, want = message.HTTP2Settings, "http2-settings"
		}
	case 15:
		if name[0]|0x20 == 'i' {
			id, want = message.IdempotencyKey, "idempotency-key"
		} else {
			id, want = message.XForwardedFor, "x-forwarded-for"
		}
	case 16:
		switch {
		case name[0]|0x20 == 'p':
			id, want = message.ProxyConnection, "proxy-connection"
		case name[12]|0x20 == 'h':
			id, want = message.XForwardedHost, "x-forwarded-host"
		default:
			id, want = message.XForwardedPort, "x-forwarded-port"
		}
	case 17:
		switch name[0] | 0x20 {
		case 't':
			id, want = message.TransferEncoding, "transfer-encoding"
		case 'c':
			id, want = message.ClientCert, "client-cert-chain"
		default:
			id, want = message.XForwardedProto, "x-forwarded-proto"
		}
	case 18:
		id, want = message.ProxyAuthenticate, "proxy-authenticate"
	case 19:
		id, want = message.ProxyAuthorization, "proxy-authorization"
	case 21:
		id, want = message.LoadReport, "endpoint-load-metrics"
	case 22:
		id, want = message.GRPCPushback, "grpc-retry-pushback-ms"
	case 23:
		id, want = message.ClientCert, "x-forwarded-client-cert"
	case 25:
		id, want = message.LoadReportBin, "endpoint-load-metrics-bin"
	}
	if want != "" && nameEqual(name, want) {
		return id
	}
	return weirOrOther(name)
}

func weirOrOther(name []byte) message.FieldID {
	const prefix = "x-weir-"
	if len(name) > len(prefix) && name[0]|0x20 == 'x' && nameEqual(name[:len(prefix)], prefix) {
		return message.WeirAny
	}
	return message.Other
}

// lookalikeID judges a name with an odd character in it: servers that make
// variables of field names map several characters to one, so Content_Length or
// X.Real.IP may be read as the real one. Framing fields are reported as such;
// identity fields become message.Lookalike.
func lookalikeID(name []byte) message.FieldID {
	var folded [32]byte
	if len(name) > len(folded) {
		if id := lookalikeID(name[:len(folded)]); id == message.Lookalike {
			return id // X_Weir_...
		}
		return message.Other
	}
	for i, c := range name {
		if class[c]&oddChar != 0 {
			c = '-'
		}
		folded[i] = c
	}
	switch id := FieldID(folded[:len(name)]); id {
	case message.ContentLength, message.TransferEncoding:
		return id
	case message.XForwardedFor, message.XForwardedProto, message.XForwardedHost, message.XForwardedPort,
		message.XRealIP, message.XRequestID, message.ProxyAuthorization, message.WeirAny, message.ClientCert:
		return message.Lookalike
	}
	return message.Other
}
