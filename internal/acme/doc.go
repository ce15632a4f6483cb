// SPDX-License-Identifier: Apache-2.0

// Package acme obtains certificates and renews them (RFC 8555), by certmagic. It
// answers the challenges of authorities through weir's own listeners: http-01 (RFC
// 8555, section 8.3) where they are plain, tls-alpn-01 (RFC 8737) where they speak
// TLS. It binds no address that others can reach.
//
// A certificate is used as long as there is one: an authority that cannot be
// reached, or that refuses, costs log lines and a metric, and no handshake. Until
// there is a first one, handshakes for the name fail, and no others.
//
// Several processes, on several machines, may share one storage folder: one of
// them orders, and any of them answers the challenge.
//
// Where nobody makes a Manager nothing of this runs.
package acme
