// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"strconv"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/observe"
)

const (
	grpcStatusName   = "grpc-status"
	grpcMessageName  = "grpc-message"
	grpcPushbackName = "grpc-retry-pushback-ms"
	grpcContentType  = "application/grpc"
)

// isCall reports that the client speaks gRPC, also where an exchange has not come
// to look at the fields.
func (e *exchange) isCall() bool { return e.call.on || isGRPC(e.req) }

// answerCall tells a gRPC client what went wrong, in an answer of trailers only: a
// head with a status, and no content.
func (e *exchange) answerCall(f *Failure) {
	e.openAnswer(200)
	e.addStatus(&e.res.Fields, f)
	e.res.Fields.Add(message.ContentType, "Content-Type", grpcContentType)
	if err := e.writeAnswer(nil); err != nil {
		e.d.Abort()
	}
}

// endCall ends a call whose answer has begun by trailers with a status: the client
// learns why, where a reset would only say that something broke. A message that is
// cut short by them is no trap: a call that does not end with OK has no answer.
func (e *exchange) endCall(f *Failure) bool {
	if !e.call.on || e.req.Major < 2 || e.res.Body == message.Sized || e.res.Body == message.NoBody {
		return false
	}
	t := &e.call.trailers
	t.Reset(nil)
	e.addStatus(t, f)
	return e.d.WriteTrailers(t) == nil
}

// addStatus writes a failure as a status with its message.
func (e *exchange) addStatus(f *message.Fields, why *Failure) {
	s := why.grpc()
	e.call.known, e.call.status = true, s
	f.AddFunc(message.GRPCStatusOf, grpcStatusName, func(b []byte) []byte { return strconv.AppendInt(b, int64(s), 10) })
	t := append(e.text[:0], "weir: "...)
	t = append(t, why.Reason.String()...)
	if d := why.Detail; d != "" && why.Fault == FaultClient {
		t = append(append(t, ": "...), d...)
	}
	t = append(append(append(t, " (request "...), e.id()...), ')')
	e.text = t
	f.AddFunc(message.Other, grpcMessageName, func(b []byte) []byte { return appendGRPCMessage(b, t) })
	if e.final && e.marks() {
		f.Add(message.GRPCPushback, grpcPushbackName, "-1")
		f.Add(message.WeirAny, retryName, retryNo)
	}
}

// appendGRPCMessage writes text as a value of grpc-message: bytes other than
// printable ASCII, and the percent sign, percent-encoded.
func appendGRPCMessage(b, text []byte) []byte {
	const hex = "0123456789ABCDEF"
	for _, c := range text {
		if c >= ' ' && c <= '~' && c != '%' {
			b = append(b, c)
			continue
		}
		b = append(b, '%', hex[c>>4], hex[c&15])
	}
	return b
}

// grpc is the status that a failure is for a gRPC client.
func (f *Failure) grpc() message.GRPCStatus {
	if f.Code != 0 && f.Code != 200 {
		return message.GRPCFromHTTP(f.Code)
	}
	return f.Reason.GRPC()
}

// refuseCall makes the answer to a gRPC call that a codec refused one of trailers
// only.
func refuseCall(h *message.Response, err *http1.Error) observe.CallStatus {
	s := message.GRPCFromHTTP(err.Status())
	if err.Code == 0 {
		s = err.Reason.GRPC()
	}
	f := &h.Fields
	h.Status = 200
	f.RemoveID(message.ContentType)
	f.Add(message.ContentType, "Content-Type", grpcContentType)
	f.AddFunc(message.GRPCStatusOf, grpcStatusName, func(b []byte) []byte { return strconv.AppendInt(b, int64(s), 10) })
	text := []byte("weir: " + err.Reason.String() + ": " + err.Detail)
	f.AddFunc(message.Other, grpcMessageName, func(b []byte) []byte { return appendGRPCMessage(b, text) })
	return observe.CallEnded(s)
}
