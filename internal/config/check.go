// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"path"
	"slices"
	"strings"
)

// checkPlan makes the checks that need the whole plan.
func checkPlan(d *decoder, root *node) {
	d.checkPools(root)
	d.checkSchemes(root)
	d.checkPasses(root)
	d.checkBinds(root)
	d.checkLoops(root)
}

// checkPools holds the names of pools against the pools.
func (d *decoder) checkPools(root *node) {
	section := root.get("pools")
	broken := section == nil && (!root.lacks("pools") || slices.Contains(d.misplaced, "pools")) || section != nil && section.value.kind != mapping // reported
	known := map[string]bool{}
	var names []string
	if section != nil {
		for _, p := range section.value.pairs {
			known[p.key.text] = true
			names = append(names, p.key.text)
		}
	}
	used := map[string]bool{}
	for _, r := range d.poolRefs {
		used[r.name] = true
		if known[r.name] || broken {
			continue
		}
		fix := "add it under pools"
		if near := nearest(r.name, names); near != "" {
			fix = "did you mean " + near + "?"
		} else if len(names) > 0 && len(names) <= 8 {
			fix = "use " + oneOf(names) + ", or add it under pools"
		}
		d.fault(r.at, "there is no pool "+quote(r.name), fix)
	}
	if section == nil {
		return
	}
	for _, p := range section.value.pairs {
		if !used[p.key.text] {
			d.warn(p.key, "unused_pool", "no route leads to pool "+p.key.text)
		}
	}
}

// socket is an address that weir itself listens on.
type socket struct {
	what string
	bind string
	at   *node
	udp  bool // its ports are others than those of TCP
}

func (d *decoder) sockets(root *node) []socket {
	var all []socket
	udp := false
	add := func(what, bind string, at *node) {
		if bind != "" {
			all = append(all, socket{what, bind, at, udp})
		}
	}
	add("the admin API", d.plan.Admin.Bind, root.at("admin", "bind"))
	add("status", d.plan.Status.Bind, root.at("status", "bind"))
	for i := range d.plan.Listeners {
		l := &d.plan.Listeners[i]
		at := root.at("listeners", l.Name, "bind")
		udp = l.Datagrams()
		for j, bind := range l.Bind {
			place := at
			if at.kind == list && j < len(at.items) {
				place = at.items[j]
			}
			add("listener "+l.Name, bind, place)
		}
	}
	return all
}

// checkBinds finds addresses that are claimed twice.
func (d *decoder) checkBinds(root *node) {
	all := d.sockets(root)
	for i, b := range all {
		for _, a := range all[:i] {
			if a.udp == b.udp && overlap(a.bind, b.bind) {
				d.fault(b.at, b.what+" listens on "+quote(b.bind)+", which "+a.what+" has ("+quote(a.bind)+")", "give one of them another"+portOrName(b.bind))
				break
			}
		}
	}
}

func portOrName(bind string) string {
	if strings.HasPrefix(bind, "systemd:") {
		return " socket"
	}
	return " port"
}

// overlap reports whether two sockets cannot both be bound.
func overlap(a, b string) bool {
	pathA, unixA := strings.CutPrefix(a, "unix:")
	pathB, unixB := strings.CutPrefix(b, "unix:")
	if unixA || unixB {
		return unixA && unixB && path.Clean(pathA) == path.Clean(pathB)
	}
	if strings.HasPrefix(a, "systemd:") || strings.HasPrefix(b, "systemd:") {
		return a == b // where the manager has bound them does not show in the text
	}
	hostA, portA := splitBind(a)
	hostB, portB := splitBind(b)
	if portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || covers(hostA, hostB) || covers(hostB, hostA) || sameAddr(loopbackName(hostA), loopbackName(hostB))
}

// loopbackName is the address that binding to localhost takes.
func loopbackName(host string) string {
	if host == "localhost" {
		return "127.0.0.1"
	}
	return host
}

// covers reports whether the unspecified address a takes in b.
func covers(a, b string) bool {
	if a == "" || a == "::" {
		return true
	}
	addr, err := netip.ParseAddr(b)
	return a == "0.0.0.0" && (err != nil || addr.Unmap().Is4())
}

func sameAddr(a, b string) bool {
	x, err1 := netip.ParseAddr(a)
	y, err2 := netip.ParseAddr(b)
	return err1 == nil && err2 == nil && x.Unmap() == y.Unmap()
}

// checkLoops refuses backends that are weir's own admin or status address
// (clients must not reach those through a listener), and warns of backends that
// are its own listeners.
func (d *decoder) checkLoops(root *node) {
	all := d.sockets(root)
	for i := range d.plan.Pools {
		p := &d.plan.Pools[i]
		for j := range p.Backends {
			b := &p.Backends[j]
			for _, s := range all {
				if b.Address == "" || s.udp != p.Datagrams() || !reaches(b.Address, s.bind) {
					continue
				}
				at := &node{kind: scalar, pos: b.Pos, width: 1}
				if strings.HasPrefix(s.what, "listener ") {
					d.warn(at, "forwards_to_self", "backend "+b.ID+" is weir's own "+s.what+": requests may go round in circles")
				} else {
					d.fault(at, "backend "+b.ID+" is where weir serves "+s.what, "remove it: a listener must not lead there")
				}
				break
			}
		}
	}
}

// OwnService names what of weir's own services for operators an address leads
// to, as far as the text tells: "the admin API", "status", or nothing. Traffic
// must not be sent there.
func (p *Plan) OwnService(address string) string {
	switch {
	case p.Admin.Bind != "" && reaches(address, p.Admin.Bind):
		return "the admin API"
	case p.Status.Bind != "" && reaches(address, p.Status.Bind):
		return "status"
	default:
		return ""
	}
}

// reaches reports whether connecting to an address of this machine's, as far as
// the text tells, arrives at a bind.
func reaches(address, bind string) bool {
	if strings.HasPrefix(bind, "unix:") || strings.HasPrefix(bind, "systemd:") {
		return false
	}
	host, port := splitBind(address)
	on, onPort := splitBind(bind)
	if port != onPort {
		return false
	}
	if host == on || sameAddr(host, on) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	local := host == "localhost" || err == nil && (addr.Unmap().IsLoopback() || addr.IsUnspecified())
	if !local {
		return false
	}
	unspecified := on == "" || on == "::" || on == "0.0.0.0"
	return unspecified || on == "localhost" || host == "localhost" && isPrivate(bind) || err == nil && addr.IsUnspecified() && isPrivate(bind)
}

// finishWarnings drops what is silenced and sorts the rest.
func (d *decoder) finishWarnings() []Warning {
	out := slices.DeleteFunc(d.warnings, func(w Warning) bool { return slices.Contains(d.plan.Check.Silence, w.Name) })
	slices.SortStableFunc(out, func(a, b Warning) int {
		return d.compare(a.Pos, b.Pos)
	})
	var lines lineHider
	for i := range out {
		out[i].Line, _ = lines.hide(out[i].Pos, out[i].Line)
	}
	return out
}
