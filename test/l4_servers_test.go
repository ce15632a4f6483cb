// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startRedis runs a server without data.
func startRedis(t *testing.T) string {
	t.Helper()
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	waitListening(t, spawn(t, tool(t, "redis-server"), "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", t.TempDir()), addr)
	return addr
}

// startExim runs a mail server that keeps whatever comes in one file.
func startExim(t *testing.T) (addr, box string) {
	t.Helper()
	addr = freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	dir, err := os.MkdirTemp("", "weir-exim-") // its owner is another
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	spool, conf := filepath.Join(dir, "spool"), filepath.Join(dir, "exim.conf")
	box = filepath.Join(spool, "box")
	if err := os.Mkdir(spool, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`primary_hostname = mail.test
spool_directory = %[1]s
log_file_path = %[1]s/%%slog
pid_file_path = %[1]s/pid
daemon_smtp_ports = %[2]s
local_interfaces = 127.0.0.1
exim_user = Debian-exim
exim_group = Debian-exim
never_users =
host_lookup =
rfc1413_query_timeout = 0s
acl_smtp_rcpt = accept
acl_smtp_data = accept
begin routers
all:
  driver = accept
  transport = box
begin transports
box:
  driver = appendfile
  file = %[3]s
  create_file = anywhere
  user = Debian-exim
`, spool, port, box)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-c", "chmod 755 "+dir+"; chmod 644 "+conf+"; chown Debian-exim "+spool).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	waitListening(t, spawn(t, tool(t, "exim4"), "-C", conf, "-bdf"), addr)
	return addr, box
}

