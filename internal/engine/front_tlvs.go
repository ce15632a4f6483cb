// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/weirlb/weir/internal/l4"
	"github.com/weirlb/weir/internal/proxyproto"
)

// sessionHeader appends the PROXY header of a session: who the client is and, in
// version 2, the name that it asked for and what is known of its TLS, as l7 says it of
// connections that requests come on.
func sessionHeader(dst []byte, version int, ci *l4.Client) []byte {
	h := proxyproto.Header{Source: ci.Peer, Destination: ci.Local, Transport: proxyproto.Stream, TLVs: ci.Said, Checksum: ci.Checksum}
	if version > 1 {
		if ci.TLVs != nil {
			h.Add(ci.TLVs())
		}
		if ci.Name != "" { // of TLS that passes on
			h.Add(proxyproto.AppendTLV(nil, proxyproto.TypeAuthority, ci.Name))
		}
	}
	return h.Append(dst, version)
}
