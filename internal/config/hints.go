// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
)

// elsewhere are keys that other balancers, or habit, call something else: by the
// word in lower case without dashes and underscores, what is meant here. The
// first of them that is known where the word stands is suggested; where none is,
// the first one with a place is named, as seen from there.
var elsewhere = map[string][]string{
	// at the top
	"upstream": {"pools", "pool", "backends"}, "upstreams": {"pools"}, "backend": {"backends", "pool", "pools"}, "clusters": {"pools"}, "services": {"pools"}, "service": {"pool", "pools"},
	"frontend": {"listeners"}, "frontends": {"listeners"}, "entrypoints": {"listeners"}, "server": {"backends", "url", "listeners"}, "servers": {"backends", "listeners"},
	"maxconn": {"max_connections", "limits.max_connections"}, "loglevel": {"level", "log.level"}, "accesslog": {"access", "log.access"}, "logging": {"log"},
	"includes": {"include"}, "import": {"include"},
	// of listeners
	"port": {"bind"}, "address": {"bind", "url"}, "addresses": {"bind", "backends"}, "addr": {"bind", "url"}, "listen": {"bind"}, "ssl": {"tls"}, "https": {"tls", "scheme"},
	"servername": {"listeners.NAME.routes[].match.host"}, "locations": {"routes", "listeners.NAME.routes[].match.path_prefix"}, "location": {"routes", "listeners.NAME.routes[].match.path_prefix"}, "rules": {"routes"}, "paths": {"routes"},
	"certificate": {"certificates", "cert"}, "certfile": {"cert"}, "crt": {"cert"}, "keyfile": {"key"}, "privatekey": {"key"}, "certs": {"certificates"},
	"sslcertificate": {"listeners.NAME.tls.certificates"}, "sslcertificatekey": {"listeners.NAME.tls.certificates"},
	"http2": {"h2", "listeners.NAME.http.h2"}, "enablehttp2": {"h2", "listeners.NAME.http.h2"}, "http2enabled": {"h2", "listeners.NAME.http.h2"}, "alpnprotocols": {"listeners.NAME.http.h2"},
	// of routes
	"reverseproxy": {"pool", "pools"}, "proxypass": {"pool"}, "defaultbackend": {"pool"}, "usebackend": {"pool"}, "cluster": {"pool"}, "target": {"pool"}, "to": {"pool"},
	"prefix": {"path_prefix"}, "pathprefix": {"path_prefix"}, "regex": {"path_regex"}, "hosts": {"host"}, "hostname": {"host"}, "domain": {"host"}, "domains": {"host"}, "method": {"methods"},
	"return": {"respond"}, "response": {"respond"}, "when": {"match"}, "status": {"code"},
	"sslprotocols": {"listeners.NAME.tls.min_version"}, "clientmaxbodysize": {"listeners.NAME.http.max_body"}, "setrealipfrom": {"listeners.NAME.trusted_proxies"},
	"proxysetheader": {"request_headers", "listeners.NAME.routes[].request_headers.set"}, "setheader": {"set"}, "setheaders": {"set"},
	"addheader": {"add", "response_headers", "listeners.NAME.routes[].response_headers.add"}, "removeheader": {"remove"}, "removeheaders": {"remove"},
	// of pools
	"maxfails": {"consecutive", "pools.NAME.health.passive.consecutive"}, "failtimeout": {"eject", "pools.NAME.health.passive.eject"},
	"inter": {"interval", "pools.NAME.health.active.interval"}, "proxyconnecttimeout": {"connect", "pools.NAME.timeouts.connect"}, "connecttimeout": {"connect", "pools.NAME.timeouts.connect"},
	"proxyreadtimeout": {"response_header", "pools.NAME.timeouts.response_header"}, "proxynextupstream": {"when", "pools.NAME.retry.when"}, "proxynextupstreamtries": {"attempts", "pools.NAME.retry.attempts"},
	"keepalives": {"max_idle", "pools.NAME.upstream.max_idle"}, "maxconns": {"pools.NAME.limits.connections"},
	"targets": {"backends"}, "endpoints": {"backends"}, "members": {"backends"}, "hostsports": {"backends"},
	"algorithm": {"balance"}, "lbpolicy": {"balance"}, "lb": {"balance"}, "policy": {"balance"}, "loadbalancing": {"balance"}, "balancing": {"balance"}, "strategy": {"balance"},
	"healthcheck": {"health", "health.active"}, "healthchecks": {"health"}, "check": {"health"}, "checks": {"health"},
	"retries": {"retry", "attempts"}, "stickysession": {"sticky"}, "slowstart": {"slow_start"}, "name": {"id", "cookie"}, "uri": {"path", "url"},
}

// foreign returns what a word means here: a key that is known where it stands,
// or the full name of one that is elsewhere.
func foreign(word string, known []string) (key string, here bool) {
	all := elsewhere[strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(word))]
	for _, k := range all {
		if slices.Contains(known, k) {
			return k, true
		}
	}
	for _, k := range all {
		if strings.Contains(k, ".") {
			return seenFrom(k, known), false
		}
	}
	return "", false
}

// seenFrom shortens a full name to what is below the innermost of its blocks that
// has such keys: "match.host" on a route.
func seenFrom(full string, known []string) string {
	steps := strings.Split(full, ".")
	for i := len(steps) - 2; i > 0; i-- {
		if slices.Contains(known, strings.TrimSuffix(steps[i], "[]")) {
			return strings.Join(steps[i:], ".")
		}
	}
	return full
}

// otherWords are values that other balancers call something else.
var otherWords = map[string]string{
	"least_conn": "least_request", "leastconn": "least_request", "least_connections": "least_request", "least_connection": "least_request", "least_time": "peak_ewma",
	"rr": "round_robin", "wrr": "round_robin", "weighted_round_robin": "round_robin", "static-rr": "round_robin",
	"ip_hash": "maglev", "source": "maglev", "uri": "maglev", "hash": "maglev", "consistent_hash": "ring_hash", "ketama": "ring_hash", "ewma": "peak_ewma",
	"warning": "warn", "err": "error", "notice": "info", "trace": "debug", "fatal": "error",
}
