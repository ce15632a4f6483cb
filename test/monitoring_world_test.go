// SPDX-License-Identifier: Apache-2.0

package test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// startMonitored runs a weir that has seen a bit of everything: answers of all
// kinds, retries, a queue, an ejection, a pool in panic, TLS, discovery.
func startMonitored(t *testing.T) *weir {
	t.Helper()
	dir := t.TempDir()
	ca := weirtest.NewAuthority(t)
	cert, key := ca.Write(dir, "weir", ca.Issue("shop.example.com"))
	answer := func(h http.HandlerFunc) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	fine := answer(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "fine") })
	busy := answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	broken := answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	slow := answer(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(150 * time.Millisecond)
		io.WriteString(w, "slow")
	})
	found := filepath.Join(dir, "found.yaml")
	if err := os.WriteFile(found, fmt.Appendf(nil, "[%q]\n", fine), 0o600); err != nil {
		t.Fatal(err)
	}
	secure, lines, talking, game := freeAddr(t), freeAddr(t), startTalker(t), freeUDP(t)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners:
  web:
    bind: "${LISTEN}"
    routes:
      - {name: app, match: {path_prefix: /app}, pool: app}
      - {name: dead, match: {path_prefix: /dead}, pool: dead}
      - {name: busy, match: {path_prefix: /busy}, pool: busy, retry: {attempts: 3}}
      - {name: slow, match: {path_prefix: /slow}, pool: slow, retry: {hedge: {after: 20ms}}}
      - {name: ejects, match: {path_prefix: /ejects}, pool: ejects}
      - {name: found, match: {path_prefix: /found}, pool: found}
      - {name: kept, match: {path_prefix: /kept}, pool: kept}
      - {name: live, match: {path_prefix: /ws}, pool: live}
      - {name: events, match: {path_prefix: /events}, pool: events}
  secure: {bind: %q, pool: app, proxy_protocol: {mode: required, from: [192.0.2.0/24]}, tls: {certificates: [{cert: %s, key: %s}]}}
  lines: {bind: "%[10]s", protocol: tcp, pool: lines}
  game: {bind: "%[12]s", protocol: udp, pool: game}
pools:
  game: {backends: ["udp://%[13]s"]}
  lines: {backends: ["tcp://%[11]s"]}
  app: {backends: [%[4]q], limits: {requests: 100, adaptive: {ceiling: 1000}}}
  kept: {backends: [%[4]q], sticky: on}
  dead: {backends: ["http://127.0.0.1:1"]}
  busy: {backends: [{url: %[5]q, id: one}, {url: %[5]q, id: two}], retry: {min_per_second: 1, budget: 1%%}}
  slow: {backends: [%[6]q], limits: {requests: 1, queue: 4, queue_timeout: 200ms}}
  ejects: {backends: [%[4]q, %[7]q], balance: round_robin}
  found: {discover: {file: %[8]s}}
  live: {backends: ["http://%[9]s"], timeouts: {tunnel_age: 1s}}
  events: {backends: [{url: %[14]q, id: one}], drain: {deadline: 1s, spread: 500ms}}
`, secure, cert, key, fine, busy, slow, broken, found, newWSBackend(t).addr, lines, talking.addr, game, startPacketeer(t).addr, eventsServer(t).URL))
	ws := startWS(w.addr, 1)
	t.Cleanup(func() { ws.last.Store(true); ws.all.Wait() })
	eventually(t, 10*time.Second, "weir is ready", func() bool {
		resp, err := http.Get("http://" + w.admin + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	get := func(url string) {
		resp, err := http.Get(url)
		if err != nil {
			t.Error(err)
			return
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	for range 30 {
		for _, path := range []string{"/app", "/dead", "/busy", "/ejects", "/found", "/kept", "/none"} {
			get(w.url(path))
		}
	}
	if resp, err := http.Post(w.url("/app"), "application/grpc", nil); err == nil { // a call, by its type
		resp.Body.Close()
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { get(w.url("/slow")) })
	}
	wg.Wait()
	hc := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "shop.example.com"}}}
	resp, err := hc.Get("https://" + secure + "/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	datagrams, err := openFlow(game)
	if err == nil {
		err = datagrams.ask(10 * time.Second)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = datagrams.c.Close()
	session, err := openChat(lines)
	if err != nil {
		t.Fatal(err)
	}
	_ = session.c.Close()
	eventually(t, 10*time.Second, "a session has ended", func() bool { return w.sum(t, "weir_sessions_total", "") > 0 })
	go func() { _ = listenTo(t.Context(), http.DefaultClient, w.url("/events")) }()
	eventually(t, 10*time.Second, "a stream is open", func() bool { return w.backends(t, "events")["one"].Streams == 1 })
	patchIn(t, w, "events", "one", `{"admin":"draining"}`)
	eventually(t, 10*time.Second, "a stream was ended", func() bool { return w.sum(t, "weir_streams_ended_total", "") > 0 })
	patchIn(t, w, "events", "one", `{"admin":"enabled"}`)
	eventually(t, 10*time.Second, "a WebSocket has reached its age", func() bool { return w.sum(t, "weir_tunnels_ended_total", "") > 0 })
	return w
}

// family is one metric of an exposition.
type family struct {
	kind   string
	series []series
}

type series struct {
	name   string // of a histogram with its suffix
	labels map[string]string
	value  float64
}

var (
	seriesLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$`)
	labelPair  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)
)

// parseMetrics reads the text format.
func parseMetrics(t *testing.T, text string) map[string]*family {
	t.Helper()
	out := map[string]*family{}
	kind, of := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			of, kind, _ = strings.Cut(rest, " ")
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		m := seriesLine.FindStringSubmatch(line)
		if m == nil || !strings.HasPrefix(m[1], of) {
			t.Fatalf("metric line %q", line)
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		s := series{name: m[1], labels: map[string]string{}, value: v}
		for _, l := range labelPair.FindAllStringSubmatch(m[2], -1) {
			s.labels[l[1]] = l[2]
		}
		f := out[of]
		if f == nil {
			f = &family{kind: kind}
			out[of] = f
		}
		f.series = append(f.series, s)
	}
	return out
}
