// SPDX-License-Identifier: Apache-2.0

package observe

import "net/netip"

// LongLived says whose a session, a flow, a tunnel or a stream is. It does not change
// while that is open.
type LongLived struct {
	Kind     string // session, flow, tunnel or stream
	Protocol string // of the listener for sessions and flows: tcp, sni or udp; else http
	Listener string
	Route    string
	Pool     string
	Client   netip.AddrPort // port 0: not known, as forwarding headers name none; invalid: unknown
	Name     string         // the server name or host that was asked for; empty: none
}
