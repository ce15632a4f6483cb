// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// upgradeRig is a live weir whose binary can be replaced, with backends behind it.
type upgradeRig struct {
	*live
	world            *world
	bin              string // path that it is started from
	web, tls, status string
	trust            *tls.Config
	extra            string // further keys of the configuration
	mark             int    // that route /g tells
}

func newUpgradeRig(t *testing.T, extra string) *upgradeRig {
	t.Helper()
	r := &upgradeRig{world: newWorld(t, 3), web: freeAddr(t), tls: freeAddr(t), status: freeAddr(t), extra: extra}
	ca := weirtest.NewAuthority(t)
	cert, key := ca.Write(t.TempDir(), "weir", ca.Issue("weir.test"))
	r.trust = &tls.Config{RootCAs: ca.Pool(), ServerName: "weir.test"}
	r.bin = filepath.Join(t.TempDir(), "weir")
	r.install("")
	r.live = startLive(t, r.bin, func(dir string) string { return r.text(dir, cert, key) })
	return r
}

func (r *upgradeRig) text(dir, cert, key string) string {
	route := fmt.Sprintf(`routes: [{match: {path_prefix: /g}, pool: app, request_headers: {set: {X-Generation: "%d"}}}, {pool: app}]`, r.mark)
	return fmt.Sprintf(`admin: {bind: "unix:%s/admin.sock"}
status: {bind: %q}
log: {access: off}
shutdown: {delay: none, deadline: 5s}
listeners:
  web: {bind: [%q, "unix:%s/web.sock"], %s}
  secure: {bind: %q, tls: {certificates: [{cert: %q, key: %q}]}, %s}
pools:
  app:
    timeouts: {keepalive: 1s}
    backends: ["http://%s"]
%s`, dir, r.status, r.web, dir, route, r.tls, cert, key, route, strings.Join(r.world.backends, `", "http://`), r.extra)
}

// install puts a binary into its place, as a package manager does: by renaming.
// A text is a script in its stead; ${WEIR} in it is the real binary.
func (r *upgradeRig) install(script string) {
	next := r.bin + ".new"
	err := os.Remove(next)
	if err != nil && !os.IsNotExist(err) {
		panic(err)
	}
	if script == "" {
		err = os.Link(binary, next)
		if err != nil { // another file system
			var text []byte
			if text, err = os.ReadFile(binary); err == nil {
				err = os.WriteFile(next, text, 0o755)
			}
		}
	} else {
		err = os.WriteFile(next, []byte(strings.ReplaceAll(script, "${WEIR}", binary)), 0o755)
	}
	if err = errorsFirst(err, os.Rename(next, r.bin)); err != nil {
		panic(err)
	}
}

// upgrade has the process replaced, by command or by SIGUSR2, and returns the
// number of the process that was.
func (r *upgradeRig) upgrade(bySignal bool) (old int) {
	r.t.Helper()
	old = r.pid
	if bySignal {
		if err := syscall.Kill(old, syscall.SIGUSR2); err != nil {
			r.t.Fatal(err)
		}
		eventually(r.t, 20*time.Second, "another process serves", func() bool { return r.ask().PID != old })
	} else if out := r.must("upgrade"); !strings.Contains(out, fmt.Sprintf("process %d drains", old)) {
		r.t.Fatalf("weir upgrade prints\n%s", out)
	}
	s := r.ask()
	if s.PID == old || !s.Ready || s.Predecessor == nil || s.Predecessor.PID != old {
		r.t.Fatalf("after an upgrade: %+v", s)
	}
	r.pid = s.PID
	r.reap(r.pid)
	return old
}

// gone waits until processes have ended, and holds their exit code.
func (r *upgradeRig) gone(limit time.Duration, pids ...int) {
	r.t.Helper()
	for _, pid := range pids {
		eventually(r.t, limit, fmt.Sprintf("process %d has ended", pid), func() bool { _, over := r.exit(pid); return over })
		if code, _ := r.exit(pid); code != 0 {
			r.t.Errorf("process %d ended with %d", pid, code)
		}
	}
}

