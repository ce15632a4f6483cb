// SPDX-License-Identifier: Apache-2.0

package engine

import "github.com/weirlb/weir/internal/admin"

// host is what the kernel says of weir's network namespace; nil where it does
// not say.
func (e *Engine) host() *admin.Host {
	h := e.metrics.Host()
	if !h.Known {
		return nil
	}
	return &admin.Host{
		AcceptOverflows: h.AcceptOverflows, TimeWait: h.TimeWait,
		Destination: h.Destination, PortsFree: h.PortsFree,
	}
}

// acceptQueue tells how much of a listener's accept queues is used.
func acceptQueue(out *admin.Listener, l *liveListener) {
	g := l.gauges()
	out.AcceptQueue, out.AcceptQueueLimit = g.AcceptQueue, g.AcceptQueueLimit
	for _, c := range g.Certificates {
		out.Certificates = append(out.Certificates, admin.Certificate{Name: c.Name, NotAfter: c.NotAfter, ACME: c.Issued, Error: c.Err})
	}
}
