// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// inner is what a test of sessions does in a network of its own: backends and
// clients on addresses that nobody else has, a weir that is asked over a socket.
type inner struct {
	*namespace
	w   *weir
	log string
}

// talker starts a talker inside.
func (n *inner) talker(addr string) *talker {
	n.t.Helper()
	s := &talker{t: n.t, addr: addr}
	n.inside(s.start)
	n.t.Cleanup(s.kill)
	return s
}

// chat opens a session from inside.
func (n *inner) chat(addr string) (s *chat, err error) {
	n.t.Helper()
	n.inside(func() { s, err = openChat(addr) })
	if err == nil {
		n.t.Cleanup(func() { _ = s.c.Close() })
	}
	return s, err
}

// run starts weir inside.
func (n *inner) run(text string) {
	n.t.Helper()
	dir := n.t.TempDir()
	sock, file := filepath.Join(dir, "admin.sock"), filepath.Join(dir, "weir.yaml")
	n.log = filepath.Join(dir, "access.log")
	text = fmt.Sprintf("admin: {bind: \"unix:%s\"}\nlog: {access: {path: %q}}\n", sock, n.log) + text
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.w = &weir{process: n.spawn(binary, "run", "-c", file), admin: "weir"}
	d := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", sock) }, DisableKeepAlives: true}
	n.w.over(n.t, &http.Client{Transport: d, Timeout: 10 * time.Second})
	eventually(n.t, 20*time.Second, "weir serves", func() bool {
		res, err := http.Get("http://weir/readyz")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == 200
	})
}

// TestSessionsOwnPortsLong: of 40 local ports all are taken. Sessions that would need
// another one are reset and say why, those that are open go on, no backend is blamed,
// and ports that become free are used.
func TestSessionsOwnPortsLong(t *testing.T) {
	n := &inner{namespace: newNamespace(t, "ipv4/ip_local_port_range=20000 20039", "ipv4/tcp_tw_reuse=0")}
	n.talker("127.0.0.1:9001")
	n.run(`listeners: {lines: {bind: ["127.0.0.2:9100", "127.0.0.3:9100"], protocol: tcp, pool: app}}
pools: {app: {backends: ["tcp://127.0.0.1:9001"], health: {active: {interval: 1s}}}}
`)
	var open []*chat
	missed := 0
	for i := range 60 { // 30 ports of clients towards each address
		s, err := n.chat([]string{"127.0.0.2:9100", "127.0.0.3:9100"}[i%2])
		switch {
		case err == nil:
			open = append(open, s)
		case wasReset(err):
			missed++
		default:
			t.Fatalf("session %d: %v", i, err)
		}
	}
	if len(open) < 20 || missed < 20 {
		t.Errorf("%d sessions are open, %d were reset, of 40 ports", len(open), missed)
	}
	time.Sleep(2500 * time.Millisecond) // probes, which have no port either
	for _, s := range open {
		if err := s.say("go on"); err != nil {
			t.Errorf("an open session: %v", err)
		}
	}
	n.w.blameless(t)
	if got := n.w.sessions(t, "lines", "local_ports"); int(got) != missed {
		t.Errorf("%v sessions are counted as local_ports, %d were reset: %s", got, missed, grep(n.w.metrics(t), "weir_sessions_total"))
	}
	if c := strings.Count(grep(string(read(t, n.log)), `"reason":"local_ports"`), "\n"); c != missed {
		t.Errorf("%d lines of the access log say local_ports, %d were reset", c, missed)
	}
	n.inside(func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 20999"), 0); err != nil {
			t.Error(err)
		}
	})
	for i := range 30 {
		if _, err := n.chat("127.0.0.2:9100"); err != nil {
			t.Errorf("session %d with ports again: %v", i, err)
		}
	}
	n.w.blameless(t)
}

