// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"

	"github.com/weirlb/weir/internal/l4"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/proxyproto"
)

// securedTLVs says in TLVs what a backend would know if TLS had ended there.
func securedTLVs(info *listen.Info) []byte {
	if !info.TLS {
		return nil
	}
	s := proxyproto.Secured{Version: info.TLSVersion, Suite: info.Suite, Resumed: info.Resumed, Certificate: len(info.ClientCerts) > 0}
	if s.Certificate {
		s.CN = info.ClientCerts[0].Subject.CommonName
	}
	out := s.Append(nil)
	if info.ALPN != "" {
		out = proxyproto.AppendTLV(out, proxyproto.TypeALPN, info.ALPN)
	}
	return out
}

// sessionHeader appends the PROXY header of a session: who the client is and, in
// version 2, the name that it asked for and what is known of its TLS.
func sessionHeader(dst []byte, version int, ci *l4.Client) []byte {
	h := proxyproto.Header{Source: ci.Peer, Destination: ci.Local, Transport: proxyproto.Stream, TLVs: slices.Clip(ci.Said), Checksum: ci.Checksum}
	if version > 1 {
		if _, said := h.TLV(proxyproto.TypeAuthority); ci.Name != "" && !said {
			h.TLVs = proxyproto.AppendTLV(h.TLVs, proxyproto.TypeAuthority, ci.Name)
		}
		if ci.TLVs != nil {
			h.TLVs = append(h.TLVs, ci.TLVs()...)
		}
	}
	return h.Append(dst, version)
}