// startSSH runs a server that lets in who has the key that it returns.
func startSSH(t *testing.T) (addr, key string) {
	t.Helper()
	addr = freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	dir := t.TempDir()
	key = filepath.Join(dir, "user")
	for _, k := range []string{key, filepath.Join(dir, "host")} {
		if out, err := exec.Command(tool(t, "ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", k).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	_ = os.MkdirAll("/run/sshd", 0o755) // where it separates privileges, as its service makes it
	waitListening(t, spawn(t, tool(t, "sshd"), "-D", "-e", "-f", "/dev/null", "-p", port, "-o", "ListenAddress=127.0.0.1", "-h", filepath.Join(dir, "host"),
		"-o", "AuthorizedKeysFile="+key+".pub", "-o", "StrictModes=no", "-o", "PidFile=none", "-o", "UsePAM=no", "-o", "PermitRootLogin=yes", "-o", "Subsystem=sftp internal-sftp"), addr)
	return addr, key
}

// scp copies so many random bytes through a listener, and compares.
func scp(t *testing.T, addr, key string, size int64, limit string) {
	t.Helper()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	f, err := os.Create(from)
	if err != nil {
		t.Fatal(err)
	}
	part := make([]byte, 1<<20)
	_, _ = rand.Read(part)
	for left := size; left > 0; left -= int64(len(part)) {
		part[left%int64(len(part))]++ // no two parts are equal
		if _, err := f.Write(part[:min(left, int64(len(part)))]); err != nil {
			t.Fatal(err)
		}
	}
	_ = f.Close()
	_, port, _ := net.SplitHostPort(addr)
	args := []string{"-q", "-P", port, "-i", key, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"}
	if limit != "" {
		args = append(args, "-l", limit)
	}
	if out, err := exec.Command(tool(t, "scp"), append(args, from, "root@127.0.0.1:"+to)...).CombinedOutput(); err != nil {
		t.Fatalf("scp: %v: %s", err, out)
	}
	if out, err := exec.Command("cmp", from, to).CombinedOutput(); err != nil {
		t.Errorf("what arrived is something else: %s", out)
	}
}

// front is one listener of TCP with a pool of its own, as configuration.
func front(name, addr, backend, idle, check string) (listener, pool string) {
	return fmt.Sprintf("  %s: {bind: %q, protocol: tcp, pool: %[1]s, timeouts: {idle: %[3]s}}\n", name, addr, idle),
		fmt.Sprintf("  %s: {backends: [\"tcp://%s\"], health: {active: {interval: 5s, fast_interval: 300ms%s}}}\n", name, backend, check)
}

// TestServersByTCP: Redis, a mail server, OpenSSH and a name server do through weir
// what they are for, each with a check in its own words, which fails where another
// server answers.
func TestServersByTCP(t *testing.T) {
	redis := startRedis(t)
	mail, box := startExim(t)
	ssh, key := startSSH(t)
	dns := startNameServer(t, "a A 192.0.2.1")
	var listeners, pools string
	at := map[string]string{}
	for _, s := range [][3]string{
		{"redis", redis, `, send: 'PING\r\n', body: "+PONG"`}, {"mail", mail, ", body: /^220 /"}, {"ssh", ssh, ", body: SSH-2.0"}, {"dns", dns.addr, ""},
		{"wrong", mail, ", body: SSH-2.0"},
	} {
		at[s[0]] = freeAddr(t)
		l, p := front(s[0], at[s[0]], s[1], "30s", s[2])
		listeners, pools = listeners+l, pools+p
	}
	w := startRun(t, "admin: {bind: \"${ADMIN}\"}\nlisteners:\n  web: {bind: \"${LISTEN}\", protocol: tcp, pool: redis}\n"+listeners+"pools:\n"+pools)
	for _, name := range []string{"redis", "mail", "ssh", "dns"} {
		eventually(t, 20*time.Second, "checks of "+name+" pass", func() bool {
			for _, b := range w.backends(t, name) {
				return b.Health == "healthy"
			}
			return false
		})
	}
	eventually(t, 20*time.Second, "a check that is answered by another server fails", func() bool {
		for _, b := range w.backends(t, "wrong") {
			return b.Health == "not_ready"
		}
		return false
	})
	if out, err := exec.Command(binary, "explain", "--admin", w.admin, "tcp://"+at["mail"]).CombinedOutput(); err != nil || !strings.Contains(string(out), "Pool mail,") || !strings.Contains(string(out), mail) {
		t.Errorf("weir explain: %v\n%s", err, out)
	}
	if !strings.Contains(w.out.String(), "mail on tcp://"+at["mail"]) {
		t.Errorf("the first line does not say tcp://: %s", w.out)
	}

	t.Run("redis", func(t *testing.T) {
		cli := func(args ...string) string {
			_, port, _ := net.SplitHostPort(at["redis"])
			out, _ := exec.Command(tool(t, "redis-cli"), append([]string{"-p", port}, args...)...).CombinedOutput() // what it says is judged
			return strings.TrimSpace(string(out))
		}
		if got := cli("set", "k", "v") + cli("get", "k"); got != "OKv" {
			t.Errorf("set and get: %q", got)
		}
		c := dialClient(t, at["redis"])
		_, _ = io.WriteString(c, "SUBSCRIBE news\r\n")
		hears(t, c, "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n")
		if got := cli("publish", "news", "hello"); got != "1" {
			t.Errorf("%q are subscribed", got)
		}
		hears(t, c, "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n")
	})
	t.Run("mail", func(t *testing.T) {
		letter := filepath.Join(t.TempDir(), "letter")
		if err := os.WriteFile(letter, []byte("Subject: weir\r\n\r\nby way of a balancer\r\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(tool(t, "curl"), "-sS", "--max-time", "20", "smtp://"+at["mail"], "--mail-from", "a@mail.test", "--mail-rcpt", "b@mail.test", "-T", letter).CombinedOutput(); err != nil {
			t.Fatalf("curl: %v: %s", err, out)
		}
		eventually(t, 20*time.Second, "the letter is delivered", func() bool {
			got, _ := os.ReadFile(box)
			return bytes.Contains(got, []byte("by way of a balancer"))
		})
	})
	t.Run("ssh", func(t *testing.T) { scp(t, at["ssh"], key, 20<<20, "") })
	t.Run("dns", func(t *testing.T) {
		r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", at["dns"])
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if got, err := r.LookupHost(ctx, "a.test"); err != nil || len(got) != 1 || got[0] != "192.0.2.1" {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// hears reads exactly what a server has to say next.
func hears(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got[:n], err, want)
	}
}

// TestThousandSessions: of 1,000 sessions on four backends those of one that is
// killed break, and no others; new ones go elsewhere at once; a backend that is
// drained loses none.
func TestThousandSessions(t *testing.T) {
	all := []*talker{startTalker(t), startTalker(t), startTalker(t), startTalker(t)}
	var urls []string
	for _, s := range all {
		urls = append(urls, fmt.Sprintf("%q", "tcp://"+s.addr))
	}
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {lines: {bind: "${LISTEN}", protocol: tcp, pool: talkers}}
pools: {talkers: {balance: round_robin, backends: [%s], health: {active: {interval: 1s}}, drain: {deadline: 10m}}}
`, strings.Join(urls, ", ")))
	const n = 1000
	chats := make([]*chat, n)
	t.Cleanup(func() {
		for _, c := range chats {
			if c != nil {
				_ = c.c.Close()
			}
		}
	})
	on := map[string]int{}
	for i := range chats {
		c, err := openChat(w.addr)
		if err != nil {
			t.Fatalf("session %d: %v", i, err)
		}
		chats[i] = c
		on[c.with]++
	}
	if out, err := exec.Command(binary, "drain", "--admin", w.admin, "talkers/"+all[1].addr).CombinedOutput(); err != nil {
		t.Fatalf("drain: %v: %s", err, out)
	}
	all[0].kill()
	for i := range 100 {
		c, err := openChat(w.addr)
		if err != nil {
			t.Fatalf("session %d after the kill: %v", i, err)
		}
		if c.with == all[0].addr || c.with == all[1].addr {
			t.Fatalf("session %d went to a backend that is dead or drains", i)
		}
		_ = c.c.Close()
	}
	broken := map[string]int{}
	for _, c := range chats {
		if err := c.say("still there"); err != nil {
			broken[c.with]++
		}
	}
	if len(broken) != 1 || broken[all[0].addr] != on[all[0].addr] {
		t.Errorf("of the sessions %v broke %v, and %s was killed", on, broken, all[0].addr)
	}
	if got := w.sum(t, "weir_in_flight", all[1].addr); int(got) != on[all[1].addr] {
		t.Errorf("%v sessions are on the backend that drains, of %d", got, on[all[1].addr])
	}
}

// TestSessionsOfTheStopped: a backend that is stopped (SIGSTOP) keeps its sessions,
// which go on when it does; new ones wait for its kernel, and go elsewhere once the
// checks see that it says nothing.
func TestSessionsOfTheStopped(t *testing.T) {
	a, b := startRedis(t), startRedis(t)
	stopped := freeAddr(t)
	_, port, _ := net.SplitHostPort(stopped)
	p := spawn(t, tool(t, "redis-server"), "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", t.TempDir())
	waitListening(t, p, stopped)
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
listeners: {r: {bind: "${LISTEN}", protocol: tcp, pool: r, timeouts: {idle: 2m}}}
pools: {r: {balance: round_robin, backends: ["tcp://%s", "tcp://%s", "tcp://%s"], health: {active: {send: 'PING\r\n', body: "+PONG", interval: 1s, timeout: 400ms, fast_interval: 400ms, fall: 2, rise: 1}}}}
`, a, b, stopped))
	var kept []net.Conn
	for range 6 {
		c := dialClient(t, w.addr)
		_, _ = io.WriteString(c, "PING\r\n")
		hears(t, c, "+PONG\r\n")
		kept = append(kept, c)
	}
	p.signal(syscall.SIGSTOP)
	eventually(t, 20*time.Second, "its checks fail", func() bool { return w.backends(t, "r")[stopped].Health == "broken" })
	for range 9 {
		c := dialClient(t, w.addr)
		_, _ = io.WriteString(c, "PING\r\n")
		hears(t, c, "+PONG\r\n")
		_ = c.Close()
	}
	p.signal(syscall.SIGCONT)
	for _, c := range kept {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(c, "PING\r\n")
		hears(t, c, "+PONG\r\n")
	}
	eventually(t, 20*time.Second, "it is back", func() bool { return w.backends(t, "r")[stopped].Health == "healthy" })
}
