// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// askSystem returns a question to the standard library's resolver: nsswitch,
// /etc/hosts, search list, ndots, timeouts and the fall-back to TCP are its
// business. It does not tell times to live, so its conversation with the name
// servers is overheard.
func askSystem(server string) askFunc {
	return func(ctx context.Context, host string) ([]netip.Addr, time.Duration, error) {
		s := &sniffer{ttl: -1}
		var d net.Dialer
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if server != "" {
				address = server
			}
			c, err := d.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			if u, ok := c.(*net.UDPConn); ok {
				return &sniffedUDP{u, s}, nil
			}
			return &sniffedTCP{Conn: c, s: s}, nil
		}}
		addrs, err := r.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, -1, err
		}
		for i, a := range addrs {
			addrs[i] = a.Unmap()
		}
		return addrs, s.lowest(), nil
	}
}

// sniffer keeps the lowest time to live of the answers that carry addresses.
type sniffer struct {
	mu  sync.Mutex
	ttl time.Duration // -1: none seen
}

func (s *sniffer) lowest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ttl
}

// message looks at one DNS message. What does not parse is the resolver's
// trouble, not ours.
func (s *sniffer) message(p []byte) {
	ttl, ok := lowestTTL(p)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ttl < 0 || ttl < s.ttl {
		s.ttl = ttl
	}
}

// lowestTTL returns the lowest time to live among the aliases and addresses of
// an answer that has at least one address.
func lowestTTL(p []byte) (ttl time.Duration, ok bool) {
	var d dnsmessage.Parser
	h, err := d.Start(p)
	if err != nil || !h.Response || h.RCode != dnsmessage.RCodeSuccess {
		return 0, false
	}
	if err := d.SkipAllQuestions(); err != nil {
		return 0, false
	}
	lowest := uint32(1<<31 - 1) // RFC 2181 section 8: larger ones count as 0
	for {
		rr, err := d.AnswerHeader()
		if err != nil {
			break
		}
		switch rr.Type {
		case dnsmessage.TypeA, dnsmessage.TypeAAAA:
			ok = true
			fallthrough
		case dnsmessage.TypeCNAME:
			t := rr.TTL
			if t > 1<<31-1 {
				t = 0
			}
			lowest = min(lowest, t)
		}
		if d.SkipAnswer() != nil {
			break
		}
	}
	return time.Duration(lowest) * time.Second, ok
}

// sniffedUDP overhears datagrams. Embedding *net.UDPConn keeps it a
// net.PacketConn, by which the resolver knows datagrams from streams.
type sniffedUDP struct {
	*net.UDPConn
	s *sniffer
}

// Read implements net.Conn.
func (c *sniffedUDP) Read(p []byte) (int, error) {
	n, err := c.UDPConn.Read(p)
	if err == nil {
		c.s.message(p[:n])
	}
	return n, err
}

// sniffedTCP overhears a stream of messages, each after its length in two bytes.
type sniffedTCP struct {
	net.Conn
	s    *sniffer
	seen []byte
}

// Read implements net.Conn.
func (c *sniffedTCP) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.seen = append(c.seen, p[:n]...)
	for len(c.seen) >= 2 {
		end := 2 + int(binary.BigEndian.Uint16(c.seen))
		if len(c.seen) < end {
			break
		}
		c.s.message(c.seen[2:end])
		c.seen = c.seen[end:]
	}
	return n, err
}