// doors returns the flags of the listening sockets of a process, by descriptor.
func doors(t *testing.T, pid int) map[string]int64 {
	t.Helper()
	listening := map[string]bool{}
	for file, is := range map[string]func(f []string) (string, bool){
		"tcp":  func(f []string) (string, bool) { return f[9], f[3] == "0A" },
		"unix": func(f []string) (string, bool) { return f[6], f[3] == "00010000" },
	} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) >= 7 && f[0] != "sl" && f[0] != "Num" {
				if inode, ok := is(f); ok {
					listening["socket:["+inode+"]"] = true
				}
			}
		}
	}
	out := map[string]int64{}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		if err != nil || !listening[to] {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		_, rest, _ := strings.Cut(string(info), "flags:")
		flags, err := strconv.ParseInt(strings.Fields(rest)[0], 8, 64)
		if err != nil {
			t.Fatal(err)
		}
		out[fd.Name()+" "+to] = flags
	}
	return out
}

// nonblocking holds that the listening sockets of a process stay non-blocking:
// the flag belongs to the socket, and who clears it for itself hangs the other.
func nonblocking(t *testing.T, pid, want int) {
	t.Helper()
	got := doors(t, pid)
	if want > 0 && len(got) != want {
		t.Errorf("process %d listens on %d sockets, not %d: %v", pid, len(got), want, got)
	}
	for fd, flags := range got {
		if flags&syscall.O_NONBLOCK == 0 {
			t.Errorf("process %d: descriptor %s blocks: flags %o", pid, fd, flags)
		}
	}
}

