// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nameServer is a knotd that serves the zone "test." from a file.
type nameServer struct {
	t    *testing.T
	dir  string
	addr string
	p    *process
}

func startNameServer(t *testing.T, zone ...string) *nameServer {
	t.Helper()
	n := &nameServer{t: t, dir: t.TempDir(), addr: freeAddr(t)}
	host, port, _ := strings.Cut(n.addr, ":")
	conf := fmt.Sprintf(`server:
  listen: %s@%s
  rundir: %s
database:
  storage: %[3]s
template:
  - id: default
    storage: %[3]s
zone:
  - domain: test
    file: test.zone
    journal-content: none
`, host, port, n.dir)
	if err := os.WriteFile(filepath.Join(n.dir, "knot.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	n.write(zone)
	n.start()
	return n
}

var zoneSerial = 1

func (n *nameServer) write(zone []string) {
	n.t.Helper()
	zoneSerial++
	text := fmt.Sprintf("$ORIGIN test.\n$TTL 1\n@ SOA ns host %d 1 1 1 1\n@ NS ns\nns A 127.0.0.1\n%s\n", zoneSerial, strings.Join(zone, "\n"))
	file := filepath.Join(n.dir, "test.zone")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	// knotd reads a file again when its time is another one, to the second.
	at := time.Now().Add(time.Duration(zoneSerial) * time.Second)
	if err := os.Chtimes(file, at, at); err != nil {
		n.t.Fatal(err)
	}
}

func (n *nameServer) start() {
	n.t.Helper()
	n.p = spawn(n.t, tool(n.t, "knotd"), "-c", filepath.Join(n.dir, "knot.conf"))
	waitListening(n.t, n.p, n.addr)
}

// stop ends it; with the zone's file gone, the next start answers SERVFAIL.
func (n *nameServer) stop() {
	n.t.Helper()
	n.p.signal(syscall.SIGTERM)
	n.p.wait(10 * time.Second)
}

// set changes the zone and returns when the server answers with it.
func (n *nameServer) set(name string, want int, zone ...string) time.Time {
	n.t.Helper()
	n.write(zone)
	n.p.signal(syscall.SIGHUP)
	eventually(n.t, 5*time.Second, "knotd serves the new zone", func() bool { return len(n.lookup(name)) == want })
	return time.Now()
}

func (n *nameServer) lookup(name string) []string {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, n.addr)
	}}
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Second)
	defer cancel()
	list, _ := r.LookupHost(ctx, name)
	return list
}

// discoveryState is the part of a pool's JSON that says how it is found.
type discoveryState struct {
	Found     int    `json:"found"`
	Held      int    `json:"held"`
	Failing   bool   `json:"failing"`
	LastError string `json:"last_error"`
}

// ids returns the pool's backends without what they have in common, sorted.
func (w *weir) ids(t *testing.T, pool string) string {
	t.Helper()
	var out []string
	for id := range w.backends(t, pool) {
		host, _, _ := strings.Cut(id, ":")
		out = append(out, strings.TrimPrefix(host, "127.0.0."))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (w *weir) discovery(t *testing.T, pool string) (d discoveryState) {
	t.Helper()
	resp, err := http.Get("http://" + w.admin + "/api/v1/pools/" + pool)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body := struct {
		Discovery *discoveryState `json:"discovery"`
	}{&d}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDiscoverDNS holds discovery against a real name server on good and bad
// days, with clients that must not notice: a change, a name that is gone, an
// answer without addresses, silence, SERVFAIL, another fleet at once; 300 records
// (which come truncated first), a time to live of 0, services.
func TestDiscoverDNS(t *testing.T) {
	ln, err := net.Listen("tcp4", "0.0.0.0:0") // 127.0.0.0/8 is all of this machine
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	backend := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Context().Value(http.LocalAddrContextKey))
	})}
	go func() { _ = backend.Serve(ln) }()
	t.Cleanup(func() { _ = backend.Close() })

	others := []string{"zero 0 A 127.0.0.1"}
	for i := range 300 {
		others = append(others, fmt.Sprintf("many 60 A 127.1.%d.%d", i/200, i%200+1))
	}
	others = append(others,
		fmt.Sprintf("_http._tcp 1 SRV 10 3 %d a", port), fmt.Sprintf("_http._tcp 1 SRV 20 5 %d b", port), "a 1 A 127.0.2.1", "b 1 A 127.0.2.2")
	zone := func(last ...string) []string {
		out := slices.Clone(others)
		for _, n := range last {
			out = append(out, "app 1 A 127.0.0."+n)
		}
		return out
	}
	ns := startNameServer(t, zone("1", "2", "3", "4")...)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners:
  web:
    bind: "${LISTEN}"
    routes:
      - {match: {path_prefix: /srv}, pool: srv}
      - {match: {path_prefix: /zero}, pool: zero}
      - {match: {path_prefix: /many}, pool: many}
      - {pool: app}
pools:
  app: {discover: {dns: {name: app.test., port: %[1]d, server: "%[2]s", timeout: 300ms}}}
  zero: {discover: {dns: {name: zero.test, port: %[1]d, type: a, server: "%[2]s", timeout: 300ms}}}
  many: {health: {active: off}, discover: {dns: {name: many.test, port: %[1]d, server: "%[2]s", timeout: 300ms}}}
  srv: {discover: {dns: {name: _http._tcp.test, server: "%[2]s", timeout: 300ms}}}
