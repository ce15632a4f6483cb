// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// server is a name server on loopback that answers as the test says.
type server struct {
	t    *testing.T
	addr string

	mu     sync.Mutex
	zone   []string       // records as in a zone file
	rcode  map[string]int // "NAME TYPE" or "NAME": an answer of that code; -1: silence
	bare   bool           // services come without the addresses of their targets
	noEDNS bool           // FORMERR on EDNS
	asked  []string       // "NAME TYPE udp|tcp" of every question
	mangle func(*dns.Msg)
}

func newServer(t *testing.T, zone ...string) *server {
	t.Helper()
	s := &server{t: t, rcode: map[string]int{}, zone: zone}
	pc, ln := bothPorts(t)
	s.addr = pc.LocalAddr().String()
	for _, d := range []*dns.Server{{PacketConn: pc, Handler: s}, {Listener: ln, Handler: s}} {
		up, down := make(chan struct{}), make(chan struct{})
		d.NotifyStartedFunc = func() { close(up) }
		go func() { defer close(down); _ = d.ActivateAndServe() }()
		<-up
		t.Cleanup(func() { _ = d.Shutdown(); <-down })
	}
	return s
}

// bothPorts binds one port for datagrams and for streams.
func bothPorts(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	var last error
	for range 20 { // what is free for one may be taken for the other
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", pc.LocalAddr().String())
		if err == nil {
			return pc, ln
		}
		last = err
		_ = pc.Close()
	}
	t.Fatal(last)
	return nil, nil
}

// change changes what it answers.
func (s *server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) set(zone ...string) { s.change(func() { s.zone = zone }) }

func (s *server) code(what string, code int) { s.change(func() { s.rcode[what] = code }) }

// questions returns what was asked since the last call.
func (s *server) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.asked
	s.asked = nil
	return out
}

// ServeDNS implements dns.Handler.
func (s *server) ServeDNS(w dns.ResponseWriter, m *dns.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := m.Question[0]
	name, kind, network := strings.ToLower(q.Name), dns.TypeToString[q.Qtype], w.LocalAddr().Network()
	s.asked = append(s.asked, name+" "+kind+" "+network)
	r := new(dns.Msg)
	r.SetReply(m)
	r.RecursionAvailable = true
	opt := m.IsEdns0()
	code, ok := s.rcode[name+" "+kind]
	if !ok {
		code = s.rcode[name]
	}
	switch {
	case code < 0:
		return
	case s.noEDNS && opt != nil:
		r.Rcode = dns.RcodeFormatError
	case code != 0:
		r.Rcode = code
	default:
		s.fill(r, name, q.Qtype)
	}
	if s.mangle != nil {
		s.mangle(r)
	}
	if network == "udp" {
		size := dns.MinMsgSize
		if opt != nil {
			size = int(opt.UDPSize())
		}
		r.Truncate(size)
	}
	_ = w.WriteMsg(r)
}

func (s *server) fill(r *dns.Msg, name string, kind uint16) {
	exists := false
	for range 4 { // aliases
		alias := ""
		for _, line := range s.zone {
			rr, err := dns.NewRR(line)
			if err != nil {
				s.t.Error(err)
				continue
			}
			if !strings.EqualFold(rr.Header().Name, name) {
				continue
			}
			exists = true
			if c, ok := rr.(*dns.CNAME); ok {
				alias = c.Target
			}
			if rr.Header().Rrtype == kind || alias != "" {
				r.Answer = append(r.Answer, rr)
			}
			if srv, ok := rr.(*dns.SRV); ok && kind == dns.TypeSRV && !s.bare {
				for _, l := range s.zone {
					if a, _ := dns.NewRR(l); a != nil && strings.EqualFold(a.Header().Name, srv.Target) {
						r.Extra = append(r.Extra, a)
					}
				}
			}
		}
		if alias == "" {
			break
		}
		name = strings.ToLower(alias)
	}
	if !exists {
		r.Rcode = dns.RcodeNameError
	}
}

// look makes one look and returns the endpoints as "id*weight/tier", with the
// weight and the tier left out where they are 1 and 0.
func look(t *testing.T, d *DNS, r *resolver) (string, Finding) {
	t.Helper()
	f := d.look(t.Context(), r)
	return said(f.Endpoints), f
}

func said(list []Endpoint) string {
	var out []string
	for _, e := range list {
		w := e.ID
		if e.Weight != 1 {
			w += "*" + uitoa(e.Weight)
		}
		if e.Priority != 0 {
			w += "/" + uitoa(uint32(e.Priority))
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

func uitoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// resolverFor is what Run makes, with less patience.
func resolverFor(d *DNS) *resolver {
	return &resolver{
		servers: d.Servers, resolv: d.resolv, hosts: d.hosts, timeout: cmp.Or(d.Timeout, 500*time.Millisecond),
		good: map[question][]dns.RR{}, used: map[question]bool{},
	}
}

// watch runs a source and hands over its findings; it ends with the test.
func watch(t *testing.T, s Source) <-chan Finding {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	found, done := make(chan Finding), make(chan struct{})
	go func() {
		defer close(done)
		err := s.Run(ctx, func(f Finding) {
			select {
			case found <- f:
			case <-ctx.Done():
			}
		})
		if err == nil || ctx.Err() == nil {
			t.Errorf("the source ended by itself: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return found
}
