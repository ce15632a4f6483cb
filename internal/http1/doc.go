// SPDX-License-Identifier: Apache-2.0

// Package http1 is the HTTP/1.1 codec (RFC 9110, RFC 9112), both halves: stage
// 2 of 5 receives a connection from listen and hands each request's head to l7;
// the calling half writes l7's attempts to a backend for upstream.
//
// # Strictness
//
// Whatever a second parser could read differently is refused, never repaired:
// with 400 and a reason toward clients, as bad_response toward backends. That
// is: Content-Length beside Transfer-Encoding; a repeated or differing
// Content-Length, lists included; a transfer coding other than exactly one
// "chunked", or any in HTTP/1.0; bare LF or CR; obs-fold; white space before
// the colon; names that are empty or no token; control characters in values;
// names that look like a framing field (Content_Length); chunk sizes with
// signs, prefixes, white space or too many digits; a missing, repeated, empty
// or malformed Host; userinfo; a fragment; a request-target of the wrong form.
//
// Decided where the RFCs leave it open:
//   - one CRLF before a request line is skipped (RFC 9112 section 2.2), a
//     second one is an error; none is skipped before a status line;
//   - Expect other than 100-continue is answered 417; in HTTP/1.0 the field is
//     dropped, and so it is on a request without content;
//   - Content-Length with leading zeros is forwarded without them;
//   - an absolute-form target replaces Host (RFC 9112 section 3.2.2);
//   - bytes from 0x80 on pass in targets and values, as data;
//   - a status line may lack the space before an empty reason phrase;
//   - framing fields on 1xx and 204, and Transfer-Encoding on 304 and on answers
//     to HEAD, are dropped: the message ends with its head, and where a body was
//     announced on 1xx or 204 the connection is not used again;
//   - chunk extensions must follow the grammar without white space, are bounded
//     and dropped, because chunks are framed anew;
//   - HTTP/1.0 clients that ask for keep-alive get it, as from an origin.
//
// # Memory
//
// Heads are parsed in place in one pooled buffer and addressed by offset. An
// idle connection, of either half, holds no buffer; on the serving side a plain
// one also gives up its goroutine (Server.Park).
//
//	parse:  request.go target.go response.go fields.go names.go chars.go chunk.go limits.go error.go
//	write:  append.go outgoing.go
//	read:   buffer.go incoming.go
//	serve:  server.go registry.go wait.go exchange.go answer.go
//	call:   client.go
package http1
