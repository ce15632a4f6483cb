// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// udpSize is what is offered as the size of an answer by datagram: what passes
// everywhere without fragments (DNS flag day 2020). Larger ones come by TCP.
const udpSize = 1232

// reply is what name servers say about one question.
type reply struct {
	records []dns.RR      // of the type asked for, aliases followed
	extra   []dns.RR      // addresses that came along unasked, for services
	ttl     time.Duration // least of them and of the aliases; of a denial, of the denial
}

// failure is a question that was not answered: not even with a no.
type failure struct {
	name  string // as asked
	rtype uint16
	why   string
	err   error // may be nil
}

func (f *failure) Error() string {
	return "ask for " + dns.TypeToString[f.rtype] + " of " + f.name + ": " + f.why
}

func (f *failure) Unwrap() error { return f.err }

// client asks name servers.
type client struct {
	servers  []string      // host:port, in order
	timeout  time.Duration // of one attempt at one server
	attempts int           // rounds over the servers
}

// ask puts one question to the servers in their order, until one answers with
// records or a no. An error or a refusal sends it to the next one.
func (c *client) ask(ctx context.Context, name string, rtype uint16) (reply, error) {
	var last *failure
	for range max(c.attempts, 1) {
		for _, server := range c.servers {
			r, f := c.askOne(ctx, server, name, rtype)
			if f == nil {
				return r, nil
			}
			last = f
			if ctx.Err() != nil {
				return reply{}, &failure{name: name, rtype: rtype, why: "given up", err: ctx.Err()}
			}
		}
	}
	if last == nil {
		last = &failure{name: name, rtype: rtype, why: "there is no name server to ask"}
	}
	return reply{}, last
}

func (c *client) askOne(ctx context.Context, server, name string, rtype uint16) (reply, *failure) {
	fail := func(why string, err error) (reply, *failure) {
		return reply{}, &failure{name: name, rtype: rtype, why: why + " (name server " + server + ")", err: err}
	}
	m := new(dns.Msg)
	m.SetQuestion(name, rtype)
	m.SetEdns0(udpSize, false)
	in, err := c.exchange(ctx, "udp", server, m)
	if err == nil && (in.Rcode == dns.RcodeFormatError || in.Rcode == dns.RcodeNotImplemented) {
		m.Extra = nil // a server older than EDNS (RFC 6891 section 7)
		in, err = c.exchange(ctx, "udp", server, m)
	}
	if err == nil && in.Truncated {
		// What a truncated answer has is a part of the truth: never used.
		if in, err = c.exchange(ctx, "tcp", server, m); err == nil && in.Truncated {
			return fail("the answer is truncated over TCP too", nil)
		}
	}
	switch {
	case err != nil:
		return fail(plainly(err), err)
	case in.Rcode == dns.RcodeNameError:
		return reply{ttl: denied(in)}, nil
	case in.Rcode != dns.RcodeSuccess:
		word := dns.RcodeToString[in.Rcode]
		if word == "" {
			word = fmt.Sprintf("code %d", in.Rcode)
		}
		return fail(word, nil)
	}
	r := sift(in, name, rtype)
	if len(r.records) == 0 {
		if !in.Authoritative && !in.RecursionAvailable && len(in.Ns) > 0 && !hasSOA(in) {
			return fail("it refers to other name servers", nil)
		}
		r.ttl = denied(in)
	}
	return r, nil
}

// exchange sends one message and reads one answer to it. Each uses a socket of
// its own, so that its port is as hard to guess as its number.
func (c *client) exchange(ctx context.Context, network, server string, m *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	m.Id = dns.Id()
	d := dns.Client{Net: network, Timeout: c.timeout, UDPSize: dns.MinMsgSize}
	conn, err := d.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			_ = conn.Close()
		}
	}()
	in, _, err := d.ExchangeWithConnContext(ctx, m, conn)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, err
	case !in.Response || len(in.Question) != 1 || in.Question[0].Qtype != m.Question[0].Qtype ||
		!strings.EqualFold(in.Question[0].Name, m.Question[0].Name):
		return nil, errors.New("an answer to another question")
	}
	return in, nil
}

// plainly puts an error of the network into the words of the log.
func plainly(err error) string {
	var n net.Error
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &n) && n.Timeout():
		return "no answer in time"
	case errors.As(err, &op) && op.Err != nil:
		return op.Err.Error()
	default:
		return err.Error()
	}
}

// aliasesMost bounds how often an answer is looked through for aliases. Those in order
// are found the first time; thousands in the opposite order, which one answer can hold,
// would take a second of processor time, of each look.
const aliasesMost = 16

// sift picks the records asked for, along the aliases from the name, and the
// least time to live on the way.
func sift(in *dns.Msg, name string, rtype uint16) (r reply) {
	owners := map[string]bool{strings.ToLower(name): true}
	least := uint32(1<<31 - 1)
	for range aliasesMost {
		grown := false
		for _, rr := range in.Answer {
			alias, ok := rr.(*dns.CNAME)
			target := ""
			if ok {
				target = strings.ToLower(alias.Target)
			}
			if ok && owners[strings.ToLower(alias.Hdr.Name)] && !owners[target] {
				owners[target], grown = true, true
				least = min(least, saneTTL(alias.Hdr.Ttl))
			}
		}
		if !grown {
			break
		}
	}
	for _, rr := range in.Answer {
		h := rr.Header()
		if h.Rrtype == rtype && h.Class == dns.ClassINET && owners[strings.ToLower(h.Name)] {
			r.records = append(r.records, rr)
			least = min(least, saneTTL(h.Ttl))
		}
	}
	if rtype == dns.TypeSRV {
		r.extra = in.Extra
	}
	r.ttl = time.Duration(least) * time.Second
	return r
}

// saneTTL is a time to live as RFC 2181 section 8 reads it.
func saneTTL(ttl uint32) uint32 {
	if ttl > 1<<31-1 {
		return 0
	}
	return ttl
}

// denied is how long a denial holds (RFC 2308 section 5); 0: it does not say.
func denied(in *dns.Msg) time.Duration {
	for _, rr := range in.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return time.Duration(min(saneTTL(soa.Hdr.Ttl), saneTTL(soa.Minttl))) * time.Second
		}
	}
	return 0
}

func hasSOA(in *dns.Msg) bool {
	for _, rr := range in.Ns {
		if _, ok := rr.(*dns.SOA); ok {
			return true
		}
	}
	return false
}
