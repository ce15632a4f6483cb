// SPDX-License-Identifier: Apache-2.0

package l4

import "github.com/weirlb/weir/internal/observe"

// Facts says whose the session is. It is for Sessions, between Enter and Leave.
func (s *Session) Facts() observe.LongLived {
	f := s.rt.facts("session")
	f.Client, f.Name = s.cl.Peer, s.cl.Name
	return f
}

// Facts says whose the flow is. It is for FlowSessions, between Enter and Leave.
func (f *Flow) Facts() observe.LongLived {
	out := f.rt.facts("flow")
	out.Client = f.key.from()
	return out
}

func (r *Route) facts(kind string) observe.LongLived {
	return observe.LongLived{Kind: kind, Protocol: r.Protocol, Listener: r.Listener, Route: r.Name, Pool: r.PoolName}
}
