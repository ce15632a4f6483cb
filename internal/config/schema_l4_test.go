// SPDX-License-Identifier: Apache-2.0

package config

import "testing"

// TestDatagramChecks: how backends of UDP are asked follows from what is said of it.
func TestDatagramChecks(t *testing.T) {
	for active, want := range map[string]string{
		"{}":                           "off",
		"{interval: 3s}":               "off",
		"off":                          "off",
		"{protocol: auto}":             "off",
		`{send: 'ping\n'}`:             "udp",
		"{send: ping, port: 99}":       "udp",
		"{protocol: auto, send: ping}": "udp",
		"{protocol: udp, send: ping}":  "udp",
		"{protocol: tcp, send: ping}":  "tcp",
		"{protocol: tcp}":              "tcp",
		"{port: 99}":                   "tcp",
		"{port: 99, path: /x}":         "http",
	} {
		text := "listeners: {dns: {bind: \":53\", protocol: udp, pool: dns}}\npools: {dns: {backends: [\"udp://10.0.0.1:53\"], health: {active: " + active + "}}}\n"
		plan, err := Parse("weir.yaml", []byte(text), nil)
		if err != nil {
			t.Errorf("%s: %v", active, err)
			continue
		}
		a := &plan.Pool("dns").Active
		got := a.Protocol
		if a.Off {
			got = "off"
		}
		if got != want {
			t.Errorf("%s: %s, want %s", active, got, want)
		}
	}
}
