// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The other name servers that weir meets: dnsmasq, which answers out of a hosts
// file with a time to live of 0, and unbound, which answers out of its memory with
// a time to live that runs down. The pools here have no checks and no traffic: what
// is held to account is who is in them, and when.

// followed is what a machine that does other things may take on top of what is
// promised; the log has what it took.
const followed = 3 * time.Second

// watched keeps an eye on a pool that must not lose everybody.
type watched struct {
	t    *testing.T
	w    *weir
	pool string
	stop chan struct{}
	done chan struct{}
	min  int
}

func watchPool(t *testing.T, w *weir, pool string) *watched {
	t.Helper()
	x := &watched{t: t, w: w, pool: pool, stop: make(chan struct{}), done: make(chan struct{}), min: len(w.backends(t, pool))}
	go func() {
		defer close(x.done)
		for {
			select {
			case <-x.stop:
				return
			case <-time.After(20 * time.Millisecond):
				x.min = min(x.min, len(w.backends(t, pool)))
			}
		}
	}()
	return x
}

// least ends the watch and returns how many backends there were at the least.
func (x *watched) least() int { close(x.stop); <-x.done; return x.min }

// becomes waits for a pool to have exactly these backends and logs how long after
// a change that was; the promise is within.
func becomes(t *testing.T, w *weir, pool, want string, changed time.Time, within time.Duration, what string) {
	t.Helper()
	eventually(t, within+followed, fmt.Sprintf("%s: %q becomes %q", what, w.ids(t, pool), want), func() bool { return w.ids(t, pool) == want })
	took := time.Since(changed)
	t.Logf("%s: after %s (promised: %s)", what, took.Round(10*time.Millisecond), within)
}

// stays lets a source fail, and sees that nobody leaves for it.
func stays(t *testing.T, w *weir, pool, want, what string, faults ...string) {
	t.Helper()
	eventually(t, 12*time.Second, what+" is told", func() bool {
		d := w.discovery(t, pool)
		return d.Failing && slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(d.LastError, f) })
	})
	if got := w.ids(t, pool); got != want {
		t.Errorf("%s: %q is left of %q", what, got, want)
	}
}

// dnsmasq is one that answers for "test." from a hosts file.
type dnsmasq struct {
	t          *testing.T
	addr, file string
	p          *process
}

func startDnsmasq(t *testing.T, lines ...string) *dnsmasq {
	t.Helper()
	d := &dnsmasq{t: t, addr: freeAddr(t), file: filepath.Join(t.TempDir(), "hosts")}
	d.write(lines)
	_, port, _ := strings.Cut(d.addr, ":")
	d.p = spawn(t, tool(t, "dnsmasq"), "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file=",
		"--log-facility=-", "--user=", "--group=", "--listen-address=127.0.0.1", "--bind-interfaces", "--port="+port,
		"--local=/test/", "--addn-hosts="+d.file, "--edns-packet-max=512")
	waitListening(t, d.p, d.addr)
	return d
}

