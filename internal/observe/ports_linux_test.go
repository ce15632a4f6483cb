// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestPortsLeft opens connections and looks for them in the kernel's table.
func TestPortsLeft(t *testing.T) {
	if _, _, _, err := portRange(); err != nil {
		t.Skipf("this system does not say which ports are ephemeral: %v", err)
	}
	for _, bind := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", bind)
		if err != nil {
			if bind == "[::1]:0" {
				t.Logf("no IPv6 here: %v", err)
				continue
			}
			t.Fatal(err)
		}
		defer l.Close()
		to := netip.MustParseAddrPort(l.Addr().String())
		wanted := map[netip.AddrPort]bool{to: true}
		left := func() int {
			var c portCache
			n, ok := c.left(wanted, time.Now())[to]
			if !ok {
				t.Skip("this system does not list its sockets")
			}
			return n
		}
		before := left()
		const n = 10
		for range n {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		if after := left(); before-after != n {
			t.Errorf("%s: %d ports left before %d connections, %d after", bind, before, n, after)
		}
	}
}

func TestPortCache(t *testing.T) {
	to := netip.MustParseAddrPort("127.0.0.1:1")
	c := portCache{at: time.Unix(100, 0), free: map[netip.AddrPort]int{to: 7}}
	if got := c.left(map[netip.AddrPort]bool{to: true}, time.Unix(100, 0).Add(freshPorts-1))[to]; got != 7 {
		t.Errorf("a fresh count was not used: %d", got)
	}
	if got := c.left(map[netip.AddrPort]bool{to: true}, time.Unix(100, 0).Add(freshPorts))[to]; got == 7 {
		t.Error("a stale count was used")
	}
	c = portCache{at: time.Unix(100, 0), took: time.Second, free: map[netip.AddrPort]int{to: 7}}
	if got := c.left(map[netip.AddrPort]bool{to: true}, time.Unix(149, 0))[to]; got != 7 {
		t.Errorf("a count that took a second was taken again after 49: %d", got)
	}
	if got := c.left(nil, time.Now()); got != nil {
		t.Errorf("nothing wanted, got %v", got)
	}
}

func TestReservedWithin(t *testing.T) {
	for _, c := range []struct {
		list string
		want int
	}{
		{"", 0}, {"\n", 0}, {"1500", 1}, {"1-999", 0}, {"900-1009", 10}, {"1990-2500", 11}, {"1000-2000", 1001}, {"1500,1600-1601,x,3-y", 3},
	} {
		if got := reservedWithin(c.list, 1000, 2000); got != c.want {
			t.Errorf("%q: %d, want %d", c.list, got, c.want)
		}
	}
}

func FuzzDiagPeer(f *testing.F) {
	f.Add(make([]byte, diagMessageLen))
	f.Fuzz(func(t *testing.T, d []byte) {
		if _, to, ok := diagPeer(d); ok && !to.IsValid() {
			t.Errorf("%x: %v", d, to)
		}
	})
}
