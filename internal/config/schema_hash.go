// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"time"
)

// policies are all that `balance` may say; the keyed ones place requests by
// their key.
var (
	policies      = slices.Concat(plainPolicies, keyedPolicies)
	plainPolicies = []string{"p2c", "round_robin", "random", "least_request", "peak_ewma"}
	keyedPolicies = []string{"ring_hash", "rendezvous", "maglev"}
)

func keyedPolicy(name string) bool { return slices.Contains(keyedPolicies, name) }

// maxTable is the largest table, a prime: 50,000 backends with a hundred slots
// each.
const maxTable = 5_000_011

var ewmaFields = []field[EWMA]{
	key("decay", "10s", duration(tick, time.Hour), func(e *EWMA) *time.Duration { return &e.Decay }, "memory of latencies: after so long 2 % of an old one counts, the rest is the mean of the pool"),
	key("penalty", "5s", duration(tick, time.Hour), func(e *EWMA) *time.Duration { return &e.Penalty }, "the latency that a failure counts as, at least"),
}

var hashFields = []field[Hash]{
	key("key", "client_ip", keyParts, func(h *Hash) *[]KeyPart { return &h.Key },
		"what is hashed: client_ip, header:NAME, cookie:NAME, query:NAME, path, or a list of them, hashed together"),
	key("bounded_load", "1.25", decimal(1, 100), func(h *Hash) *float64 { return &h.BoundedLoad },
		"most load of a backend over the mean; beyond it the key's next backend is used").off("off", 0),
	key("spill", "off", integer(1, 8), func(h *Hash) *int { return &h.Spill },
		"when the key's backend is saturated, the least loaded of so many of its next ones is used").off("off", 0),
	key("table_size", "65537", prime(3, maxTable), func(h *Hash) *int { return &h.TableSize }, "maglev's table, a prime; at least 100 times the number of backends"),
	key("virtual_nodes", "160", integer(1, 65_536), func(h *Hash) *int { return &h.VirtualNodes }, "ring_hash's points of a backend of average weight"),
	key("fallback", "p2c", choice(plainPolicies), func(h *Hash) *string { return &h.Fallback }, "policy of requests that have no key"),
}

// keyParts reads hash.key.
var keyParts codec[[]KeyPart] = keyCodec{listOf(keyPart, checkKey)}

// keyCodec shows a list of one as the one.
type keyCodec struct{ codec[[]KeyPart] }

func (c keyCodec) show(v []KeyPart) *node {
	n := c.codec.show(v)
	if len(n.items) == 1 {
		return n.items[0]
	}
	return n
}

const keyHint = "use client_ip, header:NAME, cookie:NAME, query:NAME or path"

// keyPart reads one part of hash.key.
var keyPart codec[KeyPart] = partCodec{simple[KeyPart]{name: "client_ip, header:NAME, cookie:NAME, query:NAME or path", parse: parseKeyPart}}

type partCodec struct{ simple[KeyPart] }

func (partCodec) show(k KeyPart) *node { return textNode(k.String()) }

// scan knows what YAML makes of `header: X`.
func (c partCodec) scan(d *decoder, n *node, s *spec) (KeyPart, bool) {
	if n.kind == mapping && len(n.pairs) == 1 && n.pairs[0].value.kind == scalar {
		whole := n.pairs[0].key.text + ":" + n.pairs[0].value.text
		d.fault(n, "there is a space behind the colon, so YAML reads a mapping", "write "+quote(whole))
		return KeyPart{}, false
	}
	return c.simple.scan(d, n, s)
}

