// SPDX-License-Identifier: Apache-2.0

package test

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// reloadRig is a live weir, the backends behind it and the load in front.
type reloadRig struct {
	*live
	world      *world
	load       *load
	web, tls   string
	side       [2]string // where listener side is, in turn
	cert, key  string
	generation int // that serves
	next       int // number of the configuration written last
}

func newReloadRig(t *testing.T) *reloadRig {
	t.Helper()
	r := &reloadRig{world: newWorld(t, 4), web: freeAddr(t), tls: freeAddr(t), side: [2]string{freeAddr(t), freeAddr(t)}}
	ca := weirtest.NewAuthority(t)
	r.cert, r.key = ca.Write(t.TempDir(), "weir", ca.Issue("weir.test"))
	r.live = startLive(t, binary, r.text)
	r.load = newLoad(t)
	r.load.web, r.load.tls, r.load.sock = r.web, r.tls, filepath.Join(r.dir, "web.sock")
	r.load.trust = &tls.Config{RootCAs: ca.Pool(), ServerName: "weir.test"}
	r.generation = r.ask().Generation
	return r
}

// text is the configuration number r.next. Route /g says the number; pool stay
// keeps its first backend, and gets and loses others; pool brief is there every
// other time; listener side comes, moves and goes; the others get other settings
// where they are.
func (r *reloadRig) text(dir string) string {
	n, b := r.next, r.world.backends
	var more, brief, route, side string
	if n%3 != 0 {
		more = fmt.Sprintf(`, {url: "http://%s", weight: %d}`, b[1+n%2], 1+n%5)
	}
	if n%2 == 0 {
		brief = fmt.Sprintf("  brief: {backends: [\"http://%s\"], drain: {deadline: none}, upstream: {max_idle: 4}, timeouts: {keepalive: 1s}}\n", b[3])
		route = `{match: {path_prefix: /brief}, pool: brief}, `
	}
	if n%4 != 3 {
		side = fmt.Sprintf("  side: {bind: %q, pool: stay}\n", r.side[n%2])
	}
	return fmt.Sprintf(`admin: {bind: "unix:%s/admin.sock"}
log: {access: off}
listeners:
  web:
    bind: [%q, "unix:%s/web.sock"]
    timeouts: {idle: %ds, header: %ds}
    limits: {max_connections: %s}
    routes: [%s{match: {path_prefix: /g}, pool: stay, request_headers: {set: {X-Generation: "%d"}}}, {pool: stay}]
  secure:
    bind: %q
    tls: {certificates: [{cert: %q, key: %q}], min_version: %q}
    routes: [%s{match: {path_prefix: /g}, pool: stay, request_headers: {set: {X-Generation: "%d"}}}, {pool: stay}]
%spools:
  stay:
    balance: %s
    limits: {requests: %s}
    timeouts: {connect: %ds, keepalive: 1s}
    health: {active: {interval: %ds}}
    drain: {deadline: none}
    slow_start: {window: 2s}
    backends: ["http://%s"%s]
%s`, dir, r.web, dir, 60+n%3, 10+n%2, []string{"none", "5000"}[n%2], route, n,
		r.tls, r.cert, r.key, []string{"1.2", "1.3"}[n%2], route, n, side,
		[]string{"p2c", "round_robin", "peak_ewma", "maglev"}[n%4], []string{"none", "1000"}[n%2], 2+n%3, 2+n%4, b[0], more, brief)
}

