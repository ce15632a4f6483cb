// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDiscoverFollows makes many changes at random, with bad moments of the name
// server in between: each change by which at most half of the pool leaves is
// followed within max(TTL, 1s) + 1s, each larger one a look later, and whatever
// happens the pool is never smaller than what both the old and the new zone have.
func TestDiscoverFollows(t *testing.T) {
	const changes = 60
	rnd := rand.New(rand.NewPCG(1, 2))
	fleet := []int{1, 2, 3, 4, 5, 6}
	ttl := 1
	zone := func() []string {
		var out []string
		for _, n := range fleet {
			out = append(out, fmt.Sprintf("app %d A 127.0.0.%d", ttl, n))
		}
		return out
	}
	ns := startNameServer(t, zone()...)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {health: {active: off}, discover: {dns: {name: app.test, port: 80, type: a, server: "%s", timeout: 300ms}}}}
`, ns.addr))
	wanted := func() string {
		var out []string
		for _, n := range fleet {
			out = append(out, fmt.Sprint(n))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	eventually(t, 5*time.Second, "the first answer", func() bool { return w.ids(t, "app") == wanted() })
	var worst, worstLarge time.Duration // beyond what was promised; below 0 is earlier
	worst, worstLarge = -time.Hour, -time.Hour
	for i := range changes {
		before := slices.Clone(fleet)
		held := ttl // the last answer is asked for again when this is over
		ttl = rnd.IntN(3)
		large := i%5 == 4
		leave := rnd.IntN(len(fleet)/2 + 1)
		if large {
			leave = len(fleet)/2 + 1 + rnd.IntN(len(fleet)-len(fleet)/2)
		}
		rnd.Shuffle(len(fleet), func(a, b int) { fleet[a], fleet[b] = fleet[b], fleet[a] })
		fleet = fleet[min(leave, len(fleet)):]
		for n := 1; len(fleet) < 2+rnd.IntN(8); n++ {
			if x := 1 + (i*31+n)%200; !slices.Contains(fleet, x) && !slices.Contains(before, x) {
				fleet = append(fleet, x)
			}
		}
		kept := 0
		for _, n := range before {
			if slices.Contains(fleet, n) {
				kept++
			}
		}
		if i%7 == 6 { // silence first, long enough to be noticed
			ns.p.signal(syscall.SIGSTOP)
			eventually(t, 10*time.Second, "silence is told", func() bool { return w.discovery(t, "app").Failing })
			if got := len(w.backends(t, "app")); got != len(before) {
				t.Fatalf("change %d: %d of %d are left in silence", i, got, len(before))
			}
			ns.p.signal(syscall.SIGCONT)
			eventually(t, 10*time.Second, "it works again", func() bool { return !w.discovery(t, "app").Failing })
		}
		eye := watchPool(t, w, "app")
		changed := ns.set("app.test", len(fleet), zone()...)
		promised := max(time.Duration(held)*time.Second, time.Second) + time.Second
		late := &worst
		if 2*(len(before)-kept) > len(before) {
			promised += max(time.Duration(ttl)*time.Second, time.Second)
			late = &worstLarge
		}
		eventually(t, promised+followed, fmt.Sprintf("change %d is followed", i), func() bool { return w.ids(t, "app") == wanted() })
		*late = max(*late, time.Since(changed)-promised)
		if n := eye.least(); n < kept || n == 0 {
			t.Errorf("change %d: the pool had %d backends once; %d were in both zones", i, n, kept)
		}
	}
	t.Logf("%d changes; the latest came %s after what is promised (below 0: before it), of the large ones %s", changes, worst.Round(time.Millisecond), worstLarge.Round(time.Millisecond))
}