// session makes one TLS connection and request, and reports whether the session
// was resumed. The next call with the same configuration can resume it.
func (r *upgradeRig) session(cfg *tls.Config) bool {
	r.t.Helper()
	c, err := tls.Dial("tcp", r.tls, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := talk(c, bufio.NewReader(c), "GET /g HTTP/1.1\r\nHost: x\r\nConnection: close", ""); err != nil {
		r.t.Fatal(err)
	}
	return c.ConnectionState().DidResume
}

// readiness asks the status address again and again; it must not fail while
// another process takes over.
func (r *upgradeRig) readiness(l *load) {
	c := &http.Client{Timeout: loadLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	for !over(l.stop) {
		resp, err := c.Get("http://" + r.status + "/readyz")
		if err == nil {
			var text []byte
			text, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%d %s", resp.StatusCode, text)
			}
		}
		if err != nil {
			l.fault("/readyz", err)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *upgradeRig) loaded(streams int) *load {
	l := newLoad(r.t)
	l.web, l.tls, l.sock, l.trust, l.handover = r.web, r.tls, filepath.Join(r.dir, "web.sock"), r.trust, true
	l.begin(streams)
	l.asking.Go(func() { r.readiness(l) })
	return l
}

// TestUpgrades replaces a process again and again under load: nobody is refused,
// no request fails, streams go on in the process that they began in, TLS sessions
// are resumed by the next, and nothing is left of those before.
func TestUpgrades(t *testing.T) {
	r := newUpgradeRig(t, "")
	sessions := r.trust.Clone()
	sessions.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	r.session(sessions) // so that what is opened with the first use is open
	rest := r.atRest()
	l := r.loaded(upgradeStreams)
	r.session(sessions)
	time.Sleep(300 * time.Millisecond) // for the load to be one
	var old []int
	for i := range upgradeTimes {
		was := r.ask().Generation
		resumed := l.resumed.Load()
		old = append(old, r.upgrade(i%2 == 1))
		nonblocking(t, r.pid, 5)
		nonblocking(t, old[i], 0) // it may have closed them already
		if !r.session(sessions) {
			t.Errorf("upgrade %d: the session of the process before was not resumed", i+1)
		}
		if g := r.ask().Generation; g < was {
			t.Errorf("upgrade %d: generation %d after %d", i+1, g, was)
		}
		l.addStreams(max(1, upgradeStreams/10), "")
		eventually(t, 5*time.Second, "TLS clients go on", func() bool { return l.resumed.Load() > resumed+5 })
	}
	if all := r.processes(); len(all) != len(old)+1 {
		t.Errorf("streams go on, so %d processes drain; there are %v", len(old), all)
	}
	l.quiet()
	if full := l.sessions.Load() - l.resumed.Load(); full > int64(2*upgradeStreams+10+upgradeTimes*2*upgradeStreams/10) {
		t.Errorf("%d TLS handshakes in full", full)
	}
	l.end(r.world)
	r.gone(20*time.Second, old...)
	if all := r.processes(); !slices.Equal(all, []int{r.pid}) {
		t.Errorf("processes %v are left, %d serves", all, r.pid)
	}
	end := r.atRest()
	t.Logf("%s; at first %+v, in the end %+v", l, rest, end)
	if end.files > rest.files || end.goroutines > rest.goroutines+2 {
		t.Errorf("at first %+v, in the end %+v:\n%s", rest, end, r.sockets())
	}
}

// atRest returns what the process uses when nothing is in use.
func (r *upgradeRig) atRest() (u holding) {
	r.t.Helper()
	since := time.Now()
	eventually(r.t, 20*time.Second, "nothing is in use", func() bool {
		if now := r.use(); u.files == 0 || now.files < u.files || now.goroutines < u.goroutines {
			u, since = now, time.Now()
		}
		return r.sum("weir_in_flight", "") == 0 && r.sum("weir_connections", "") == 0 && time.Since(since) > 1500*time.Millisecond
	})
	return u
}

// A binary or a configuration that does not serve leaves the process that does,
// with the reason told to who asked and to the log.
func TestUpgradeToSomethingBroken(t *testing.T) {
	t.Parallel()
	r := newUpgradeRig(t, "")
	l := r.loaded(2)
	good, err := os.ReadFile(r.config)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range brokenUpgrades {
		if c.spoil != nil {
			c.spoil(r)
		} else {
			r.install(c.script)
		}
		args := []string{"upgrade"}
		if c.binary != "" {
			args = append(args, "--binary", c.binary)
		}
		out, code := r.run(args...)
		if code != 1 || !strings.Contains(out, c.say) {
			t.Errorf("%s: exit code %d, want %q in\n%s", c.name, code, c.say, out)
		}
		if !strings.Contains(r.said(), c.say) {
			t.Errorf("%s: the log does not say %q", c.name, c.say)
		}
		if s := r.ask(); s.PID != r.pid || !s.Ready || s.Successor != nil {
			t.Errorf("%s: %+v", c.name, s)
		}
		if n := r.sum("weir_upgrades_total", ""); int(n) != i+1 {
			t.Errorf("%s: %v upgrades are counted, not %d", c.name, n, i+1)
		}
		eventually(t, 5*time.Second, c.name+": nothing is left of it", func() bool { return len(r.processes()) == 1 })
		r.write(string(good))
	}
	nonblocking(t, r.pid, 5)
	r.must("reload") // is possible again
	r.install("")
	old := r.upgrade(false)
	l.quiet()
	l.end(r.world)
	r.gone(20*time.Second, old)
}

type brokenUpgrade struct {
	name, script, binary string
	say                  string // in the answer and in the log
	spoil                func(*upgradeRig)
}

var brokenUpgrades = append([]brokenUpgrade{
	{name: "a text", script: "this is no binary\n", say: "exec format error"},
	{name: "exits", script: "#!/bin/sh\necho I cannot >&2\nexit 1\n", say: "exit status 1"},
	{name: "crashes", script: "#!/bin/sh\nkill -9 $$\n", say: "killed"},
	{name: "another program", script: "#!/bin/sh\nexec cat <&3 >&3\n", say: "no"},
	{name: "no such file", binary: "/nonexistent/weir", say: "/nonexistent/weir: no such file"},
	{name: "a directory", binary: "/tmp", say: "/tmp is not a file"},
	{name: "gone", spoil: func(r *upgradeRig) { _ = os.Remove(r.bin) }, say: "no such file"},
	{name: "not executable", spoil: func(r *upgradeRig) { r.install(""); r.install("x"); _ = os.Chmod(r.bin, 0o600) }, say: "chmod +x"},
	{name: "configuration with a mistake", spoil: func(r *upgradeRig) {
		r.install("")
		r.write("listeners: {web: {bind: \":0\", pool: nobody}}\npools: {app: {backends: [\"http://127.0.0.1:1\"]}}\n")
	}, say: "there is no pool"},
	{name: "configuration that cannot be bound", spoil: func(r *upgradeRig) {
		text, err := os.ReadFile(r.config)
		if err != nil {
			r.t.Fatal(err)
		}
		r.write(strings.Replace(string(text), r.web, r.world.backends[0], 1))
	}, say: "address already in use"},
}, hangingUpgrades...)
