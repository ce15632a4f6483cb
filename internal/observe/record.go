// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/netip"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
)

// Record is what is remembered of one request. It belongs to the exchange,
// which reuses it: neither Observe nor Write keeps a reference to it or to any
// slice in it. The zero value is a record of nothing; Reset gives it back.
type Record struct {
	// Names of what served it. Empty when the request did not get that far.
	Listener, Route, Pool, Backend string

	// From the request's head; borrowed from the codec until the exchange ends.
	Method    []byte
	Host      []byte
	Path      []byte // without the query
	Query     []byte // logged only when AccessLogOptions.Query says so
	UserAgent []byte
	RequestID []byte
	ClientIP  netip.Addr // after trusted forwarding headers were believed

	// ProxiedBy is who sent the PROXY header that the connection began with; invalid:
	// there was none, or it came over a unix socket.
	ProxiedBy netip.Addr

	// Request are the fields of the request as they were passed on, for logs that
	// show one of them. nil: none.
	Request *message.Fields

	// Protocol is what a session was of that carries no requests: tcp, sni. Empty:
	// the record is a request's.
	Protocol string

	Start        balance.Instant // when the head was complete
	Major, Minor uint8           // HTTP version spoken by the client
	TLS          bool
	Session      *Session // of TLS; nil: none, or nobody has asked
	Tunnel       bool     // switched protocols: Total is the tunnel's life and enters no latency histogram

	Status int            // sent to the client; 0: none was (the reason's own status is used)
	Reason message.Reason // how it ended
	GRPC   CallStatus     // how it ended for a gRPC client
	Sent   bool           // a byte of the request was put on a backend
	Reused bool           // the last attempt went over a kept connection
	Linked bool           // the last attempt had a connection, which is not counted yet

	Attempts     int // every try, the first included
	Retries      int // tries after bytes had been sent (S5)
	Redispatches int // tries after none had been sent

	// Tried are the attempts before the last one, oldest first: where the request
	// went before it ended where it did.
	Tried []Try

	Queue     time.Duration // waited for a slot
	Connect   time.Duration // dialing and TLS of the last attempt; 0 on a kept connection
	FirstByte time.Duration // from the last attempt's first request byte to its final response head; 0: none came
	Total     time.Duration // head complete to last byte

	BytesIn  int64 // content received from the client
	BytesOut int64 // content sent to the client

	DatagramsIn, DatagramsOut int64 // of a flow of UDP: those that BytesIn and BytesOut are the content of

	Sticky StickyOutcome // what became of its session; StickyNone where the pool keeps none

	Detail string // a few words beyond the reason; never from a secret field
}

// Session is what a log can say of a client's TLS. It is immutable.
type Session struct {
	Version, Suite uint16 // as crypto/tls numbers them; 0: unknown
	Resumed        bool
	Name           string // the server name that the client asked for, in lower case; empty: none
	// ECH says that its hello may hide another name: a hint, see package clienthello.
	// It is known of TLS that passes on unread alone.
	ECH bool
	// ClientCert is the subject of the certificate that the client showed, verified;
	// ClientCertHash the SHA-256 of the certificate, in hexadecimal. Empty: none.
	ClientCert, ClientCertHash string
}

// Try is an attempt that another one followed.
type Try struct {
	Backend string
	Reason  message.Reason // why it failed; of an answer that was retried for its status, what that status stands for
	Status  int            // of an answer that was retried for it, else 0
	GRPC    CallStatus     // the same of a gRPC call
}

// Reset empties the record for the next request; the memory of Tried is kept.
func (r *Record) Reset() {
	tried := r.Tried
	clear(tried)
	*r = Record{Tried: tried[:0]}
}

// code is the status under which the record is counted and logged.
func (r *Record) code() int {
	if r.Status == 0 {
		return r.Reason.Status()
	}
	return r.Status
}
