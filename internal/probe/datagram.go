// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"net"
	"net/netip"
	"sync"
)

// packets are as large as a datagram, or what is looked at of an answer.
var packets = sync.Pool{New: func() any { return new([maxContent]byte) }}

// exchange is talk over UDP: a datagram is sent, and one of those that come back in time
// must be what is wanted. Nothing is sent twice: what is lost fails one probe, and more
// than one in a row takes a backend out. Where no process has the port its kernel says
// so (ICMP port unreachable, RFC 1122 section 4.1.3.3), which ends the probe at once.
func (p *Prober) exchange(c *conn, j *job) verdict {
	t := j.target.Talk
	lost := func(err error) verdict { return dialFailed(err, remote(c.raw), j.timeout) }
	if _, err := io.WriteString(c, t.Send); err != nil {
		return lost(err)
	}
	buf := packets.Get().(*[maxContent]byte)
	defer packets.Put(buf)
	var last *verdict
	for {
		n, err := c.Read(buf[:])
		switch {
		case err == nil && (t.Want == nil || t.Want.in(buf[:n])):
			return verdict{}
		case err == nil:
			v := unwanted(buf[:n], t.Want, "")
			last = &v // what is wanted may come yet
		case isTimeout(err) && last != nil:
			return *last
		case isTimeout(err):
			return p.lost(err, j, "no answer")
		default:
			return lost(err)
		}
	}
}

// remote is where a socket leads.
func remote(c net.Conn) netip.AddrPort {
	if u, ok := c.RemoteAddr().(*net.UDPAddr); ok {
		return u.AddrPort()
	}
	return netip.AddrPort{}
}

// network is what a probe is made over.
func (t *Target) network() string {
	if t.Talk != nil && t.Talk.Datagrams {
		return "udp"
	}
	return "tcp"
}
