// SPDX-License-Identifier: Apache-2.0

package config

import "slices"

var layersField = &several[Check, Layer]{
	s:  spec{name: "layers", kind: "list", doc: "what else retries between the user and the backends: clients, a mesh, another balancer; names, or mappings with these keys", subs: specsOf(layerFields), list: true},
	at: func(c *Check) *[]Layer { return &c.Layers }, what: "layer", fields: layerFields,
	short: func(d *decoder, n *node, l *Layer) bool {
		v, ok := text("layer", goodName).scan(d, n, &spec{name: "layer"})
		l.Name = v
		return ok
	},
	brief: func(_ *writer, l *Layer) *node {
		if l.Attempts != defaultsOf(layerFields).Attempts {
			return nil
		}
		return textNode(l.Name)
	},
	end: func(d *decoder, _, n *node, l *Layer) {
		if n.kind == mapping && n.get("name") == nil {
			d.fault(n, "a layer has no name", "add name, such as {name: mesh, attempts: 3}")
		}
	},
	ref: defaultsOf(layerFields),
}

var layerFields = []field[Layer]{
	key("name", "", text("layer", goodName), func(l *Layer) *string { return &l.Name }, "how findings call it"),
	key("attempts", "2", integer(1, 100), func(l *Layer) *int { return &l.Attempts }, "how often it tries, the first time included"),
}

var findingName codec[string] = simple[string]{
	name: "name of a finding",
	parse: func(text string) (string, string, string) {
		if slices.Contains(findingNames, text) {
			return text, "", ""
		}
		fix := "write a name as weir check shows it in [ ]; docs/configuration.md lists them all"
		if near := nearest(text, findingNames); near != "" {
			fix = "did you mean " + near + "?"
		}
		return "", quote(text) + " is no finding of weir check", fix
	},
	format: func(s string) string { return s },
}

// FindingNames returns the names that check.silence may list, sorted: those of
// Warnings, and of what internal/lint finds.
func FindingNames() []string { return slices.Clone(findingNames) }

var findingNames = []string{
	"acme_unreachable", "adaptive_never", "admin_exposed", "all_backup", "backup_priority", "budget_off",
	"certificate_chain", "certificate_expiring", "certificate_names", "certificate_weak",
	"check_deep", "check_expects_errors", "check_host", "check_liveness", "check_off", "check_port", "check_prefix", "check_tcp",
	"connect_long", "debug_headers", "detection_long", "detection_slo", "discover_file", "drain_forever", "drain_spread",
	"ewma_unused", "fall_1", "forwards_to_self", "front_blind", "front_detection", "front_idle", "front_untrusted",
	"grace_short", "grpc_plain", "h2_unused", "hash_client_ip", "hash_unbounded", "hash_unused", "insecure_skip_verify",
	"keepalive_long", "localhost", "maglev_table", "max_ejected_all", "mixed_schemes", "panic_off", "passive_off", "ports",
	"priority_unused", "probe_timeout", "proxy_optional", "retry_layers", "retry_when", "ring_nodes", "same_address", "send_proxy_cost", "shutdown_delay", "single_backend",
	"slow_clients", "slow_start_off", "sni_default", "sni_ech", "sni_host", "sni_overlap", "sticky_load", "sticky_name", "sticky_secure", "sticky_unsigned",
	"subset_unused", "timeout_off", "timeouts_nest", "tls_server_name", "tls_unused", "trust_everyone",
	"unreachable_route", "unused_pool", "weight_0", "zone_unused",
}
