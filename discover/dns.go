// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// DNS is a source that asks name servers: for the addresses of a name (A, AAAA),
// or for a service (SRV, RFC 2782) with the addresses of its targets.
//
// It asks again when the shortest time to live among the answers is over, at
// least a second and at most five minutes after the last time; after failures
// and denials after one second, doubling up to five. Everything is asked anew
// each time, so that two findings are two answers. Truncated answers are asked
// for again over TCP and never used. What cannot be asked for (a family, one
// target) is stood in for by its last good answer.
//
// The system's /etc/resolv.conf (servers, search, ndots, attempts) and, for
// addresses, /etc/hosts are honoured and read each time, unless Servers is given.
//
// Of services, priorities become tiers 0, 1, 2... in their order, and weights are
// kept: scaled down to at most 1000 when they are larger, shared by the addresses
// of one target, and 0 is the least weight, as RFC 2782 wants it to get little
// rather than nothing.
type DNS struct {
	Name    string        // asked for; a dot at its end keeps the search list out
	Type    string        // "a", "aaaa", "srv", or "auto": srv for names like _http._tcp.example.com, else a and aaaa
	Port    int           // of every backend; services bring their own
	Scheme  string        // of the endpoints' URLs; empty: http
	Servers []string      // host:port, in the order in which they are asked; empty: the system's
	Timeout time.Duration // of one attempt at one server; 0: 2s

	resolv, hosts string // tests have their own files
}

// wants is the type that is asked for.
func (d *DNS) wants() string {
	switch {
	case d.Type != "" && d.Type != "auto":
		return d.Type
	case strings.HasPrefix(d.Name, "_"):
		return "srv"
	default:
		return "auto"
	}
}

// Run implements Source.
func (d *DNS) Run(ctx context.Context, report func(Finding)) error {
	wants := d.wants()
	switch {
	case d.Name == "":
		return errors.New("discover: DNS without a name")
	case !slices.Contains([]string{"a", "aaaa", "srv", "auto"}, wants):
		return fmt.Errorf("discover: DNS of type %q", wants)
	case wants != "srv" && (d.Port < 1 || d.Port > 65535):
		return fmt.Errorf("discover: DNS with port %d", d.Port)
	}
	r := &resolver{
		servers: d.Servers, timeout: cmp.Or(d.Timeout, 2*time.Second),
		good: make(map[question][]dns.RR), used: make(map[question]bool),
	}
	if len(d.Servers) == 0 {
		r.resolv, r.hosts = cmp.Or(d.resolv, systemResolv), cmp.Or(d.hosts, systemHosts)
	}
	fails := 0
	for {
		f := d.look(ctx, r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.Next = min(max(f.Next, ttlFloor), ttlCap)
		if f.Err != nil {
			fails++
			f.Next = min(f.Next, backoff(fails))
		} else {
			fails = 0
		}
		report(f)
		if !sleep(ctx, f.Next) {
			return ctx.Err()
		}
	}
}

// lookMost bounds one look: with silent servers, hundreds of targets would take
// minutes.
const lookMost = 10 * time.Second

// look asks once.
func (d *DNS) look(ctx context.Context, r *resolver) Finding {
	defer r.sweep()
	ctx, cancel := context.WithTimeout(ctx, lookMost)
	defer cancel()
	c := r.read()
	q := question{d.Name, d.wants()}
	a := r.ask(ctx, c, []question{q})[0]
	f := Finding{Err: a.err, Next: a.ttl}
	if len(a.lacks) == len(q.types()) {
		return f // what is remembered is no finding
	}
	if q.wants != "srv" {
		addrs, refused := addresses(a.records)
		f.Err = cmp.Or(f.Err, refused)
		for _, ip := range addrs {
			f.Endpoints = append(f.Endpoints, d.endpoint(ip, d.Port, 1, 0))
		}
	} else {
		d.services(ctx, r, c, &a, &f)
	}
	slices.SortFunc(f.Endpoints, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Priority, b.Priority))
	})
	f.Endpoints = merged(f.Endpoints)
	if len(f.Endpoints) == 0 && f.Err == nil {
		f.Err = fmt.Errorf("%s: %w", d.Name, ErrEmpty)
	}
	return f
}

func (d *DNS) endpoint(ip netip.Addr, port int, weight uint32, tier uint8) Endpoint {
	address := netip.AddrPortFrom(ip, uint16(port)).String()
	return Endpoint{ID: address, URL: cmp.Or(d.Scheme, "http") + "://" + address, Weight: weight, Priority: tier}
}

