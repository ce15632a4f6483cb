// SPDX-License-Identifier: Apache-2.0

package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// BodyPattern returns the regular expression of active.body; false: it is a
// literal text. What is between slashes is one (RE2).
func BodyPattern(body string) (pattern string, ok bool) {
	if len(body) < 2 || body[0] != '/' || body[len(body)-1] != '/' {
		return "", false
	}
	return body[1 : len(body)-1], true
}

func checkBody(s string) (what, fix string) {
	pattern, ok := BodyPattern(s)
	if !ok {
		return "", ""
	}
	if pattern == "" {
		return "the pattern // is empty and matches everything", "write body: none, or what the answer must contain"
	}
	if _, err := regexp.Compile(pattern); err != nil {
		return quote(s) + " is no regular expression: " + strings.TrimPrefix(err.Error(), "error parsing regexp: "), "write RE2, such as /^ok\\b/, or text without slashes around it"
	}
	return "", ""
}

// SendText returns what active.send stands for.
func SendText(send string) (string, error) {
	return strconv.Unquote(`"` + strings.ReplaceAll(send, `"`, `\"`) + `"`)
}

func checkSend(s string) (what, fix string) {
	if _, err := SendText(s); err != nil {
		return quote(s) + " has an escape that is not known", `write \r, \n, \t, \xNN or \\, in single quotes`
	}
	return "", ""
}

func checkService(s string) (what, fix string) {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' }) {
		return quote(s) + " is not the name of a gRPC service", "write it as in its .proto file, such as shop.v1.Cart"
	}
	if len(s) > 1000 {
		return "the name of the service is too long", "write at most 1000 bytes"
	}
	return "", ""
}

// checkProtocol finds what says nothing to a check of its protocol.
func checkProtocol(d *decoder, n *node, a *Active) {
	std := defaultsOf(activeFields)
	unused := func(fix string, keys ...string) {
		given := map[string]bool{
			"path": a.Path != "", "method": a.Method != std.Method, "expect": !slices.Equal(a.Expect, std.Expect),
			"host": a.Host != std.Host, "body": a.Body != "", "send": a.Send != "", "service": a.Service != "",
		}
		for _, k := range keys {
			if given[k] {
				d.fault(n.at(k), k+" says nothing with "+article(a.Protocol)+" check", fix+k)
			}
		}
	}
	switch {
	case a.Protocol == "http" && a.Path == "":
		d.fault(n.at("protocol"), "an http check needs a path", "add path, such as path: /readyz")
	case a.Protocol == "http" && a.Body != "" && a.Method == "HEAD":
		d.fault(n.at("body"), "an answer to HEAD has no body", "write method: GET, or remove body")
	case a.Protocol == "tcp" && a.Path != "":
		d.fault(n.at("path"), "a tcp check has no path", "remove path, or write protocol: http")
	case a.Protocol == "udp" && a.Path != "":
		d.fault(n.at("path"), "a udp check has no path", "remove path, or write protocol: http")
	case a.Protocol == "udp" && a.Send == "":
		d.fault(n.at("protocol"), "a udp check has to send something, as nobody answers otherwise", `add send, such as send: 'ping\n'`)
	case a.Protocol == "udp" && a.TLS == "on":
		d.fault(n.at("tls"), "a udp check has no TLS", "remove tls")
	case a.Protocol == "grpc" && a.Path != "":
		d.fault(n.at("path"), "a grpc check has no path: it calls grpc.health.v1.Health/Check", "remove path, or write protocol: http")
	}
	switch a.Protocol {
	case "http":
		unused("write protocol: grpc, or remove ", "service")
		unused("remove ", "send")
	case "tcp":
		unused("add path to make it an http check, or remove ", "method", "expect", "host")
	case "udp":
		unused("remove ", "method", "expect", "host", "service")
	case "grpc":
		unused("remove ", "method", "expect", "body", "send")
	}
}

func article(protocol string) string {
	if protocol == "http" {
		return "an http"
	}
	return "a " + protocol
}
