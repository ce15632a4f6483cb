// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"fmt"
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// TestAliases: aliases are followed in whatever order they come, and thousands in the
// worst order are not.
func TestAliases(t *testing.T) {
	chain := func(n int) []dns.RR {
		var all []dns.RR
		for i := range n {
			all = append(all, &dns.CNAME{
				Hdr: dns.RR_Header{Name: fmt.Sprintf("n%d.", i), Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 60}, Target: fmt.Sprintf("n%d.", i+1),
			})
		}
		return append(all, &dns.A{Hdr: dns.RR_Header{Name: fmt.Sprintf("n%d.", n), Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: []byte{192, 0, 2, 1}})
	}
	for _, c := range []struct {
		links     int
		backwards bool
		want      int
	}{{0, false, 1}, {4000, false, 1}, {aliasesMost, true, 1}, {4000, true, 0}} {
		in := &dns.Msg{Answer: chain(c.links)}
		if c.backwards {
			slices.Reverse(in.Answer)
		}
		if r := sift(in, "N0.", dns.TypeA); len(r.records) != c.want {
			t.Errorf("%d aliases, backwards %t: %d records, want %d", c.links, c.backwards, len(r.records), c.want)
		}
	}
}
