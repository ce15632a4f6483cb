// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"
	"time"
)

// ProxyOptions are the flags of `weir proxy`. Zero values mean the defaults of
// a configuration, except for Retries.
type ProxyOptions struct {
	Listen         string        // --listen
	Admin          string        // --admin; "none" switches it off
	Balance        string        // --balance
	HealthPath     string        // --health-path; empty: a TCP connect
	HealthInterval time.Duration // --health-interval
	Retries        int           // --retries: attempts after the first; 0 forbids redispatches too
	TLSCert        string        // --tls-cert
	TLSKey         string        // --tls-key
	URLs           []string      // the backends
}

// FromProxy builds the plan of a balancer without a file: one listener "web",
// one pool "app". It is the plan that its own YAML parses to. The error is an
// *Errors whose faults name the flags.
func FromProxy(o ProxyOptions) (*Plan, error) {
	value := func(flag, text string) *node {
		return &node{kind: scalar, text: text, quoted: true, pos: Position{File: flag}, width: 1}
	}
	block := func(flag string, pairs ...any) *node {
		n := &node{kind: mapping, pos: Position{File: flag}, width: 1}
		for i := 0; i < len(pairs); i += 2 {
			if v := pairs[i+1].(*node); v != nil {
				n.pairs = append(n.pairs, pair{value(flag, pairs[i].(string)), v})
			}
		}
		return n
	}
	given := func(flag, text string) *node {
		if text == "" {
			return nil
		}
		return value(flag, text)
	}
	f := &faults{}
	var active, admin, tls *node
	if o.HealthPath != "" || o.HealthInterval != 0 {
		var interval, fast *node
		if o.HealthInterval != 0 {
			interval = value("--health-interval", showDuration(o.HealthInterval))
			if o.HealthInterval < time.Second {
				fast = value("--health-interval", showDuration(o.HealthInterval))
			}
		}
		active = block("--health-path", "path", given("--health-path", o.HealthPath), "interval", interval, "fast_interval", fast)
	}
	if o.Admin != "" {
		admin = block("--admin", "bind", value("--admin", o.Admin))
	}
	if o.TLSCert != "" || o.TLSKey != "" {
		pair := block("--tls-cert and --tls-key", "cert", given("--tls-cert", o.TLSCert), "key", given("--tls-key", o.TLSKey))
		tls = block("--tls-cert", "certificates", &node{kind: list, items: []*node{pair}, pos: Position{File: "--tls-cert"}})
	}
	listen := o.Listen
	if listen == "" {
		listen = ":8080"
	}
	backends := &node{kind: list, pos: Position{File: "backends"}}
	for _, u := range o.URLs {
		backends.items = append(backends.items, value("backend "+u, u))
	}
	if o.Retries < 0 || o.Retries > 9 {
		f.add(Position{File: "--retries"}, 1, strconv.Itoa(o.Retries)+" retries are out of range", "allowed is 0 to 9")
		o.Retries = 1
	}
	root := block("flags",
		"admin", admin,
		"listeners", block("--listen", "web", block("--listen",
			"bind", value("--listen", listen), "tls", tls, "pool", value("backends", "app"))),
		"pools", block("backends", "app", block("backends",
			"balance", given("--balance", o.Balance), "backends", backends,
			"health", block("--health-path", "active", active),
			"retry", block("--retries", "attempts", value("--retries", strconv.Itoa(o.Retries+1))))),
	)
	return decodePlan(f, root, "")
}
