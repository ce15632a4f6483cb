// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDNS: two dnsmasq behind one port, over UDP and TCP, asked by dig and by dnsperf
// as fast as it can with 40 ports. One hangs, which only a check that asks it sees. One
// of them is killed in the midst of it: nobody goes without an answer.
func TestDNS(t *testing.T) {
	lines := []string{}
	for i := range 60 {
		lines = append(lines, fmt.Sprintf("10.0.0.%d many.test", i+1))
	}
	lines = append(lines, "192.0.2.1 one.test")
	a, b := startDnsmasq(t, lines...), startDnsmasq(t, lines...)
	listen := freeAddr(t)
	w := startLive(t, binary, func(dir string) string {
		return fmt.Sprintf(`admin: {bind: "unix:%[1]s/admin.sock"}
listeners:
  dns: {bind: %[2]q, protocol: udp, pool: dns}
  dns-tcp: {bind: %[2]q, protocol: tcp, pool: dns-tcp}
pools:
  dns: {backends: ["udp://%[3]s", "udp://%[4]s"], health: {active: {send: '%[5]s', body: '/(?s)^we.[\x00\x80]/', interval: 300ms, fast_interval: 200ms, timeout: 200ms, fall: 2}}}
  dns-tcp: {backends: ["tcp://%[3]s", "tcp://%[4]s"]}
`, dir, listen, a.addr, b.addr, `we\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03one\x04test\x00\x00\x01\x00\x01`)
	})
	health := func(want string) {
		t.Helper()
		eventually(t, 30*time.Second, a.addr+" is "+want, func() bool { return w.backend("dns", a.addr).Health == want })
	}
	health("healthy")
	_, port, _ := strings.Cut(listen, ":")
	dig := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(tool(t, "dig"), append([]string{"@127.0.0.1", "-p", port, "+tries=1", "+time=20"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("dig %v: %v\n%s\n%s", args, err, out, w.said())
		}
		return string(out)
	}
	for range 10 {
		if out := dig("+short", "one.test"); out != "192.0.2.1\n" {
			t.Fatalf("dig: %s", out)
		}
	}
	if out := dig("+tcp", "+short", "one.test"); out != "192.0.2.1\n" {
		t.Errorf("dig over TCP: %s", out)
	}
	if out := dig("many.test"); strings.Count(out, "\tA\t10.0.0.") != 60 || !strings.Contains(out, "Truncated, retrying in TCP") {
		t.Errorf("an answer that is too large for a datagram: %s", out)
	}

	a.p.signal(syscall.SIGSTOP) // its kernel goes on accepting connections
	health("broken")
	for range 5 {
		dig("+short", "one.test")
	}
	a.p.signal(syscall.SIGCONT)
	health("healthy")

	asked := filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(asked, []byte(strings.Repeat("one.test A\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	perf := exec.Command(tool(t, "dnsperf"), "-s", "127.0.0.1", "-p", port, "-d", asked, "-c", "40", "-q", "80", "-l", "1", "-t", "20")
	out, err := perf.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := perf.Start(); err != nil {
		t.Fatal(err)
	}
	a.p.signal(os.Kill)
	said := make([]byte, 1<<16)
	n := 0
	for {
		k, err := out.Read(said[n:])
		if n += k; err != nil {
			break
		}
	}
	if err := perf.Wait(); err != nil {
		t.Fatalf("dnsperf: %v\n%s", err, said[:n])
	}
	text := string(said[:n])
	figure := func(what string) string {
		m := regexp.MustCompile(what + `:\s+(\d+)`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("dnsperf says nothing of %s:\n%s", what, text)
		}
		return m[1]
	}
	if sent, lost := figure("Queries sent"), figure("Queries lost"); len(sent) < 3 || len(lost) > 2 {
		// What had been read by the one that was killed is lost with it.
		t.Errorf("dnsperf: %s sent, %s lost\n%s\n%s", sent, lost, text, w.said())
	}
	for range 10 {
		dig("+short", "one.test")
	}
}
