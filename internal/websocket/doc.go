// SPDX-License-Identifier: Apache-2.0

// Package websocket follows the frames of a WebSocket (RFC 6455) that somebody
// else moves, and writes the one frame that a balancer has to say itself: Close.
//
// It reads headers only. Payload is counted and not looked at, so that it may
// be moved without passing by here, compressed or not. What a peer may not send
// (reserved bits, unknown opcodes, a missing mask, text that is not UTF-8) is
// for the other peer to judge and is followed all the same; only a length that
// no frame can have makes the rest of a stream unreadable.
package websocket
