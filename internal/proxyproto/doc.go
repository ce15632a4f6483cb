// SPDX-License-Identifier: Apache-2.0

// Package proxyproto reads and writes the PROXY header: one line or one block
// before a connection's own bytes, in which a proxy says for whom it connects
// (HAProxy's proxy-protocol.txt, versions 1 and 2). Read by listen, written by
// upstream and probe. Pure: bytes in, bytes out.
//
// Reading is strict. What the specification leaves to the receiver is decided so:
//
//   - LOCAL, UNKNOWN, UNSPEC (as family or transport) and paths of UNIX sockets
//     are accepted and name nobody: the connection's own addresses hold.
//   - Every other command, family, transport and version is refused.
//   - Addresses are canonical: no leading zeros, no zones; one IPv4 address
//     mapped into IPv6 is the IPv4 address.
//   - TLVs must fill the rest of the block exactly, a CRC32C must be right and
//     the only one, and a unique id has at most 128 bytes.
//   - Version 1 ends within 107 bytes, version 2 within 4 KiB.
//   - Only one header is read. What comes behind it is the connection's, so a
//     second one is content.
//
// A header is decided upon when its last byte is there, whatever pieces it came
// in; what cannot become one any more is refused at once.
package proxyproto