// service is one target of an SRV answer, with its addresses.
type service struct {
	*dns.SRV
	addrs []netip.Addr
}

// services finds the addresses of the targets of an answer, and the endpoints.
func (d *DNS) services(ctx context.Context, r *resolver, c *conf, a *answer, f *Finding) {
	list := make([]service, 0, len(a.records))
	var ask []question
	var behind []int // which of list each of ask is for
	for _, rr := range a.records {
		srv, ok := rr.(*dns.SRV)
		if !ok || srv.Target == "." || srv.Port == 0 {
			continue // RFC 2782: "." says that the service is decidedly not available
		}
		s := service{SRV: srv}
		if along, ttl := cameAlong(a.extra, srv.Target); len(along) > 0 {
			s.addrs, _ = addresses(along)
			f.Next = min(f.Next, ttl)
		}
		if len(s.addrs) == 0 {
			ask = append(ask, question{dns.Fqdn(srv.Target), "auto"})
			behind = append(behind, len(list))
		}
		list = append(list, s)
	}
	for i, got := range r.ask(ctx, c, ask) {
		addrs, refused := addresses(got.records)
		f.Err = cmp.Or(f.Err, got.err, refused)
		if len(addrs) == 0 && f.Err == nil {
			f.Err = fmt.Errorf("target %s: %w", ask[i].name, ErrEmpty)
		}
		f.Next = min(f.Next, got.ttl)
		list[behind[i]].addrs = addrs
	}
	tiers, weights := ranks(list), scaled(list)
	for i, s := range list {
		for _, ip := range s.addrs {
			f.Endpoints = append(f.Endpoints, d.endpoint(ip, int(s.Port), weights[i], tiers[s.Priority]))
		}
	}
}

// cameAlong picks the addresses of a target among records that came unasked.
func cameAlong(extra []dns.RR, target string) (out []dns.RR, ttl time.Duration) {
	ttl = ttlCap
	for _, rr := range extra {
		h := rr.Header()
		if (h.Rrtype == dns.TypeA || h.Rrtype == dns.TypeAAAA) && h.Class == dns.ClassINET && strings.EqualFold(h.Name, target) {
			out = append(out, rr)
			ttl = min(ttl, time.Duration(saneTTL(h.Ttl))*time.Second)
		}
	}
	return out, ttl
}

// ranks maps the priorities that are in use to tiers, the best to 0.
func ranks(list []service) map[uint16]uint8 {
	var all []uint16
	for _, s := range list {
		if len(s.addrs) > 0 {
			all = append(all, s.Priority)
		}
	}
	slices.Sort(all)
	out := make(map[uint16]uint8)
	for i, p := range slices.Compact(all) {
		out[p] = uint8(min(i, mostTiers-1))
	}
	return out
}

// mostTiers is how many priorities are told apart; the configuration's too.
const mostTiers = 10

// maxWeight is the largest weight, that of a configuration.
const maxWeight = 1000

// scaled returns the weight of each address of each target. A target's weight is
// for all of its addresses together. As long as every target has one address and
// no weight is above 1000 they are what the records say; else they are scaled so
// that the largest is 1000. For example 10 with two addresses beside 20 with one:
// 5, 5 and 20 become 250, 250 and 1000.
func scaled(list []service) []uint32 {
	each := make([]float64, len(list))
	most, plain := 0.0, true
	for i, s := range list {
		each[i] = float64(s.Weight) / float64(max(len(s.addrs), 1))
		most = max(most, each[i])
		plain = plain && len(s.addrs) <= 1 && s.Weight <= maxWeight
	}
	out := make([]uint32, len(list))
	for i := range list {
		w := each[i]
		if !plain && most > 0 {
			w *= maxWeight / most
		}
		out[i] = uint32(max(math.Round(w), 1))
	}
	return out
}

// merged makes one endpoint of those with one address: the better tier counts,
// and the weights of that tier together.
func merged(sorted []Endpoint) []Endpoint {
	var out []Endpoint
	for _, e := range sorted {
		if n := len(out); n > 0 && out[n-1].ID == e.ID {
			if out[n-1].Priority == e.Priority {
				out[n-1].Weight = min(out[n-1].Weight+e.Weight, maxWeight)
			}
			continue
		}
		out = append(out, e)
	}
	return out
}