func parseKeyPart(text string) (k KeyPart, what, fix string) {
	from, name, named := strings.Cut(text, ":")
	k = KeyPart{From: from, Name: name}
	switch from {
	case "client_ip", "path":
		if named {
			return k, from + " has no name", "write " + from
		}
		return k, "", ""
	case "header", "cookie", "query":
	default:
		words := []string{"client_ip", "header", "cookie", "query", "path"}
		if near := nearest(from, words); near != "" {
			return k, quote(text) + " is nothing to hash", "did you mean " + near + "? U" + keyHint[1:]
		}
		return k, quote(text) + " is nothing to hash", keyHint
	}
	switch {
	case k.Name == "":
		return k, "a " + from + " of the key has no name", "write " + from + ":NAME"
	case len(k.Name) > 256:
		return k, "the name of a " + from + " is too long", "at most 256 bytes"
	case strings.ContainsFunc(k.Name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return k, "the name of a " + from + " has a control character", "remove it"
	case from != "query" && !tokenPattern.MatchString(k.Name):
		return k, quote(k.Name) + " is not the name of a " + from, "use letters, digits and -"
	case from == "header":
		what, fix = keyHeader(k.Name)
	}
	return k, what, fix
}

// keyHeader refuses fields that are gone, or weir's own, when the key is made.
func keyHeader(name string) (what, fix string) {
	low := strings.ToLower(name)
	switch low {
	case "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings":
		return name + " is about one connection, not about the request", "use another header"
	case "x-request-id", "traceparent":
		return name + " differs from request to request, so the hash would be at random", "use another header"
	case "cookie":
		return "the whole Cookie header differs whenever one cookie does", "write cookie:NAME"
	case "x-forwarded-for", "x-real-ip", "forwarded":
		return name + " is what weir itself writes", "write client_ip, and list the proxies before weir in trusted_proxies"
	}
	if strings.HasPrefix(low, "x-weir-") {
		return name + " is weir's own", "use another header"
	}
	return "", ""
}

func checkKey(d *decoder, n *node, parts []KeyPart) bool {
	switch {
	case len(parts) == 0:
		d.fault(n, "nothing is hashed", keyHint)
	case len(parts) > 8:
		d.fault(n, "the key has "+itoa(len(parts))+" parts", "at most 8 are used")
	default:
		return true
	}
	return false
}

// prime reads primes from lo to hi.
func prime(lo, hi int) codec[int] {
	c := integer(lo, hi).(simple[int])
	c.name = "prime"
	inner := c.parse
	c.parse = func(text string) (int, string, string) {
		v, what, fix := inner(text)
		if what == "" && !isPrime(v) {
			return 0, text + " is not a prime, so some slots would never be reached", "write " + itoa(nearPrime(v, lo, hi)) + ", the nearest prime"
		}
		return v, what, fix
	}
	return c
}

func isPrime(n int) bool {
	for i := 2; i*i <= n; i++ {
		if n%i == 0 {
			return false
		}
	}
	return n > 1
}

// nearPrime returns the prime nearest to n within the bounds, the larger of two
// as near.
func nearPrime(n, lo, hi int) int {
	for d := 0; ; d++ {
		switch {
		case n+d <= hi && isPrime(n+d):
			return n + d
		case n-d >= lo && isPrime(n-d):
			return n - d
		}
	}
}

// nextPrime returns the least prime from n on.
func nextPrime(n int) int {
	for !isPrime(n) {
		n++
	}
	return n
}

// checkBalance warns of settings that say nothing with the policy of the pool,
// and refuses tables that are too small.
func checkBalance(d *decoder, n *node, p *Pool) {
	backends := len(p.Backends)
	at := func(block string) *node {
		if g := n.get(block); g != nil {
			return g.key
		}
		return n
	}
	standard := defaultsOf(hashFields)
	switch {
	case p.Keyed():
	case !slices.Equal(p.Hash.Key, standard.Key),
		p.Hash.BoundedLoad != standard.BoundedLoad, p.Hash.Spill != standard.Spill, p.Hash.TableSize != standard.TableSize,
		p.Hash.VirtualNodes != standard.VirtualNodes, p.Hash.Fallback != standard.Fallback:
		d.warn(at("hash"), "hash_unused", "hash says nothing with balance: "+p.Balance+"; it is for "+oneOf(keyedPolicies))
	}
	if p.EWMA != defaultsOf(ewmaFields) && p.Balance != "peak_ewma" && !(p.Keyed() && p.Hash.Fallback == "peak_ewma") {
		d.warn(at("ewma"), "ewma_unused", "ewma says nothing with balance: "+p.Balance+"; it is for peak_ewma")
	}
	if p.Balance == "maglev" {
		place := n.at("hash", "table_size")
		switch size := p.Hash.TableSize; {
		case size < backends:
			d.fault(place, "table_size ("+itoa(size)+") is less than the number of backends ("+itoa(backends)+")", "write "+itoa(min(nextPrime(max(65537, 100*backends)), maxTable)))
		case size < 100*backends && size < maxTable:
			d.warn(place, "maglev_table", "table_size ("+itoa(size)+") is less than 100 times the number of backends ("+itoa(backends)+"), so their shares differ by more than 1 %; "+
				"write "+itoa(min(nextPrime(100*backends), maxTable)))
		}
	}
}
