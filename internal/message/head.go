// SPDX-License-Identifier: Apache-2.0

package message

// Body says how a message's content is delimited (RFC 9112 section 6).
type Body uint8

// The ways to delimit a body.
const (
	NoBody     Body = iota // no content follows
	Sized                  // ContentLength bytes follow
	Chunked                // chunked transfer coding, possibly with trailers
	UntilClose             // responses only: content ends with the connection
	Streamed               // framed by the protocol below (HTTP/2, HTTP/3)
)

// Trailers reports that a message framed so may end with trailers.
func (b Body) Trailers() bool { return b == Chunked || b == Streamed }

// Request is the head of a request. Byte slices are borrowed from the codec.
type Request struct {
	Method    []byte // as received: case-sensitive
	Target    []byte // request-target exactly as received
	Path      []byte // the target's path as received; "*" for OPTIONS *
	Query     []byte // without "?"; nil when there is none
	Authority []byte // from the target when it is absolute, else the Host field; empty only for HTTP/1.0 without Host
	Routed    []byte // the path that is forwarded: normalised by route, or Path itself under raw
	Scratch   []byte // route's memory for Routed; codecs keep it from request to request

	Major, Minor uint8 // protocol version of the message
	TLS          bool  // it arrived over TLS
	// ServerName is what the connection's client asked for in TLS, in lower case
	// without a trailing dot; empty: nothing, or there is no TLS. l7 sets it.
	ServerName string

	Fields        Fields
	Body          Body
	ContentLength int64 // meaningful when Body is Sized
	Trailing      bool  // trailers may follow Sized content, too: it came over HTTP/2

	Close           bool // the peer will not send another request on this connection
	ExpectContinue  bool // Expect: 100-continue
	WebSocket       bool // Upgrade: websocket with Connection: upgrade, GET, HTTP/1.1
	ConnectionNamed bool // a Connection field names fields beyond close, keep-alive and upgrade
	KeepAliveAsked  bool // HTTP/1.0 with Connection: keep-alive
}

// Response is the head of a response. Byte slices are borrowed from the codec.
type Response struct {
	Status       int
	Reason       []byte // reason phrase as received, may be empty
	Major, Minor uint8

	Fields        Fields
	Body          Body
	ContentLength int64 // meaningful when Body is Sized; also set from the field of a HEAD answer or 304, -1 when absent
	Trailing      bool  // trailers may follow Sized content, too: it goes over HTTP/2 from end to end

	Close           bool // the peer closes after this message
	WebSocket       bool // 101 with Upgrade: websocket
	ConnectionNamed bool
	KeepAlive       int64 // seconds announced by Keep-Alive: timeout=N, 0 when absent
}

// Trailers reports that the message may end with trailers.
func (r *Request) Trailers() bool { return r.Body.Trailers() || r.Trailing }

// Trailers reports that the message may end with trailers.
func (r *Response) Trailers() bool { return r.Body.Trailers() || r.Trailing }
