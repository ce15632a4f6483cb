// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/tls"
	"slices"
	"strconv"
	"strings"
	"time"
)

var listenerTLSFields = []field[ListenerTLS]{
	certificatesField,
	key("acme", "[]", oneOrMore(listOf(text("host", acmeName), nil)), func(t *ListenerTLS) *[]string { return &t.ACME },
		"names whose certificates are obtained and renewed by ACME, one for each; acme says from whom"),
	key("alpn", "[]", listOf(protocolID, nil), func(t *ListenerTLS) *[]string { return &t.ALPN },
		"of tcp listeners: protocols that are agreed on, the first that a client offers; without, none is, whatever is offered. http.h2 says it of http listeners").off("none", nil),
	key("min_version", "1.2", tlsVersion, func(t *ListenerTLS) *uint16 { return &t.MinVersion }, "oldest TLS version"),
	keys("client_auth", "certificates of clients", func(t *ListenerTLS) *ClientAuth { return &t.ClientAuth }, clientAuthFields).
		offMeans(func(*ClientAuth) {}).checked(checkClientAuth),
	key("ticket_keys_file", "none", file(), func(t *ListenerTLS) *string { return &t.TicketKeysFile },
		"keys of session tickets, which several weirs share: one in a line, the first makes tickets. Without it each listener makes its own").off("none", ""),
	maybe("hsts", "off", "Strict-Transport-Security in every answer", func(t *ListenerTLS) **HSTS { return &t.HSTS }, hstsFields, nil).orOn(),
}

var certificatesField = &several[ListenerTLS, KeyPair]{
	s:  spec{name: "certificates", kind: "list", doc: "by name (SNI); the first is used without one", subs: specsOf(keyPairFields), list: true},
	at: func(t *ListenerTLS) *[]KeyPair { return &t.Certificates }, what: "certificate", fields: keyPairFields,
	begin: func(_ *decoder, _, n *node, k *KeyPair) { k.Pos = n.pos },
	end: func(d *decoder, _, n *node, k *KeyPair) {
		if n.lacks("cert") {
			d.fault(n, "a certificate has no cert", "give the PEM file of the certificate chain: cert: FILE")
		}
		if n.lacks("key") {
			d.fault(n, "a certificate has no key", "give the PEM file of its key: key: FILE")
		}
	},
}

var keyPairFields = []field[KeyPair]{
	key("cert", "", file(), func(k *KeyPair) *string { return &k.Cert }, "PEM file of the chain"),
	key("key", "", file(), func(k *KeyPair) *string { return &k.Key }, "PEM file of the key"),
}

// tlsVersion reads 1.2 and 1.3, quoted or not.
var tlsVersion codec[uint16] = simple[uint16]{
	name: "1.2 or 1.3",
	parse: func(text string) (uint16, string, string) {
		switch text {
		case "1.2":
			return tls.VersionTLS12, "", ""
		case "1.3":
			return tls.VersionTLS13, "", ""
		case "1.0", "1.1", "1":
			return 0, "TLS " + text + " is broken and refused", "use 1.2 or 1.3"
		}
		for _, v := range []string{"1.2", "1.3"} {
			if trimZeros(text) == v || strings.TrimLeft(strings.ToLower(text), "tlsv ") == v {
				return 0, quote(text) + " is not a TLS version", "write " + v
			}
		}
		return 0, quote(text) + " is not a TLS version", "use 1.2 or 1.3"
	},
	format: func(v uint16) string { return "1." + strconv.Itoa(int(v)-0x0301) },
}

func checkListenerTLS(d *decoder, n *node, t *ListenerTLS) {
	for i, name := range t.ACME {
		if slices.Contains(t.ACME[:i], name) {
			d.fault(n.at("acme"), name+" is there twice", "name it once")
		}
	}
	if len(t.ACME) > 0 || n.at("acme").kind == faulty {
		return
	}
	if len(t.Certificates) == 0 && n.at("certificates").kind != faulty && n.lacks("certificates") {
		d.fault(n, "TLS needs a certificate", "add certificates: [{cert: FILE, key: FILE}], or acme: [NAME]")
	} else if p := n.get("certificates"); p != nil && p.value.kind == list && len(p.value.items) == 0 {
		d.fault(p.value, "TLS needs a certificate", "write [{cert: FILE, key: FILE}]")
	}
}

var clientAuthFields = []field[ClientAuth]{
	key("mode", "off", choice([]string{"off", "optional", "required"}), func(a *ClientAuth) *string { return &a.Mode },
		"whether one is asked for; one that does not verify fails the handshake either way").off("off", "off"),
	key("ca", "none", file(), func(a *ClientAuth) *string { return &a.CA }, "PEM file of who signs them; must be given when one is asked for").off("none", ""),
	key("crl", "none", file(), func(a *ClientAuth) *string { return &a.CRL },
		"PEM or DER file of revocation lists, each signed by one of ca; certificates of an issuer whose list is out of date are refused").off("none", ""),
	key("sni", "[]", oneOrMore(listOf(serverName, nil)), func(a *ClientAuth) *[]string { return &a.SNI },
		`only clients that ask for one of these names, exact or "*.example.com"; others are not asked, and a request for one of these hosts on a connection for another, or the other way round, is answered with 421`),
	key("forward", "[xfcc]", sorted(listOf(choice([]string{"client_cert", "client_cert_chain", "xfcc"}), nil)), func(a *ClientAuth) *[]string { return &a.Forward },
		"fields that tell backends who it is: X-Forwarded-Client-Cert as Envoy writes it, Client-Cert and Client-Cert-Chain of RFC 9440. Whatever a client sends under these names is removed").off("none", nil),
}

func checkClientAuth(d *decoder, n *node, a *ClientAuth) {
	switch {
	case a.Mode == "off":
	case a.CA == "" && n.at("ca").kind != faulty:
		d.fault(n, "certificates of clients are asked for, and nobody is named who signs them", "add ca: FILE")
	case slices.Contains(a.Forward, "client_cert_chain") && !slices.Contains(a.Forward, "client_cert"):
		d.fault(n.at("forward"), "client_cert_chain says nothing without client_cert", "write [client_cert, client_cert_chain]")
	}
}

var hstsFields = []field[HSTS]{
	key("max_age", "8760h", duration(time.Second, 10*365*day), func(h *HSTS) *time.Duration { return &h.MaxAge },
		"how long browsers ask for this host over TLS only"),
	key("subdomains", "false", boolean(), func(h *HSTS) *bool { return &h.Subdomains }, "and for every host below it"),
	key("preload", "false", boolean(), func(h *HSTS) *bool { return &h.Preload }, "consent to the lists that browsers ship; hard to take back"),
}
