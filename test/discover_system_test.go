// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDiscoverBySystemFiles: without servers of its own, discovery goes by
// /etc/resolv.conf (servers, search, ndots) and /etc/hosts, both families of
// addresses, and notices when these files change; so do names in backends' URLs.
// weir and the name server run in namespaces where these files are the test's and
// port 53 is free; the admin API is a socket in the file system.
func TestDiscoverBySystemFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644) // in place: another file would not be the mounted one
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("test.zone", `$ORIGIN test.
$TTL 1
@ SOA ns host 1 1 1 1 1
@ NS ns
ns A 127.0.0.1
app.b A 127.0.0.11
app.b AAAA ::1
app.c A 127.0.0.99
x.y.b A 127.0.0.12
x.y A 127.0.0.98
dotted.name A 127.0.0.13
legacy.b A 127.0.0.97
moved.b A 127.0.0.15
moved.c A 127.0.0.16
`)
	write("knot.conf", fmt.Sprintf("server:\n  listen: [ 127.0.0.1@53 ]\n  rundir: %s\ndatabase:\n  storage: %[1]s\ntemplate:\n  - id: default\n    storage: %[1]s\nzone:\n  - domain: test\n    file: test.zone\n    journal-content: none\n", dir))
	resolv := write("resolv.conf", "nameserver 127.0.0.1\nsearch a.test b.test c.test\noptions ndots:2 timeout:1\n")
	hosts := write("hosts", "127.0.0.1 localhost\n127.0.0.14 legacy\n::1 legacy\n")
	socket := filepath.Join(dir, "admin.sock")
	pool := func(name, dns string) string {
		return fmt.Sprintf("  %s: {health: {active: off}, discover: {dns: {name: %s, port: 80, timeout: 500ms}}}\n", name, dns)
	}
	config := write("weir.yaml", "admin: {bind: \"unix:"+socket+"\"}\nlog: {access: off}\nlisteners:\n  web:\n    bind: 127.0.0.1:8080\n    routes:\n"+
		"      - {match: {path: /1}, pool: searched}\n      - {match: {path: /2}, pool: few}\n      - {match: {path: /3}, pool: absolute}\n      - {match: {path: /4}, pool: many}\n      - {match: {path: /5}, pool: hosts}\n      - {match: {path: /6}, pool: moved}\n      - {pool: named}\n"+
		"pools:\n"+pool("searched", "app")+pool("few", "x.y")+pool("absolute", "x.y.test.")+pool("many", "dotted.name.test")+pool("hosts", "legacy")+pool("moved", "moved")+
		"  named: {health: {active: {path: /readyz, interval: 1s}}, backends: [\"http://legacy:8081\", \"http://app:8081\"]}\n")
	script := fmt.Sprintf(`set -e
ip link set lo up
mount --bind %s /etc/resolv.conf
mount --bind %s /etc/hosts
%s -c %s &
%s backend --listen '127.0.0.11:8081' --name app &
%[5]s backend --listen '127.0.0.14:8081' --name legacy &
exec %[5]s run -c %[6]s
`, resolv, hosts, tool(t, "knotd"), filepath.Join(dir, "knot.conf"), binary, config)
	args := []string{"--net", "--mount", "--propagation", "private"}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	spawn(t, tool(t, "unshare"), append(args, "--", "/bin/bash", "-c", script)...)

	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	state := func(pool string) (ids, healthy []string) {
		resp, err := client.Get("http://weir/api/v1/pools/" + pool)
		if err != nil {
			return nil, nil
		}
		defer resp.Body.Close()
		var body struct {
			Backends []backendState `json:"backends"`
		}
		if json.NewDecoder(resp.Body).Decode(&body) != nil {
			return nil, nil
		}
		for _, b := range body.Backends {
			ids = append(ids, strings.TrimSuffix(b.ID, ":80"))
			if b.Health == "healthy" {
				healthy = append(healthy, b.ID)
			}
		}
		slices.Sort(ids)
		slices.Sort(healthy)
		return ids, healthy
	}
	has := func(pool, want string, within time.Duration, what string) {
		t.Helper()
		var got []string
		took := eventually(t, within, what, func() bool { got, _ = state(pool); return strings.Join(got, " ") == want })
		t.Logf("%s: %q after %s", what, got, took.Round(10*time.Millisecond))
	}
	has("searched", "127.0.0.11 [::1]", 15*time.Second, "a name along the search list, both families")
	has("few", "127.0.0.12", 5*time.Second, "fewer dots than ndots: the search list comes first")
	has("absolute", "127.0.0.98", 5*time.Second, "a dot at the end: no search list")
	has("many", "127.0.0.13", 5*time.Second, "enough dots: as it is")
	has("hosts", "127.0.0.14 [::1]", 5*time.Second, "the hosts file comes before DNS")
	has("moved", "127.0.0.15", 5*time.Second, "the first of the search list that has it")
	var healthy []string
	eventually(t, 10*time.Second, "backends by name are reached", func() bool { _, healthy = state("named"); return len(healthy) == 2 })

	write("resolv.conf", "nameserver 127.0.0.1\nsearch c.test\noptions ndots:1 timeout:1\n")
	has("moved", "127.0.0.15 127.0.0.16", 4*time.Second, "another search list: the new one comes")
	has("moved", "127.0.0.16", 4*time.Second, "and the old one leaves when a second answer lacks it")
	write("hosts", "127.0.0.1 localhost\n127.0.0.14 legacy\n127.0.0.17 legacy\n::1 legacy\n")
	has("hosts", "127.0.0.14 127.0.0.17 [::1]", 5*time.Second+followed, "a change of the hosts file, which is looked at every 5 s")
}
