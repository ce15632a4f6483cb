// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"net"
	"net/netip"

	"github.com/weirlb/weir/internal/proxyproto"
)

// introduce sends the PROXY header of a probe on its fresh connection: LOCAL, or
// in version 1, which has no word for it, the connection's own addresses, as the
// specification recommends. A connection that said hello is closed in an orderly
// way: a reset could overtake the header.
func introduce(c net.Conn, version int) error {
	h := proxyproto.Header{Local: true, Source: addrOf(c.LocalAddr()), Destination: addrOf(c.RemoteAddr()), Transport: proxyproto.Stream}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(-1) // fails only on a socket that is broken already
	}
	_, err := c.Write(h.Append(make([]byte, 0, proxyproto.MaxV1), version))
	return err
}

func addrOf(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return t.AddrPort()
}
