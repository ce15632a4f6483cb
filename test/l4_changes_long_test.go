// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// ways are all ways in which a session comes in: passed on as TCP, by the name in a
// hello, with TLS ended by weir, behind a PROXY header, and over a unix socket.
type ways struct {
	*live
	ca  *weirtest.Authority
	at  map[string]string
	all []*told
}

// told is an open session and how it came in.
type told struct {
	*chat
	way string
}

func (w *ways) dial(way string) (net.Conn, error) {
	over := func(addr, name string) (net.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", addr, &tls.Config{RootCAs: w.ca.Pool(), ServerName: name})
	}
	switch way {
	case "named":
		return over(w.at["front"], "pass.test")
	case "ended":
		return over(w.at["front"], "ended.test")
	case "unix":
		return net.Dial("unix", w.dir+"/lines.sock")
	case "proxied":
		c, err := net.Dial("tcp", w.at["proxied"])
		if err == nil {
			_, err = io.WriteString(c, "PROXY TCP4 192.0.2.7 198.51.100.7 5 4433\r\n")
		}
		return c, err
	default: // lines and inner
		return net.Dial("tcp", w.at[way])
	}
}

var allWays = []string{"lines", "named", "ended", "inner", "proxied", "unix"}

// ofSecure are the ways to backends that have TLS: the client's own, and weir's.
var ofSecure = []string{"named", "inner"}

// open opens so many sessions of each way, and returns them.
func (w *ways) open(n int, only ...string) []*told {
	w.t.Helper()
	if len(only) == 0 {
		only = allWays
	}
	var fresh []*told
	for _, way := range only {
		for range n {
			c, err := w.dial(way)
			if err != nil {
				w.t.Fatalf("%s: %v", way, err)
			}
			s, err := chatOver(c)
			if err != nil {
				w.t.Fatalf("%s: %v", way, err)
			}
			fresh = append(fresh, &told{s, way})
		}
	}
	w.all = append(w.all, fresh...)
	return fresh
}

// broken says something in every session, and returns those that have ended; they
// are left out from then on.
func (w *ways) broken(what string) (gone []*told) {
	var left []*told
	for _, s := range w.all {
		if err := s.say(what); err != nil {
			_ = s.c.Close()
			gone = append(gone, s)
			continue
		}
		left = append(left, s)
	}
	w.all = left
	return gone
}

func (w *ways) whole(what string) {
	w.t.Helper()
	for _, s := range w.broken(what) {
		w.t.Errorf("%s: a session of %s with %s broke", what, s.way, s.with)
	}
}

// with counts sessions that lead to one of the backends.
func (w *ways) with(addrs ...string) (n int) {
	for _, s := range w.all {
		if slices.Contains(addrs, s.with) {
			n++
		}
	}
	return n
}

// lines returns the lines of the access log that have all of the texts.
func (w *ways) lines(texts ...string) int {
	text := string(read(w.t, w.dir+"/access.log"))
	for _, s := range texts {
		text = grep(text, s)
	}
	return strings.Count(text, "\n")
}

