// SPDX-License-Identifier: Apache-2.0

// Package clienthello reads what a TLS client says in clear before anything is
// encrypted: the name it asks for, the protocols it offers, and whether it hides
// another name (ECH). Nothing is decrypted, and nothing is answered.
//
// A Scanner takes the bytes as they arrive and says when the ClientHello is
// complete, in whatever pieces: segments of one byte, and messages that are spread
// over many records (RFC 8446, section 5.1). It holds at most MaxMessage bytes. Who
// reads the socket keeps what was read, to send it on unchanged.
//
// It is strict where a second reader could see something else: an extension that
// is there twice, two names, a name that no host has, bytes behind the message. What
// it does not know (GREASE of RFC 8701 among it) is skipped.
package clienthello
