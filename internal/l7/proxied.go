// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"net/netip"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/proxyproto"
)

// Proxied is what the PROXY header of a client connection said beside its
// addresses. It is immutable.
type Proxied struct {
	Peer     netip.AddrPort // who sent it; invalid for unix sockets
	TLVs     []byte         // of version 2, as they came; nil: none
	Checksum bool           // it had a CRC32C
}

// Introducing is a Target whose connections begin with a PROXY header. For
// returns the connections of the client that the header names, which nobody
// else's requests are sent on. The header is not kept.
type Introducing interface {
	For(header []byte) Target
}

// header returns the PROXY header that backends are told this client by, in
// version 1 or 2. It is written once per version and connection.
func (c *ClientInfo) header(version int) []byte {
	h := &c.scratch.headers[version-1]
	if *h == nil {
		p := proxyproto.Header{Source: c.Peer, Destination: c.Local, Transport: proxyproto.Stream}
		if c.Proxied != nil {
			p.TLVs, p.Checksum = c.Proxied.TLVs, c.Proxied.Checksum
		}
		if version > 1 {
			p.Add(c.Secure.TLVs())
		}
		*h = p.Append(nil, version)
	}
	return *h
}

// targetOf returns a backend's connections, those of the client where the route
// says that backends are told who it is, and those that take WebSockets for a
// request that asks for one.
func (e *exchange) targetOf(b *balance.Backend) (Target, bool) {
	t, ok := b.Attachment().(Target)
	if v := e.rt.ProxyHeader; v != 0 {
		if i, ok := t.(Introducing); ok {
			t = i.For(e.ci.header(v))
		}
	}
	if e.req.WebSocket {
		if u, ok := t.(Upgrading); ok {
			t = u.ForUpgrade()
		}
	}
	return t, ok
}

// proxiedBy is who sent the connection's PROXY header; invalid: nobody.
func (c *ClientInfo) proxiedBy() netip.Addr {
	if c.Proxied == nil {
		return netip.Addr{}
	}
	return c.Proxied.Peer.Addr()
}