// reload writes the next configuration and has it read, by SIGHUP and by `weir
// reload` in turn, and returns when it is in force. Every tenth is broken and
// must be refused, with the place and the reason.
func (r *reloadRig) reload() {
	r.t.Helper()
	r.next++
	text := r.text(r.dir)
	broken := r.next%10 == 0
	if broken {
		text = strings.Replace(text, "\npools:", "\npolls:", 1)
	}
	r.write(text)
	refused := r.sum("weir_config_reloads_total", `outcome="failure"`)
	if r.next%4 < 2 {
		if err := syscall.Kill(r.pid, syscall.SIGHUP); err != nil {
			r.t.Fatal(err)
		}
		eventually(r.t, 10*time.Second, fmt.Sprintf("SIGHUP %d has worked", r.next), func() bool {
			if broken {
				return r.sum("weir_config_reloads_total", `outcome="failure"`) > refused
			}
			return r.ask().Generation > r.generation
		})
	} else {
		out, code := r.run("reload")
		switch {
		case broken && (code != 1 || !strings.Contains(out, `"polls" is not a key`) || !strings.Contains(out, filepath.Base(r.config)+":")):
			r.t.Fatalf("a broken file: exit code %d\n%s", code, out)
		case !broken && code != 0:
			r.t.Fatalf("weir reload: exit code %d\n%s\n%s", code, out, text)
		}
	}
	was := r.generation
	if r.generation = r.ask().Generation; broken == (r.generation > was) {
		r.t.Fatalf("configuration %d, broken: %t: generation %d after %d", r.next, broken, r.generation, was)
	}
	if broken {
		return
	}
	r.load.least.Store(int64(r.next))
	r.sideIsRight()
}

// sideIsRight looks whether the listener that comes and goes is where the
// configuration says, and nowhere else.
func (r *reloadRig) sideIsRight() {
	r.t.Helper()
	for i, addr := range r.side {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err == nil {
			c.Close()
		}
		if want := r.next%4 != 3 && i == r.next%2; want != (err == nil) {
			r.t.Fatalf("configuration %d: listener side at %d: %v", r.next, i, err)
		}
	}
}

