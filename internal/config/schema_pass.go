// SPDX-License-Identifier: Apache-2.0

package config

import "slices"

// checkPasses holds routes that lead to another listener against it, and finds
// listeners that nobody can reach.
func (d *decoder) checkPasses(root *node) {
	p := root.get("listeners")
	if p == nil || p.value.kind != mapping {
		return // reported
	}
	section := p.value
	names := make([]string, 0, len(section.pairs))
	for _, p := range section.pairs {
		names = append(names, p.key.text)
	}
	led := map[string]bool{}
	for i := range d.plan.Listeners {
		l := &d.plan.Listeners[i]
		for j := range l.Routes {
			if r := &l.Routes[j]; r.Listener != "" {
				led[r.Listener] = true
				d.checkPass(section, names, l, r, routeNode(section.at(l.Name), j, r))
			}
		}
	}
	for i := range d.plan.Listeners {
		l := &d.plan.Listeners[i]
		n := section.at(l.Name)
		if p := n.get("bind"); !led[l.Name] && (p == nil && n.lacks("bind") || p != nil && p.value.kind == list && len(p.value.items) == 0) {
			d.fault(keyOf(section, l.Name), "listener "+l.Name+" has no address", `add bind, such as bind: ":8080"`)
		}
	}
}

// routeNode is where a route of a listener stands.
func routeNode(n *node, i int, r *Route) *node {
	if routes := n.at("routes"); routes.kind == list && i < len(routes.items) {
		return routes.items[i]
	}
	return &node{kind: scalar, pos: r.Pos, width: 1}
}

func (d *decoder) checkPass(section *node, names []string, l *Listener, r *Route, n *node) {
	at := n.at("listener")
	if l.Protocol != "sni" {
		d.fault(keyOf(n, "listener"), "listener is a destination of routes of sni listeners, and listener "+l.Name+" speaks "+l.Protocol, "remove it, or write protocol: sni")
		return
	}
	to := d.plan.Listener(r.Listener)
	switch {
	case !slices.Contains(names, r.Listener):
		fix := "add it under listeners"
		if near := nearest(r.Listener, names); near != "" && near != l.Name {
			fix = "did you mean " + near + "?"
		}
		d.fault(at, "there is no listener "+quote(r.Listener), fix)
	case to == nil: // reported
	case to.Protocol != "http" && to.Protocol != "tcp":
		d.fault(at, "listener "+to.Name+" speaks "+to.Protocol+" and ends no TLS", "name a listener with tls, of protocol http or tcp")
	case to.TLS == nil && section.at(to.Name).lacks("tls"):
		d.fault(at, "listener "+to.Name+" has no tls, and what comes here is TLS", "give it tls: {certificates: [{cert: FILE, key: FILE}]}")
	}
	for _, p := range writeBlock(&writer{plan: d.plan}, routeFields, r, &routesField.ref).pairs { // what is not at its default
		if name := p.key.text; name == "retry" || name == "limits" {
			d.fault(keyOf(n, name), "a route to a listener has no "+name+": the routes there have", "remove it, or give it to the routes of listener "+r.Listener)
		}
	}
}