// TestSessionsOverChangesLong: what reloads change, add and remove, an upgrade, its
// deadline and the end of weir do to sessions of every kind what they are to do, and
// no more: it is said why each ended, and no backend is blamed.
func TestSessionsOverChangesLong(t *testing.T) {
	w := &ways{ca: weirtest.NewAuthority(t), at: map[string]string{}}
	for _, name := range []string{"lines", "front", "inner", "proxied"} {
		w.at[name] = freeAddr(t)
	}
	secure := &tls.Config{Certificates: []tls.Certificate{w.ca.Issue("pass.test")}}
	a, b, c := startTalker(t), startTalker(t), startTalker(t)
	s1, s2 := startSecureTalker(t, secure), startSecureTalker(t, secure)
	files := t.TempDir()
	cert, key := w.ca.Write(files, "ended", w.ca.Issue("ended.test"))
	authority := w.ca.WritePool(files)
	urls := func(all ...*talker) string {
		var out []string
		for _, s := range all {
			out = append(out, fmt.Sprintf("%q", "tcp://"+s.addr))
		}
		return strings.Join(out, ", ")
	}
	type plan struct{ pool, talkers, secure, balance, idle, more string }
	p := plan{"talkers", urls(a, b), urls(s1, s2), "round_robin", "1h", ""}
	proxied := fmt.Sprintf("  proxied: {bind: %q, protocol: tcp, proxy_protocol: {mode: required, from: [127.0.0.1]}, pool: POOL}\n", w.at["proxied"])
	p.more = proxied
	text := func(dir string) string {
		return strings.ReplaceAll(fmt.Sprintf(`admin: {bind: "unix:%[1]s/admin.sock"}
log: {access: {path: %[1]s/access.log}}
upgrade: {deadline: 13s}
shutdown: {delay: none, deadline: 3s, spread: 1s}
listeners:
  lines: {bind: [%[2]q, "unix:%[1]s/lines.sock"], protocol: tcp, pool: POOL, timeouts: {idle: %[3]s}}
  front:
    bind: %[4]q
    protocol: sni
    routes: [{match: {sni: pass.test}, pool: secure}, {match: {sni: ended.test}, listener: ended}]
  ended: {protocol: tcp, tls: {certificates: [{cert: %[5]q, key: %[6]q}]}, pool: POOL}
  inner: {bind: %[11]q, protocol: tcp, pool: inner, timeouts: {idle: %[3]s}}
%[7]spools:
  POOL: {balance: %[8]s, backends: [%[9]s], slow_start: {window: none}, health: {active: {interval: 1s, fast_interval: 200ms, rise: 1}}, drain: {deadline: 3s, spread: 500ms}}
  secure: {balance: %[8]s, backends: [%[10]s], health: {active: {interval: 1s, fast_interval: 200ms, rise: 1}}, drain: {deadline: 3s, spread: 500ms}}
  inner: {balance: %[8]s, backends: [%[12]s], tls: {ca: %[13]q, server_name: pass.test}, health: {active: {interval: 1s, fast_interval: 200ms, rise: 1}}, drain: {deadline: 3s, spread: 500ms}}
`, dir, w.at["lines"], p.idle, w.at["front"], cert, key, p.more, p.balance, p.talkers, p.secure, w.at["inner"], strings.ReplaceAll(p.secure, "tcp://", "tls://"), authority), "POOL", p.pool)
	}
	w.live = startLive(t, binary, text)
	t.Cleanup(func() {
		for _, s := range w.all {
			_ = s.c.Close()
		}
	})
	reload := func() {
		t.Helper()
		w.write(text(w.dir))
		w.must("reload")
	}
	blameless := func() {
		t.Helper()
		for _, name := range []string{"weir_ejections_total", "weir_bug_total", "weir_panic", "weir_backend_flips_total"} {
			if v := w.sum(name, ""); v != 0 {
				t.Errorf("%s is %v", name, v)
			}
		}
	}

	w.open(10)
	w.whole("all is well")

	// A backend more, another policy, other times: nobody notices, and newcomers come to it.
	p.talkers, p.balance, p.idle = urls(a, b, c), "least_request", "2h"
	reload()
	w.whole("with a backend more")
	eventually(t, 20*time.Second, "the backend that was added has sessions", func() bool {
		w.open(1)
		return w.with(c.addr) > 0
	})
	w.open(10)
	// What is refused changes nothing.
	w.write(strings.Replace(text(w.dir), "balance: ", "ballance: ", 1))
	if out, code := w.run("reload"); code == 0 {
		t.Errorf("a bad configuration is taken: %s", out)
	}
	w.whole("after a reload that was refused")

	// Backends that leave: their sessions go on until the deadline, and end for it.
	leaving := w.with(a.addr, s1.addr)
	p.talkers, p.secure = urls(b, c), urls(s2)
	reload()
	w.whole("right after backends have left")
	for _, s := range w.open(10) {
		if s.with == a.addr || s.with == s1.addr {
			t.Errorf("a new session of %s went to a backend that has left", s.way)
		}
	}
	cut := 0
	eventually(t, 30*time.Second, "the sessions of who has left end", func() bool {
		for _, s := range w.broken("waiting") {
			if cut++; s.with != a.addr && s.with != s1.addr {
				t.Errorf("a session of %s with %s broke for others", s.way, s.with)
			}
		}
		return w.with(a.addr, s1.addr) == 0
	})
	w.whole("the others go on")
	if cut != leaving || leaving < 20 {
		t.Errorf("%d sessions were cut, %d had a backend that left", cut, leaving)
	}
	eventually(t, 10*time.Second, "the log says why", func() bool { return w.lines(`"reason":"drain_cut"`, `drain`) == cut })
	if v := w.sum("weir_sessions_total", `reason="drain_cut"`); int(v) != cut {
		t.Errorf("%v sessions are counted as cut, %d were", v, cut)
	}

	// A pool of another name in the place of one, and a listener that leaves.
	p.pool, p.more = "others", ""
	leftPool := 0
	for _, s := range w.all {
		if !slices.Contains(ofSecure, s.way) {
			leftPool++
		}
	}
	reload()
	w.whole("right after a pool and a listener have left")
	fresh := w.open(10, "lines", "named", "ended", "inner", "unix")
	if _, err := net.Dial("tcp", w.at["proxied"]); err == nil {
		t.Error("the listener that has left accepts")
	}
	// It drains when nothing leads to it any more, and its sessions end with its deadline.
	ended := 0
	eventually(t, 40*time.Second, "the sessions of the pool that left end", func() bool {
		for _, s := range w.broken("after its pool has left") {
			if ended++; slices.Contains(ofSecure, s.way) || slices.Contains(fresh, s) {
				t.Errorf("a session of %s, whose pool stays, broke", s.way)
			}
		}
		return ended == leftPool
	})
	w.whole("those of pools that stay go on")
	blameless()

	// An upgrade: sessions go on where they are until its deadline.
	p.more = proxied
	reload()
	w.open(5)
	p.more = "" // without its pool: what it has goes on
	reload()
	w.whole("after a listener has left alone")
	p.more = proxied
	reload()
	before, pid := slices.Clone(w.all), w.pid
	if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "another process serves", func() bool { return w.ask().PID != pid })
	w.pid = w.ask().PID
	w.reap(w.pid)
	w.whole("after the upgrade")
	after := w.open(5)
	eventually(t, 40*time.Second, "the predecessor's deadline ends its sessions", func() bool {
		for _, s := range w.broken("until the deadline") {
			if slices.Contains(after, s) {
				t.Errorf("a session of %s with the successor broke", s.way)
			}
		}
		return len(w.all) == len(after)
	})
	eventually(t, 20*time.Second, "the predecessor is gone", func() bool { _, over := w.exit(pid); return over })
	if code, _ := w.exit(pid); code != 0 {
		t.Errorf("the predecessor ended with %d", code)
	}
	if n := w.lines(`"reason":"drain_cut"`) - cut - leftPool; n != len(before) {
		t.Errorf("%d sessions are logged as cut, %d were", n, len(before))
	}
	w.whole("those of the successor go on")
	blameless()

	// The end, with a deadline.
	if err := syscall.Kill(w.pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.whole("when weir is told to end")
	eventually(t, 20*time.Second, "weir ends", func() bool { _, over := w.exit(w.pid); return over })
	if code, _ := w.exit(w.pid); code != 0 {
		t.Errorf("weir ended with %d", code)
	}
	if n := len(w.broken("it is over")); n != len(after) {
		t.Errorf("%d of %d sessions ended", n, len(after))
	}
	if !strings.Contains(w.said(), "cut") {
		t.Error("the log does not say that sessions were cut")
	}
}