// settled returns what the process uses once nothing is in use and ok holds, or
// what it uses when that has not come for long.
func (r *reloadRig) settled(ok func(holding) bool) (u holding) {
	r.t.Helper()
	until := time.Now().Add(20 * time.Second)
	for {
		u = r.use()
		if r.sum("weir_in_flight", "") == 0 && r.sum("weir_connections", "") == 0 && ok(u) || time.Now().After(until) {
			return u
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestReloads reloads a real process again and again, by SIGHUP and by command
// in turn, while slow downloads, tunnels, keep-alive and other clients go on: no
// request fails, nothing is closed, every reload is in force for the next
// request, and in the end the process holds what it held before.
func TestReloads(t *testing.T) {
	r := newReloadRig(t)
	kept := r.world.backends[0]
	r.must("weight", "stay/"+kept, "9")
	// What a process of this configuration holds at rest is known once all has been
	// in use: series and buffers come into being with the first use.
	first := r.load
	first.begin(reloadStreams)
	for range reloadWarm {
		r.reload()
	}
	first.quiet()
	first.end(r.world)
	before := r.settledLow()
	t.Logf("warm: %s; then %+v", first, before)

	r.world.stop = make(chan struct{})
	r.load = newLoad(t)
	r.load.web, r.load.tls, r.load.sock, r.load.trust = first.web, first.tls, first.sock, first.trust
	r.load.least.Store(int64(r.next))
	r.load.begin(reloadStreams)
	if r.next%2 != 0 {
		r.reload()
	}
	r.load.addStreams(reloadStreams/10, "/brief") // through a pool that is removed meanwhile
	for range reloadTimes {
		r.reload()
	}
	b := r.backend("stay", kept)
	if b.Weight != 9 || b.Override == nil {
		t.Errorf("the override has gone: %+v", b)
	}
	if b.Health != "healthy" || b.Flips != 0 {
		t.Errorf("the backend that stayed was not left alone: %+v", b)
	}
	r.load.quiet()
	if n := r.load.closed.Load(); n > 0 {
		t.Errorf("%d answers said Connection: close", n)
	}
	r.load.end(r.world)
	for r.next%reloadCycle != reloadWarm%reloadCycle { // the same configuration as before
		r.reload()
	}
	after := r.settledLow(before)
	t.Logf("%s; %d reloads; then %+v", r.load, reloadTimes, after)
	if !within(after, before) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if all := r.processes(); len(all) != 1 || all[0] != r.pid {
		t.Errorf("processes %v", all)
	}
}

// within reports whether what is used has come back within 2 %. Descriptors and
// goroutines are a few dozen at rest, so for them it means none. The heap has
// in addition what is remembered on purpose, up to fixed bounds: an event for
// each reload, and the series of backends that left, for ten minutes.
func within(after, before holding) bool {
	return after.files <= before.files*102/100 && after.pipes <= 2*16 && after.goroutines <= before.goroutines*102/100 &&
		after.heap <= before.heap*102/100+reloadRemembered
}

const reloadRemembered = 64 << 10

// reloadRest is longer than idle connections are kept in these configurations.
const reloadRest = 2 * time.Second

// settledLow waits until nothing is in use and returns what the process then
// holds; with a bound, as soon as it is within that.
func (r *reloadRig) settledLow(bound ...holding) holding {
	r.t.Helper()
	if len(bound) > 0 {
		return r.settled(func(u holding) bool { return within(u, bound[0]) })
	}
	var least holding
	since := time.Now()
	return r.settled(func(u holding) bool { // until it has stopped falling
		if least.files == 0 || u.files < least.files || u.goroutines < least.goroutines || u.heap < least.heap*99/100 {
			least, since = u, time.Now()
		}
		return time.Since(since) > reloadRest
	})
}

// liveBackend is what tests look at of a backend.
type liveBackend struct {
	ID       string  `json:"id"`
	Admin    string  `json:"admin"`
	Health   string  `json:"health"`
	Share    float64 `json:"share"`
	Reason   string  `json:"reason"`
	Weight   int     `json:"weight"`
	Flips    int     `json:"flips"`
	Override any     `json:"override"`
}

func (w *live) backend(pool, id string) (b liveBackend) {
	w.t.Helper()
	w.decode("/api/v1/pools/"+pool+"/backends/"+id, &b)
	return b
}

// A file that cannot be read, is empty or is not there changes nothing, and is
// read again as soon as it is mended.
func TestReloadOfNoFile(t *testing.T) {
	t.Parallel()
	back := newWorld(t, 1).backends[0]
	web := freeAddr(t)
	good := fmt.Sprintf("listeners: {web: {bind: %q, pool: app}}\npools: {app: {backends: [\"http://%s\"]}}\n", web, back)
	w := startLive(t, binary, func(dir string) string { return fmt.Sprintf("admin: {bind: \"unix:%s/admin.sock\"}\n", dir) + good })
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, say string
		spoil     func() error
	}{
		{"gone", "no such file", func() error { return os.Remove(w.config) }},
		{"empty", "weir.yaml", func() error { return os.WriteFile(w.config, nil, 0o600) }},
		{"half", "weir.yaml", func() error { return os.WriteFile(w.config, text[:len(text)/2], 0o600) }},
		{"an empty folder", "there is no *.yaml", func() error { return errorsFirst(os.Remove(w.config), os.Mkdir(w.config, 0o700)) }},
	} {
		if err := c.spoil(); err != nil {
			t.Fatal(err)
		}
		if out, code := w.run("reload"); code != 1 || !strings.Contains(out, c.say) {
			t.Errorf("%s: exit code %d, and no %q:\n%s", c.name, code, c.say, out)
		}
		if s := w.ask(); s.Generation != 1 || !s.Ready {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
	if err := os.Remove(w.config); err != nil {
		t.Fatal(err)
	}
	w.write(string(text))
	if out := w.must("reload"); !strings.Contains(out, "generation 2 serves") {
		t.Errorf("mended: %s", out)
	}
}

func errorsFirst(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	reloadCycle = 60 // after so many the configuration is the same again, but for the number
	reloadWarm  = 14
)