func (d *dnsmasq) write(lines []string) {
	d.t.Helper()
	if err := os.WriteFile(d.file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil { //nolint:gosec // dnsmasq may run as another user
		d.t.Fatal(err)
	}
}

// set changes what it answers and returns when it does.
func (d *dnsmasq) set(name string, want int, lines ...string) time.Time {
	d.t.Helper()
	d.write(lines)
	d.p.signal(syscall.SIGHUP)
	n := &nameServer{t: d.t, addr: d.addr}
	eventually(d.t, 5*time.Second, "dnsmasq has read its file", func() bool { return len(n.lookup(name)) == want })
	return time.Now()
}

// TestDiscoverDnsmasq: a time to live of 0 throughout, which means a look a
// second; datagrams of 512 bytes, so that 60 records come over TCP; no address of
// the family that is asked for, a name that is gone, silence; a change, and another
// fleet.
func TestDiscoverDnsmasq(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 60 {
		many = append(many, fmt.Sprintf("127.1.0.%d many.test", i+1))
	}
	hosts := func(last ...string) []string {
		out := slices.Clone(many)
		for _, n := range last {
			out = append(out, "127.0.0."+n+" app.test")
		}
		return out
	}
	d := startDnsmasq(t, hosts("1", "2", "3", "4")...)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {web: {bind: "${LISTEN}", routes: [{match: {path_prefix: /many}, pool: many}, {pool: app}]}}
pools:
  app: {health: {active: off}, discover: {dns: {name: app.test, port: 80, type: a, server: "%[1]s", timeout: 300ms}}}
  many: {health: {active: off}, discover: {dns: {name: many.test., port: 80, server: "%[1]s", timeout: 300ms}}}
`, d.addr))
	began := time.Now()
	becomes(t, w, "app", "1 2 3 4", began, 2*time.Second, "the first answer")
	eventually(t, 5*time.Second, "60 records over TCP", func() bool { return len(w.backends(t, "many")) == 60 })
	app, others := watchPool(t, w, "app"), watchPool(t, w, "many")

	becomes(t, w, "app", "1 2 5 6", d.set("app.test", 4, hosts("1", "2", "5", "6")...), 2*time.Second, "half of the pool leaves")
	d.set("app.test", 0, many...)
	stays(t, w, "app", "1 2 5 6", "NXDOMAIN", "no endpoints")
	d.set("app.test", 1, append(slices.Clone(many), "::1 app.test")...) // of the other family: an answer without addresses
	stays(t, w, "app", "1 2 5 6", "an empty answer", "no endpoints")
	d.p.signal(syscall.SIGSTOP)
	stays(t, w, "app", "1 2 5 6", "silence", "no answer in time")
	d.p.signal(syscall.SIGCONT)

	// While it failed weir asks less often; the bounds hold again from its next look.
	d.set("app.test", 4, hosts("1", "2", "5", "6")...)
	eventually(t, 10*time.Second, "discovery works again", func() bool { return !w.discovery(t, "app").Failing })
	changed := d.set("app.test", 2, hosts("8", "9")...)
	becomes(t, w, "app", "1 2 5 6 8 9", changed, 2*time.Second, "another fleet comes")
	becomes(t, w, "app", "8 9", changed, 3*time.Second, "the old one leaves when a second answer lacks it")
	if n := app.least(); n < 2 {
		t.Errorf("%d backends were left once", n)
	}
	if n := others.least(); n != 60 {
		t.Errorf("%d of 60 were left once", n)
	}
	if asked, most := w.sum(t, "weir_discovery_answers_total", `pool="app"`), time.Since(began).Seconds()+2; asked > most {
		t.Errorf("with a time to live of 0 it was asked %g times in %s", asked, time.Since(began))
	}
}

// startUnbound runs a resolver that asks the name server about "test.".
func startUnbound(t *testing.T, n *nameServer) string {
	t.Helper()
	addr, dir := freeAddr(t), t.TempDir()
	_, port, _ := strings.Cut(addr, ":")
	_, stub, _ := strings.Cut(n.addr, ":")
	conf := fmt.Sprintf(`server:
  interface: 127.0.0.1@%s
  port: %[1]s
  do-ip6: no
  do-not-query-localhost: no
  access-control: 127.0.0.0/8 allow
  directory: "%s"
  chroot: ""
  username: ""
  pidfile: "%[2]s/pid"
  use-syslog: no
  logfile: ""
  num-threads: 1
  module-config: "iterator"
  local-zone: "test." nodefault
  cache-max-negative-ttl: 1
  infra-host-ttl: 1
  infra-keep-probing: yes
  outbound-msg-retry: 1
stub-zone:
  name: "test."
  stub-addr: 127.0.0.1@%[3]s
remote-control:
  control-enable: no
`, port, dir, stub)
	file := filepath.Join(dir, "unbound.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, tool(t, "unbound"), "-d", "-p", "-c", file)
	waitListening(t, p, addr)
	return addr
}

// TestDiscoverUnbound: behind a resolver, answers are up to a time to live old and
// say how long they still hold; when the name server is gone they end in SERVFAIL.
func TestDiscoverUnbound(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("many 60 A 127.1.%d.%d", i/200, i%200+1))
	}
	zone := func(last ...string) []string {
		out := slices.Clone(many)
		for _, n := range last {
			out = append(out, "app 3 A 127.0.0."+n)
		}
		return out
	}
	ns := startNameServer(t, zone("1", "2", "3", "4")...)
	resolver := startUnbound(t, ns)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {web: {bind: "${LISTEN}", routes: [{match: {path_prefix: /many}, pool: many}, {pool: app}]}}
pools:
  app: {health: {active: off}, discover: {dns: {name: app.test, port: 80, server: "%[1]s"}}}
  many: {health: {active: off}, discover: {dns: {name: many.test, port: 80, server: "%[1]s"}}}
`, resolver))
	becomes(t, w, "app", "1 2 3 4", time.Now(), 2*time.Second, "the first answer")
	eventually(t, 5*time.Second, "300 records through a resolver", func() bool { return len(w.backends(t, "many")) == 300 })
	app := watchPool(t, w, "app")
	changed := ns.set("app.test", 3, zone("1", "2", "5")...)
	becomes(t, w, "app", "1 2 5", changed, 4*time.Second, "a change behind a resolver's memory of 3 s")
	ns.stop()
	stays(t, w, "app", "1 2 5", "the name server is gone", "SERVFAIL", "no answer in time")
	ns.start()
	eventually(t, 15*time.Second, "discovery works again", func() bool { return !w.discovery(t, "app").Failing })
	if n := app.least(); n < 3 {
		t.Errorf("%d backends were left once", n)
	}
	if n := len(w.backends(t, "many")); n != 300 {
		t.Errorf("%d backends are left of 300", n)
	}
}

