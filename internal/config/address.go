// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// prefixes reads one address or network: 10.0.0.0/8, 192.0.2.1, ::1.
var prefixes codec[netip.Prefix] = simple[netip.Prefix]{
	name: "network",
	parse: func(text string) (netip.Prefix, string, string) {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			a = a.Unmap()
			return netip.PrefixFrom(a, a.BitLen()), "", ""
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return p, quote(text) + " is not a network", "write an address or a prefix, such as 10.0.0.0/8, 192.0.2.7 or fd00::/8"
		}
		if p.Addr().Is4In6() {
			return p, quote(text) + " is an IPv4 network in IPv6 clothes", "write it as IPv4"
		}
		if m := p.Masked(); m != p {
			return p, quote(text) + " has bits set behind its prefix", "write " + m.String() + ", or " + p.Addr().String() + " for the one address"
		}
		return p, "", ""
	},
	format: func(p netip.Prefix) string {
		if p.IsSingleIP() {
			return p.Addr().String()
		}
		return p.String()
	},
}

// bindCodec reads an address to listen on.
var bindCodec codec[string] = text("address", bindAddress)

// opsCodec reads one for operators: there the mode of a socket's file says who
// may come in.
var opsCodec codec[string] = text("address", func(s string) (what, fix string) {
	if strings.HasPrefix(s, "unix:@") {
		return "an abstract socket has no mode that keeps others out", "write the path of a file, such as unix:/run/weir.sock"
	}
	return bindAddress(s)
})

func bindAddress(s string) (what, fix string) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if path != "" && len(path) < 107 && path[0] != '/' && path[0] != '@' {
			return quote(s) + " is not an absolute path", "write unix:/run/" + strings.TrimLeft(path, "./~") + ": what a relative one means would depend on where weir is started"
		}
		if path == "" || len(path) > 107 || path[0] != '/' && path[0] != '@' {
			return quote(s) + " is not the path of a socket", "write unix:/run/weir.sock (at most 107 bytes)"
		}
		return "", ""
	}
	if name, ok := strings.CutPrefix(s, "systemd:"); ok {
		return socketName(name)
	}
	return hostPort(s, true)
}

// hostPort checks "host:port" for listening (empty host: all addresses).
func hostPort(s string, zero bool) (what, fix string) {
	if strings.ContainsAny(s, " ,;") {
		parts := strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" ,;", r) })
		if len(parts) > 1 && strings.Contains(parts[1], ":") {
			return quote(s) + " is several addresses", "write a list: [" + quote(parts[0]) + ", " + quote(parts[1]) + "]"
		}
	}
	if strings.Contains(s, "://") {
		return quote(s) + " is a URL", "write host:port only"
	}
	if digits(s) {
		return quote(s) + " is only a port", `write ":` + s + `" for all addresses, "127.0.0.1:` + s + `" for this machine only`
	}
	i := strings.LastIndexByte(s, ':')
	if a, err := netip.ParseAddr(s); err == nil {
		fix := "write " + quote(netip.AddrPortFrom(a, 8080).String())
		if i > 0 && digits(s[i+1:]) && len(s)-i > 2 {
			if rest, err := netip.ParseAddr(s[:i]); err == nil {
				fix = "write " + quote("["+rest.String()+"]:"+s[i+1:]) + " if " + s[i+1:] + " is the port"
			}
		}
		return quote(s) + " has no port", fix
	}
	if i < 0 {
		return quote(s) + " has no port", "write " + quote(s+":8080")
	}
	host, port := s[:i], s[i+1:]
	if what, fix := portNumber(port, zero); what != "" {
		return what, fix
	}
	switch {
	case host == "":
	case host[0] == '[':
		if a, err := netip.ParseAddr(strings.TrimSuffix(host[1:], "]")); err != nil || !strings.HasSuffix(host, "]") || !a.Is6() {
			return quote(host) + " is not an IPv6 address", `write it in brackets, as in "[::]:443"`
		}
	case strings.Contains(host, ":"):
		return quote(s) + " is ambiguous", "put the IPv6 address in brackets: " + quote("["+host+"]:"+port)
	case looksNumeric(host):
		if _, err := netip.ParseAddr(host); err != nil {
			return quote(host) + " is not an address", "write four numbers from 0 to 255"
		}
	case host == "*":
		return quote(s) + " is not an address", "write " + quote(":"+port) + " for all addresses"
	default:
		return hostName(host)
	}
	return "", ""
}

func portNumber(s string, zero bool) (what, fix string) {
	n, err := strconv.Atoi(s)
	least := 1
	if zero {
		least = 0
	}
	if !digits(s) || err != nil || n > 65535 || n < least || len(s) > 1 && s[0] == '0' {
		return quote(s) + " is not a port", "write a number from 1 to 65535"
	}
	return "", ""
}

func looksNumeric(host string) bool {
	return strings.Trim(host, "0123456789.") == ""
}

var labelPattern = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?$`)

// hostName checks a DNS name.
func hostName(s string) (what, fix string) {
	bare := strings.TrimSuffix(s, ".")
	if len(bare) > 253 || bare == "" {
		return quote(s) + " is not a host name", "use at most 253 characters"
	}
	for label := range strings.SplitSeq(bare, ".") {
		if strings.ContainsFunc(label, func(r rune) bool { return r > 0x7f }) {
			return quote(s) + " is not in ASCII", "write the name as it is in DNS (punycode, xn--...)"
		}
		if len(label) > 63 || !labelPattern.MatchString(label) {
			return quote(s) + " is not a host name", "use letters, digits, - and dots"
		}
	}
	return "", ""
}