// TestSessionsUnreachableLong: a backend that refuses, one that there is no way to and
// one that says nothing cost a client no session while another one is there; alone
// they end it with a reset and with their own word. Only they are blamed.
func TestSessionsUnreachableLong(t *testing.T) {
	n := &inner{namespace: newNamespace(t)}
	for _, args := range []string{
		"link add v0 type veth peer name v1", "addr add 10.77.0.1/24 dev v0", "link set v0 up", "link set v1 up",
		"neigh replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev v0 nud permanent", // which nobody has
		"route add unreachable 10.78.0.0/16",
	} {
		n.ip(append([]string{"-n", n.name}, strings.Fields(args)...)...)
	}
	good := n.talker("127.0.0.1:9001")
	bad := map[string]string{"connect_refused": "127.0.0.1:9009", "unreachable": "10.78.0.1:9001", "connect_timeout": "10.77.0.2:9001"}
	var listeners, pools string
	at := map[string]string{}
	port := 9100
	for why, addr := range bad {
		for kind, backends := range map[string]string{"with": fmt.Sprintf(`"tcp://%s", "tcp://%s"`, addr, good.addr), "alone": fmt.Sprintf(`"tcp://%s"`, addr)} {
			name := kind + "-" + strings.ReplaceAll(why, "_", "-")
			at[name] = fmt.Sprintf("127.0.0.1:%d", port)
			port++
			listeners += fmt.Sprintf("  %s: {bind: %q, protocol: tcp, pool: %[1]s}\n", name, at[name])
			pools += fmt.Sprintf("  %s: {balance: round_robin, backends: [%s], timeouts: {connect: 300ms}, health: {active: off}}\n", name, backends)
		}
	}
	n.run("listeners:\n" + listeners + "pools:\n" + pools)
	for why := range bad {
		name := "with-" + strings.ReplaceAll(why, "_", "-")
		for i := range 8 {
			s, err := n.chat(at[name])
			if err != nil || s.with != good.addr {
				t.Fatalf("%s: session %d: %+v, %v", name, i, s, err)
			}
			_ = s.c.Close()
		}
		if b := n.w.backends(t, name)[good.addr]; b.Flips != 0 || b.Failures != 0 || b.Share != 1 {
			t.Errorf("%s: the good backend is blamed: %+v", name, b)
		}
		if v := n.w.sum(t, "weir_redispatches_total", fmt.Sprintf("pool=%q", name)); v == 0 {
			t.Errorf("%s: no redispatch is counted", name)
		}
		alone := "alone-" + strings.ReplaceAll(why, "_", "-")
		if s, err := n.chat(at[alone]); !wasReset(err) {
			t.Errorf("%s: %+v, %v; want a reset", alone, s, err)
		}
		eventually(t, 10*time.Second, alone+" says why", func() bool { return n.w.sessions(t, alone, why) > 0 })
	}
	for _, c := range []string{"with", "alone"} {
		for why, addr := range bad {
			name := c + "-" + strings.ReplaceAll(why, "_", "-")
			eventually(t, 10*time.Second, "the access log says "+why+" of "+name, func() bool {
				return strings.Contains(grep(grep(string(read(t, n.log)), `"listener":"`+name+`"`), why), addr)
			})
		}
	}
	if v := n.w.sum(t, "weir_bug_total", ""); v != 0 {
		t.Errorf("%v defects", v)
	}
}

// TestSessionsOwnFilesLong: weir has 256 descriptors, of which 64 are reserved, and
// each session wants two. Who does not fit is reset, those that are open go on,
// administration gets in, no backend is blamed, and whoever leaves makes room.
func TestSessionsOwnFilesLong(t *testing.T) {
	a, b := startTalker(t), startTalker(t)
	log := filepath.Join(t.TempDir(), "access.log")
	w := startRunUnder(t, []string{tool(t, "prlimit"), "--nofile=256:256"}, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: %s}}
limits: {max_connections: 100000}
listeners: {lines: {bind: "${LISTEN}", protocol: tcp, pool: app}}
pools: {app: {backends: ["tcp://%s", "tcp://%s"], health: {active: {interval: 1s}}}}
`, log, a.addr, b.addr))
	var open []*chat
	missed := 0
	for i := range 160 {
		s, err := openChat(w.addr)
		switch {
		case err == nil:
			t.Cleanup(func() { _ = s.c.Close() })
			open = append(open, s)
		case wasReset(err):
			missed++
		default:
			t.Fatalf("session %d: %v", i, err)
		}
	}
	if len(open) < 60 || missed < 60 {
		t.Errorf("%d sessions are open, %d were reset", len(open), missed)
	}
	before := cpuOf(t, w)
	time.Sleep(2 * time.Second) // probes
	if used := cpuOf(t, w) - before; used > 400*time.Millisecond {
		t.Errorf("without descriptors weir used %v of two seconds", used)
	}
	w.unharmed(t, "")
	for _, s := range open {
		if err := s.say("go on"); err != nil {
			t.Errorf("an open session: %v", err)
		}
	}
	if got := w.sessions(t, "lines", "local_files"); int(got) != missed {
		t.Errorf("%v sessions are counted as local_files, %d were reset: %s", got, missed, grep(w.metrics(t), "weir_sessions_total"))
	}
	if !strings.Contains(w.out.String(), "local_files") && !strings.Contains(string(read(t, log)), "local_files") {
		t.Errorf("no log says local_files: %s", w.out)
	}
	for _, s := range open[:30] {
		_ = s.c.Close()
	}
	eventually(t, 10*time.Second, "there is room again", func() bool {
		s, err := openChat(w.addr)
		if err == nil {
			_ = s.c.Close()
		}
		return err == nil
	})
	hold(t, w.addr, 20)
	w.blameless(t)
}
