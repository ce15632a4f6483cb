// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestUDPFlood: datagrams from ever new addresses and ports stay inside the listener's
// bound, in flows, descriptors and memory, and clients that were there before keep their
// flows.
func TestUDPFlood(t *testing.T) {
	t.Parallel()
	flood(t, 700*time.Millisecond)
}

// flood is the test, with a flood of so long.
func flood(t *testing.T, long time.Duration) {
	const bound, clients = 600, 20
	backend := startPacketeer(t)
	listen := freeUDP(t)
	w := startLive(t, binary, func(dir string) string {
		return fmt.Sprintf(`admin: {bind: "unix:%s/admin.sock"}
log: {access: off}
listeners:
  game: {bind: %q, protocol: udp, pool: servers, limits: {max_connections: %d}}
pools:
  servers: {backends: ["udp://%s"]}
`, dir, listen, bound, backend.addr)
	})
	var all []*flow
	for range clients {
		f, err := openFlow(listen)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.c.Close() })
		all = append(all, f)
	}
	// goOn has all of them ask until done, and wants the same flow all the time.
	goOn := func(done func() bool) {
		t.Helper()
		var asking sync.WaitGroup
		for _, f := range all {
			asking.Go(func() {
				port := f.port
				for rounds := 0; rounds < 3 || !done(); rounds++ {
					if err := f.insist(60 * time.Second); err != nil {
						t.Error(err)
						return
					}
					if port != "" && f.port != port {
						t.Errorf("a flow was begun anew: from %s, then from %s", port, f.port)
						return
					}
					port = f.port
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		asking.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	goOn(func() bool { return true })
	before := w.use()
	settled := time.Now().Add(2200 * time.Millisecond) // flows are settled after 2 s
	goOn(func() bool { return time.Now().After(settled) })

	forged, most := int64(0), 0.0
	var senders sync.WaitGroup
	end := time.Now().Add(long)
	senders.Go(func() {
		for time.Now().Before(end) {
			forged += forge(t, listen, 200)
		}
	})
	senders.Go(func() {
		for time.Now().Before(end) {
			most = max(most, w.sum("weir_connections", `listener="game"`))
			time.Sleep(50 * time.Millisecond)
		}
	})
	goOn(func() bool { return time.Now().After(end) })
	senders.Wait()
	after := w.use() // flows last for half a minute
	evicted := w.sum("weir_flows_evicted_total", `listener="game"`)
	t.Logf("%d forged datagrams, at most %v flows, %v made room; %d descriptors and %d KiB of heap before, %d and %d after", forged, most, evicted,
		before.files, before.heap>>10, after.files, after.heap>>10)
	if most > bound {
		t.Errorf("%v flows, the bound is %d", most, bound)
	}
	if evicted == 0 || forged < 2*bound {
		t.Errorf("%d datagrams were forged, and %v flows made room: that was no flood", forged, evicted)
	}
	if n := after.files - before.files; n > bound-clients+30 {
		t.Errorf("%d more descriptors, the bound is %d flows", n, bound)
	}
	if n := after.heap - before.heap; n > 16<<20 {
		t.Errorf("%d KiB more heap", n>>10)
	}

	// Flows that are not settled make room also where descriptors are what is short of.
	few := &unix.Rlimit{Cur: bound / 2, Max: bound / 2}
	if err := unix.Prlimit(w.pid, unix.RLIMIT_NOFILE, few, nil); err != nil {
		t.Fatal(err)
	}
	late, err := openFlow(listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = late.c.Close() })
	if err := late.insist(60 * time.Second); err != nil {
		t.Error(err)
	}
	goOn(func() bool { return true })
}

// forge sends datagrams from addresses all over 127.0.0.0/8, and a port that nobody had,
// and returns how many have gone.
func forge(t *testing.T, to string, n int) (sent int64) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer unix.Close(fd) //nolint:errcheck // a test's
	a := netip.MustParseAddrPort(to)
	sa := &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	for range n {
		from := unix.Inet4Pktinfo{Spec_dst: [4]byte{127, byte(rand.Uint32()), byte(rand.Uint32()), byte(1 + rand.IntN(250))}}
		if unix.Sendmsg(fd, []byte("forged"), unix.PktInfo4(&from), sa, unix.MSG_DONTWAIT) == nil {
			sent++
		}
	}
	return sent
}
