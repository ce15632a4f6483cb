// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// Downstream is the client's half of one exchange, as a codec serves it.
//
// It is used by one goroutine, with two exceptions: while a request body is
// streamed, ReadBody, BodyDone and Trailers belong to a second goroutine and
// everything else to the first; CancelRead and Abort may be called by any.
type Downstream interface {
	// Request is the parsed head, valid until the exchange ends. The exchange
	// edits its fields in place.
	Request() *message.Request

	// ReadBody returns the next piece of content, borrowed until the next call;
	// io.EOF after the last. The first call sends 100 Continue when the client
	// waits for it and WriteInterim has not done so. An error that is an
	// *http1.Error is the client's bad framing or its slowness (body_timeout);
	// any other means that the client is gone.
	ReadBody() ([]byte, error)
	// BodyDone reports that no (more) content is to be read.
	BodyDone() bool
	// Trailers are complete after io.EOF; they may be empty.
	Trailers() *message.Fields
	// CancelRead makes a ReadBody that blocks, and every later one, return an
	// error soon. The connection is closed after such an exchange, so nothing
	// need be restored. It may be called by any goroutine.
	CancelRead()
	// PauseRead makes a ReadBody that waits, and those that would, return an error,
	// until ResumeRead, which is called when nobody reads. Nothing is lost by it.
	PauseRead()
	ResumeRead()

	// WriteInterim writes a 1xx answer at once; it is dropped for HTTP/1.0.
	WriteInterim(h *message.Response) error
	// WriteHead writes the final head and the first piece of content in one
	// write. The codec decides the framing for this peer.
	WriteHead(h *message.Response, body []byte, end bool) error
	// WriteBody writes a piece of content at once. With end it is the last one.
	WriteBody(p []byte, end bool) error
	// WriteTrailers ends a chunked message with trailers.
	WriteTrailers(t *message.Fields) error

	// Conn leads to the connection for splicing, tunnels and the abort watch;
	// nil where the exchange does not own one: then OnAbort, which netconn.Conn
	// has, is to be a method of the Downstream itself.
	Conn() *netconn.Conn
	// Spliceable reports how many bytes of content are still to come and that
	// they lie raw on a plain connection, none of them buffered. It sets the read
	// deadline for the first wait; Spliced moves it.
	Spliceable() (remaining int64, ok bool)
	// Spliced tells the codec that n bytes of content were moved behind its back.
	Spliced(n int64)
	// AnswerSpace reports how many bytes of the answer's content are still to be
	// written, -1 for until the connection ends, and that they may be put on the
	// plain connection as they are.
	AnswerSpace() (remaining int64, ok bool)
	// AnswerMoved tells the codec that n bytes of the answer's content were put
	// there; it moves the write deadline.
	AnswerMoved(n int64)

	// MarkClose makes the answer say Connection: close, and closes after it.
	MarkClose()
	// Abort resets: the client must not take what it got for whole.
	Abort()
	// Takeover gives the connection away after a 101 was written, with the bytes
	// that were read but not consumed.
	Takeover() (c *netconn.Conn, buffered []byte)
}

// Upstream is the backend's half of one exchange, as a codec calls it.
//
// It is used by one goroutine; while a request body is streamed, WriteBody,
// WriteTrailers and BytesWritten belong to a second one.
type Upstream interface {
	// WriteHead writes the head and the first piece of content in one write.
	WriteHead(r *message.Request, body []byte, end bool) error
	// AwaitBy allows the next WriteHead, if that ends the request, to wait until
	// then for the answer's first bytes; ReadHead goes on from there.
	AwaitBy(t balance.Instant)
	// WriteBody writes a piece of content at once. With end it is the last one.
	WriteBody(p []byte, end bool) error
	// WriteTrailers ends a chunked message with trailers.
	WriteTrailers(t *message.Fields) error
	// BytesWritten is what left since WriteHead began, including what a failed
	// write put out: zero means that no byte of the request reached the backend.
	BytesWritten() int64

	// ReadHead reads the next head, interim (1xx) or final. toHEAD says that the
	// request was a HEAD. A deadline error is a timeout and resumable: calling
	// again goes on where it stopped.
	ReadHead(r *message.Response, toHEAD bool, deadline balance.Instant) error
	// ReadBody returns the next piece of content, borrowed until the next call;
	// io.EOF after the last. It waits until the deadline set on Conn for reads;
	// such a timeout is resumable.
	ReadBody() ([]byte, error)
	// BodyDone reports that no (more) content is to be read, as far as is known
	// without reading from the connection.
	BodyDone() bool
	// Buffered reports that ReadBody would return without waiting.
	Buffered() bool
	// Trailers are complete after io.EOF; they may be empty.
	Trailers() *message.Fields
	// ResponseStarted reports that a byte of an answer has arrived.
	ResponseStarted() bool
	// CutShort reports that the connection was ended because the deadline of the
	// backend's drain has passed.
	CutShort() bool
	// Unprocessed reports, of an exchange that failed, that the backend has said
	// that it did not act on what had left of the request. Then it may be sent again
	// whatever its method.
	Unprocessed() bool
	// Refusable reports that a backend may say of a request that has left that it
	// was not processed.
	Refusable() bool
	// Reused reports that the connection has carried another request before.
	Reused() bool
	// Unacked reports that the backend's host has not acknowledged what was sent,
	// for as long as it takes to send it again.
	Unacked() bool

	// SetReadDeadline bounds the waiting of ReadBody, SetWriteDeadline that of
	// what writes; 0: not at all. What waits at that moment obeys, too. They may be
	// called by any goroutine.
	SetReadDeadline(t balance.Instant)
	SetWriteDeadline(t balance.Instant)
	// Cut ends the exchange at once: what waits on it and every later call fails,
	// and the backend learns of it. It may be called by any goroutine, more than
	// once, until Close or Put.
	Cut()

	// Conn is nil where the exchange does not own a connection.
	// Conn, Spliceable and Spliced: as for Downstream. BodySpace and
	// BodyMoved are to the request's content what AnswerSpace and AnswerMoved
	// are to the answer's; deadlines are the caller's.
	Conn() *netconn.Conn
	Spliceable() (remaining int64, ok bool)
	Spliced(n int64)
	BodySpace() (remaining int64, ok bool)
	BodyMoved(n int64)

	// Reusable reports that the message is complete both ways, that no close was
	// announced and that no stray byte has arrived.
	Reusable() bool
	// Release gives the buffers back before the connection is kept; the answer's
	// head is no longer valid.
	Release()
	// Takeover gives the connection away after a 101, whose head is not valid any
	// more.
	Takeover() (c *netconn.Conn, buffered []byte)
	// Close closes the connection.
	Close()
}

// Target leads to the connections of one backend. balance.Backend's attachment
// must implement it; OverHTTP1 makes one of upstream's. It is safe for
// concurrent use.
type Target interface {
	// Get returns an idle connection that may be used, or nil. With unsafe only
	// one that was used so recently that the backend cannot have closed it (S8).
	Get(now balance.Instant, unsafe bool) Upstream
	// Dial makes a fresh connection. Errors are *upstream.DialError.
	Dial(now, deadline balance.Instant, abort <-chan struct{}) (Upstream, error)
	// Put takes a connection back after a complete exchange.
	Put(u Upstream, now balance.Instant)
}
