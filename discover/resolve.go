// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// Bounds of how long an answer is used, those of names in backends' URLs.
const (
	ttlFloor   = time.Second
	ttlCap     = 5 * time.Minute
	ttlHosts   = 5 * time.Second // of what a hosts file says
	retryFirst = time.Second     // after a failure or a denial, doubling
	retryMost  = 5 * time.Second // up to here: a name that comes into being is waited for
)

// Files of the system; tests have their own.
const (
	systemResolv = "/etc/resolv.conf"
	systemHosts  = "/etc/hosts"
)

// atOnce bounds the questions of one source that are under way together.
const atOnce = 16

// question is one thing that is asked for: a name as it was given, with the
// search list still before it, and what is wanted of it.
type question struct {
	name  string
	wants string // "srv", "a", "aaaa" or "auto" for both kinds of address
}

// answer is what one look found out about one question.
type answer struct {
	records []dns.RR      // addresses or services; empty: there are none
	extra   []dns.RR      // addresses that came along unasked
	ttl     time.Duration // how long that holds
	lacks   []uint16      // types that could not be asked for
	err     error         // why not
}

// resolver keeps the last good answers for as long as there are no better ones.
// It belongs to one Run.
type resolver struct {
	resolv, hosts string   // files; empty: not consulted
	servers       []string // instead of resolv's, without its search list
	timeout       time.Duration

	good map[question][]dns.RR // last good ones
	used map[question]bool     // since the last sweep
}

// conf is what the system's files say at the moment.
type conf struct {
	client client
	search func(name string) []string // absolute names, in the order to try
	hosts  map[string][]netip.Addr
}

// read reads the system's files. They are small, change while weir runs (DHCP, a
// VPN) and are read at most once a second.
func (r *resolver) read() *conf {
	c := &conf{client: client{servers: r.servers, timeout: r.timeout, attempts: 2}}
	c.search = func(name string) []string { return []string{dns.Fqdn(name)} }
	if r.hosts != "" {
		c.hosts = readHosts(r.hosts)
	}
	if len(r.servers) > 0 {
		return c
	}
	sys, err := dns.ClientConfigFromFile(r.resolv)
	if err != nil || len(sys.Servers) == 0 {
		// resolv.conf(5): without one the local machine is asked.
		sys = &dns.ClientConfig{Servers: []string{"127.0.0.1", "::1"}, Port: "53", Ndots: 1, Attempts: 2}
	}
	for _, s := range sys.Servers {
		c.client.servers = append(c.client.servers, net.JoinHostPort(s, sys.Port))
	}
	c.client.attempts = min(max(sys.Attempts, 1), 3)
	c.search = sys.NameList
	return c
}

// ask puts all questions, together, and returns an answer to each. Where a
// question, or a part of it, fails, the last good answer stands in.
func (r *resolver) ask(ctx context.Context, c *conf, list []question) []answer {
	out := make([]answer, len(list))
	var wait group
	slots := make(chan struct{}, atOnce)
	for i, q := range list {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			out[i] = c.lookup(ctx, q)
		})
	}
	wait.Wait()
	for i, q := range list {
		r.remember(q, &out[i])
	}
	return out
}

// remember completes an answer from memory, and the memory from the answer.
func (r *resolver) remember(q question, a *answer) {
	for _, rr := range r.good[q] {
		if slices.Contains(a.lacks, rr.Header().Rrtype) {
			a.records = append(a.records, rr)
		}
	}
	if len(a.records) > 0 {
		r.good[q] = a.records
	}
	r.used[q] = true
}

// sweep forgets the questions that were not asked since the last sweep.
func (r *resolver) sweep() {
	for q := range r.good {
		if !r.used[q] {
			delete(r.good, q)
		}
	}
	clear(r.used)
}

// backoff is the wait after so many failures in a row.
func backoff(fails int) time.Duration {
	return min(retryFirst<<min(max(fails-1, 0), 8), retryMost)
}

// lookup answers one question: by the hosts file, else by the first name along
// the search list that has anything. A failure on the way ends it: what lies
// behind may be another service of that name.
func (c *conf) lookup(ctx context.Context, q question) answer {
	if rrs := c.fromHosts(q); len(rrs) > 0 {
		return answer{records: rrs, ttl: ttlHosts}
	}
	no := answer{ttl: retryMost}
	for _, name := range c.search(q.name) {
		a := c.both(ctx, name, q.types())
		if a.err != nil || len(a.records) > 0 {
			return a
		}
		no.ttl = min(no.ttl, a.ttl)
	}
	return no
}

// types are the types of records that answer the question.
func (q question) types() []uint16 {
	switch q.wants {
	case "srv":
		return []uint16{dns.TypeSRV}
	case "a":
		return []uint16{dns.TypeA}
	case "aaaa":
		return []uint16{dns.TypeAAAA}
	default:
		return []uint16{dns.TypeA, dns.TypeAAAA}
	}
}

// both asks for all types of one absolute name. A type that cannot be asked for
// is told apart from one that is not there, or a family whose servers fail would
// be taken for gone.
func (c *conf) both(ctx context.Context, name string, types []uint16) answer {
	replies, errs := make([]reply, len(types)), make([]error, len(types))
	var wait group
	for i, t := range types {
		wait.Go(func() { replies[i], errs[i] = c.client.ask(ctx, name, t) })
	}
	wait.Wait()
	a := answer{ttl: ttlCap}
	no := ttlCap // how long a denial holds
	for i, r := range replies {
		switch {
		case errs[i] != nil:
			a.err = errs[i]
			a.lacks = append(a.lacks, types[i])
		case len(r.records) == 0:
			no = min(no, r.ttl)
		default:
			a.ttl = min(a.ttl, r.ttl)
			a.records = append(a.records, r.records...)
			a.extra = append(a.extra, r.extra...)
		}
	}
	if len(a.records) == 0 {
		a.ttl = no
	}
	return a
}

func (c *conf) fromHosts(q question) (rrs []dns.RR) {
	if q.wants == "srv" {
		return nil
	}
	for _, a := range c.hosts[hostsName(q.name)] {
		switch {
		case a.Is4() && q.wants != "aaaa":
			rrs = append(rrs, &dns.A{Hdr: dns.RR_Header{Name: dns.Fqdn(q.name), Rrtype: dns.TypeA}, A: a.AsSlice()})
		case !a.Is4() && q.wants != "a":
			rrs = append(rrs, &dns.AAAA{Hdr: dns.RR_Header{Name: dns.Fqdn(q.name), Rrtype: dns.TypeAAAA}, AAAA: a.AsSlice()})
		}
	}
	return rrs
}

// addresses returns the usable addresses among records, each once. What no backend can
// have, because connecting to it reaches weir itself or many, is left out.
func addresses(records []dns.RR) (out []netip.Addr, refused error) {
	for _, rr := range records {
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		default:
			continue
		}
		a, ok := netip.AddrFromSlice(ip)
		a = a.Unmap()
		if !ok || a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			refused = fmt.Errorf("%s is listed, which is no server's address", ip)
			continue
		}
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out, refused
}