`, port, ns.addr))
	became := func(pool, want string, within time.Duration, what string) {
		t.Helper()
		eventually(t, within, what, func() bool { return w.ids(t, pool) == want })
	}
	began := time.Now()
	became("app", "1 2 3 4", 5*time.Second, "the first answer")
	eventually(t, 5*time.Second, "300 records", func() bool { return len(w.backends(t, "many")) == 300 })
	eventually(t, 5*time.Second, "services", func() bool { return len(w.backends(t, "srv")) == 2 })
	became("zero", "1", 5*time.Second, "a record with a time to live of 0")
	eventually(t, 10*time.Second, "ready", func() bool {
		resp, err := http.Get("http://" + w.admin + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	for path, want := range map[string]string{"/srv": fmt.Sprintf("127.0.2.1:%d", port), "/zero": fmt.Sprintf("127.0.0.1:%d", port), "/many": "127.1."} {
		if got := get(t, w.url(path)); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}

	stop, answers := make(chan struct{}), &tally{}
	running := clients{url: w.url("/"), n: 2, methods: []string{"GET"}, pause: 5 * time.Millisecond}.run(stop, answers)

	// Half of the pool leaves: max(TTL, 1 s) + 1 s, and what the polling above takes.
	changed := ns.set("app.test", 3, zone("1", "2", "5")...)
	became("app", "1 2 5", 2200*time.Millisecond, "a change is followed")
	t.Logf("a change was followed after %s", time.Since(changed).Round(10*time.Millisecond))

	keeps := func(what, fault string) {
		t.Helper()
		eventually(t, 4*time.Second, what+" is told", func() bool {
			d := w.discovery(t, "app")
			return d.Failing && strings.Contains(d.LastError, fault)
		})
		if got := w.ids(t, "app"); got != "1 2 5" {
			t.Errorf("%s: %q is left", what, got)
		}
	}
	recovers := func(what string) {
		t.Helper()
		eventually(t, 8*time.Second, what+" is over", func() bool { return !w.discovery(t, "app").Failing })
		if got := w.ids(t, "app"); got != "1 2 5" {
			t.Errorf("after %s: %q", what, got)
		}
	}
	ns.set("app.test", 0, others...)
	keeps("NXDOMAIN", "no endpoints")
	ns.set("app.test", 0, append(slices.Clone(others), "app TXT empty")...)
	keeps("an answer without addresses", "no endpoints")
	ns.set("app.test", 3, zone("1", "2", "5")...)
	recovers("an answer without addresses")
	ns.p.signal(syscall.SIGSTOP)
	keeps("silence", "no answer in time")
	ns.p.signal(syscall.SIGCONT)
	ns.stop()
	if err := os.Remove(filepath.Join(ns.dir, "test.zone")); err != nil {
		t.Fatal(err)
	}
	ns.start()
	keeps("SERVFAIL", "SERVFAIL")
	ns.set("app.test", 3, zone("1", "2", "5")...)
	recovers("SERVFAIL")

	// Another fleet: there at once, and the old one leaves when a second answer
	// lacks it, too.
	ns.set("app.test", 2, zone("6", "7")...)
	became("app", "1 2 5 6 7", 2200*time.Millisecond, "another fleet comes at once")
	if d := w.discovery(t, "app"); d.Held != 3 || d.Found != 5 {
		t.Errorf("%+v", d)
	}
	became("app", "6 7", 2200*time.Millisecond, "the old one leaves after a second answer")
	close(stop)
	running.Wait()
	if bad := answers.bad(); bad != "" || answers.total() < 100 {
		t.Errorf("%d answers; %s", answers.total(), bad)
	}

	asked, most := w.sum(t, "weir_discovery_answers_total", `pool="zero"`), time.Since(began).Seconds()+2
	if asked > most || asked < 2 {
		t.Errorf("with a time to live of 0 it was asked %g times in %s", asked, time.Since(began))
	}
	if n := len(w.backends(t, "many")); n != 300 {
		t.Errorf("%d backends are left of 300", n)
	}
	for _, word := range []string{"backends found", "more than half of the pool is missing", "discovery fails: the last good answer stays in use", "discovery works again"} {
		if !strings.Contains(w.out.String(), word) {
			t.Errorf("the log does not say %q", word)
		}
	}
}

// get returns the body of a 200.
func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if err := resp.Write(&b); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d %v", url, resp.StatusCode, err)
	}
	_, body, _ := strings.Cut(b.String(), "\r\n\r\n")
	return body
}

// weights returns each backend of a pool with its weight, as "host=weight", sorted.
func (w *weir) weights(t *testing.T, pool string) []string {
	t.Helper()
	resp, err := http.Get("http://" + w.admin + "/api/v1/pools/" + pool)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body struct {
		Backends []struct {
			ID     string `json:"id"`
			Weight int    `json:"weight"`
		} `json:"backends"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, b := range body.Backends {
		host, _, _ := strings.Cut(b.ID, ":")
		out = append(out, fmt.Sprintf("%s=%d", host, b.Weight))
	}
	slices.Sort(out)
	return out
}

// try returns the body of an answer of any kind, or nothing.
func (w *weir) try(ctx context.Context, path string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url(path), nil)
	if err != nil {
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	return string(body)
}
