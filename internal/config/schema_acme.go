// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// ACME says who issues the certificates that listeners do not have as files.
type ACME struct {
	Directory  string   // URL
	Email      string   // empty: none
	Storage    string   // folder
	CA         string   // PEM file; empty: the system's
	Challenges []string // of http-01 and tls-alpn-01, sorted; at least one
	Key        string   // p256, p384, rsa2048 or rsa4096
	EABKeyID   string   // empty: the account is bound to no other
	EABKeyFile string   // with EABKeyID
}

// The directories that have a name.
var acmeDirectories = map[string]string{
	"letsencrypt":         "https://acme-v02.api.letsencrypt.org/directory",
	"letsencrypt-staging": "https://acme-staging-v02.api.letsencrypt.org/directory",
}

var acmeFields = []field[ACME]{
	key("directory", "letsencrypt", acmeDirectory, func(a *ACME) *string { return &a.Directory },
		"the authority: letsencrypt, letsencrypt-staging (whose certificates nobody believes, to try it out), or the URL of another one's directory"),
	key("email", "none", text("address", nil), func(a *ACME) *string { return &a.Email }, "where the authority may write to").off("none", ""),
	key("storage", "/var/lib/weir/acme", file(), func(a *ACME) *string { return &a.Storage },
		"folder of accounts, keys and certificates, mode 0700; weirs that share it order each certificate once"),
	key("ca", "system", file(), func(a *ACME) *string { return &a.CA }, "PEM file of who signs the certificate of the directory itself").word("system", ""),
	key("challenges", "[http-01, tls-alpn-01]", sorted(listOf(choice([]string{"http-01", "tls-alpn-01"}), nil)), func(a *ACME) *[]string { return &a.Challenges },
		"how the authority may prove that a name leads here: http-01 asks a plain listener on port 80, tls-alpn-01 one with TLS on port 443"),
	key("key", "p256", choice([]string{"p256", "p384", "rsa2048", "rsa4096"}), func(a *ACME) *string { return &a.Key }, "kind of the certificates' keys"),
	key("eab_key_id", "none", text("name", nil), func(a *ACME) *string { return &a.EABKeyID }, "account at the authority that this one is bound to, where it demands that").off("none", ""),
	key("eab_key_file", "none", file(), func(a *ACME) *string { return &a.EABKeyFile }, "file of that account's HMAC key, in base64url").off("none", ""),
}

// acmeDirectory reads a name or an https URL.
var acmeDirectory codec[string] = simple[string]{
	name: "letsencrypt, letsencrypt-staging or a URL",
	parse: func(text string) (string, string, string) {
		if to, ok := acmeDirectories[text]; ok {
			return to, "", ""
		}
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "https" || u.Host == "" {
			return "", quote(text) + " is not known here", "use letsencrypt, letsencrypt-staging, or the URL of a directory, which begins with https://"
		}
		return text, "", ""
	},
	format: func(v string) string {
		for name, to := range acmeDirectories {
			if to == v {
				return name
			}
		}
		return v
	},
}

// acmeName checks a name that can be proved by http-01 and tls-alpn-01.
func acmeName(s string) (what, fix string) {
	bare := strings.TrimSuffix(s, ".")
	switch {
	case strings.HasPrefix(s, "*."):
		return quote(s) + " cannot be proved by http-01 or tls-alpn-01", "name each host, or obtain the wildcard certificate by other means and give it as certificates"
	case bare != s || strings.ToLower(s) != s:
		return quote(s) + " is not in its normal form", "write " + strings.ToLower(bare)
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return quote(s) + " is an address", "write the name that leads to it"
	}
	return hostName(s)
}

func checkACME(d *decoder, n *node, a *ACME) {
	if (a.EABKeyID == "") != (a.EABKeyFile == "") {
		d.fault(n, "eab_key_id and eab_key_file go together", "give both, or none")
	}
	if len(a.Challenges) == 0 && n.at("challenges").kind != faulty {
		d.fault(n.at("challenges"), "without a challenge no name can be proved", "write [http-01, tls-alpn-01]")
	}
}

// ACMENames returns the names of all listeners whose certificates are obtained by
// ACME, each once, sorted.
func (p *Plan) ACMENames() []string {
	var out []string
	for i := range p.Listeners {
		if t := p.Listeners[i].TLS; t != nil {
			out = append(out, t.ACME...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
