// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// dial connects. Closing the connection resets it: an orderly close would leave
// a socket in TIME_WAIT for every probe.
//
// Probes that end here are few; what is only a connection goes to the connector.
func dial(ctx context.Context, network string, to netip.AddrPort, deadline time.Time) (net.Conn, error) {
	d := net.Dialer{Deadline: deadline, KeepAlive: -1}
	c, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails only on a socket that is broken already
	}
	return c, nil
}