// TestDiscoverServices: weights of one priority divide the requests, a worse
// priority is the next tier and takes over when the better one is dead, and weights
// change without anyone leaving.
func TestDiscoverServices(t *testing.T) {
	t.Parallel()
	_, port, _ := strings.Cut(freeAddr(t), ":")
	backends := map[string]*process{}
	for _, ip := range []string{"127.0.7.1", "127.0.7.2", "127.0.7.3"} {
		backends[ip] = startBackend(t, ip+":"+port)
	}
	zone := func(a, b int) []string {
		return []string{
			fmt.Sprintf("_http._tcp 1 SRV 10 %d %s a", a, port), fmt.Sprintf("_http._tcp 1 SRV 10 %d %s b", b, port),
			fmt.Sprintf("_http._tcp 1 SRV 20 1 %s c", port),
			"a 1 A 127.0.7.1", "b 1 A 127.0.7.2", "c 1 A 127.0.7.3",
		}
	}
	ns := startNameServer(t, zone(3, 1)...)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools:
  app:
    balance: round_robin
    slow_start: off
    health: {active: {path: /readyz, interval: 1s, timeout: 400ms, fast_interval: 500ms}}
    discover: {dns: {name: _http._tcp.test, server: "%s", timeout: 300ms}}
`, ns.addr))
	eventually(t, 10*time.Second, "all three are healthy", func() bool {
		all := w.backends(t, "app")
		for _, b := range all {
			if b.Health != "healthy" {
				return false
			}
		}
		return len(all) == 3
	})
	share := func(n int) map[string]int {
		out := map[string]int{}
		for range n {
			body := get(t, w.url("/"))
			for ip := range backends {
				if strings.Contains(body, "hello from "+ip+":") {
					out[ip]++
				}
			}
		}
		return out
	}
	if got := share(80); got["127.0.7.1"] != 60 || got["127.0.7.2"] != 20 || got["127.0.7.3"] != 0 {
		t.Errorf("weights 3 and 1, and a worse priority: %v", got)
	}
	ns.write(zone(1, 4))
	ns.p.signal(syscall.SIGHUP)
	eventually(t, 2*time.Second+followed, "new weights", func() bool { return strings.Join(w.weights(t, "app"), " ") == "127.0.7.1=1 127.0.7.2=4 127.0.7.3=1" })
	var got map[string]int
	eventually(t, 5*time.Second, "requests follow the new weights", func() bool {
		got = share(50)
		return got["127.0.7.1"] == 10 && got["127.0.7.2"] == 40
	})
	backends["127.0.7.1"].signal(os.Kill)
	backends["127.0.7.2"].signal(os.Kill)
	eventually(t, 15*time.Second, "the next priority takes over", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return strings.Contains(w.try(ctx, "/"), "hello from 127.0.7.3:")
	})
	if got = share(20); got["127.0.7.3"] != 20 {
		t.Errorf("with the first tier dead: %v", got)
	}
}
