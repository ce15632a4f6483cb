// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/weirtest"
)

// newcomers connect to an address as fast as they can, each with one request.
type newcomers struct {
	t      *testing.T
	stop   chan struct{}
	all    sync.WaitGroup
	served atomic.Int64
	seen   sync.Map // bodies
}

func arrive(t *testing.T, addr string, clients int) *newcomers {
	n := &newcomers{t: t, stop: make(chan struct{})}
	for range clients {
		n.all.Go(func() {
			for {
				select {
				case <-n.stop:
					return
				default:
				}
				body, err := askOnce(addr)
				if err != nil {
					t.Errorf("a newcomer: %v", err)
					return
				}
				n.seen.Store(body, true)
				n.served.Add(1)
			}
		})
	}
	return n
}

// askOnce sends one request on a connection of its own.
func askOnce(addr string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, limit)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(limit))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != 200 {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return string(body), err
}

// more returns when a number of newcomers has been served since.
func (n *newcomers) more(count int64) {
	n.t.Helper()
	to := n.served.Load() + count
	eventually(n.t, "newcomers served", func() bool { return n.served.Load() >= to || n.t.Failed() })
}

func (n *newcomers) end() {
	close(n.stop)
	n.all.Wait()
}

// TestListenersChangeUnderLoad: each kind of change of listeners and of what
// faces operators, while downloads, tunnels, keep-alive clients and a stream of
// newcomers go on: nothing is lost, nothing is closed, nobody is refused, and
// every dry run says that it will work.
func TestListenersChangeUnderLoad(t *testing.T) {
	w := newReloadWorld(t)
	port, dir := weirtest.FreePort(t), t.TempDir()
	addr := "127.0.0.1:" + port
	text := func(top, name, listener string) string {
		return fmt.Sprintf(`%s
listeners:
  %s:
    %s
    routes: [{match: {path_prefix: /g}, pool: stay, request_headers: {set: {X-Generation: "0"}}}, {pool: stay}]
pools: {stay: {backends: [%q], health: {passive: off}}}
`, top, name, listener, w.backends[0])
	}
	operators := `admin: {bind: "127.0.0.1:0"}`
	bind := fmt.Sprintf("bind: %q", addr)
	r := start(t, text(operators, "web", bind))
	l := &reloadLoad{t: t, front: "http://" + addr, stop: make(chan struct{})}
	l.begin(3)
	come := arrive(t, addr, 2)
	for _, c := range []struct{ what, top, name, listener string }{
		{"timeouts", operators, "web", bind + "\n    timeouts: {idle: 30s, header: 5s, write: 20s, body_min_rate: none}"},
		{"ceilings", operators, "web", bind + "\n    limits: {max_connections: 5000, max_connections_per_client: 4000}"},
		{"header bytes", operators, "web", bind + "\n    http: {max_header_bytes: 16KiB}"},
		{"another address", operators, "web", fmt.Sprintf("bind: [%q, %q]", addr, "127.0.0.2:"+port)},
		{"order", operators, "web", fmt.Sprintf("bind: [%q, %q]", "127.0.0.2:"+port, addr)},
		{"back", operators, "web", bind},
		{"a path", operators, "web", fmt.Sprintf("bind: [%q, %q]", addr, "unix:"+dir+"/web")},
		{"a name", operators, "web", fmt.Sprintf("bind: %q", "localhost:"+port)},
		{"all addresses", operators, "web", fmt.Sprintf("bind: %q", ":"+port)},
		{"one address", operators, "web", bind},
		{"renamed", operators, "www", bind},
		{"named back", operators, "web", bind},
		{"admin moves", fmt.Sprintf("admin: {bind: %q}", "unix:"+dir+"/admin"), "web", bind},
		{"status", operators + "\nstatus: {bind: \"127.0.0.1:0\"}", "web", bind},
		{"admin and status swap paths", fmt.Sprintf("admin: {bind: %q}\nstatus: {bind: %q}", "unix:"+dir+"/1", "unix:"+dir+"/2"), "web", bind},
		{"swapped", fmt.Sprintf("admin: {bind: %q}\nstatus: {bind: %q}", "unix:"+dir+"/2", "unix:"+dir+"/1"), "web", bind},
		{"access log", operators + fmt.Sprintf("\nlog: {access: {path: %q}}", dir+"/1.log"), "web", bind},
		{"another log", operators + fmt.Sprintf("\nlog: {access: {path: %q, sample: 50%%}}", dir+"/2.log"), "web", bind},
		{"no log", operators + "\nlog: {access: off}", "web", bind},
		{"metrics", operators + "\nmetrics: {codes: exact, backend_series: 0}", "web", bind},
		{"back to the beginning", operators, "web", bind},
	} {
		come.more(10)
		for _, dry := range []bool{true, false} {
			if _, err := r.Reload(parse(t, text(c.top, c.name, c.listener)), ReloadOptions{DryRun: dry}); err != nil {
				t.Errorf("%s, dry run %v: %v", c.what, dry, err)
			}
		}
		if b := r.Bound().Listeners; len(b) != 1 || b[0].Name != c.name {
			t.Errorf("%s: %+v", c.what, b)
		}
	}
	come.more(10)
	come.end()
	close(w.stop)
	l.end()
	if l.closed.Load() != 0 || l.failed.Load() != 0 {
		t.Errorf("%d requests failed, %d streams ended", l.failed.Load(), l.closed.Load())
	}
	if n := len(r.Engine.front.retired); n != 0 {
		t.Errorf("%d listeners retired: what was changed in place was made anew", n)
	}
	eventually(t, "no socket's file is left, and no log open", func() bool {
		left, err := os.ReadDir(dir)
		reloadSettled(t, r)
		return err == nil && len(left) == 2 && !r.logs.waiting() // the two files of the logs
	})
}

// TestBindMoves: a socket goes from one listener to another that has other
// routes, and what the first one's connections do goes on.
func TestBindMoves(t *testing.T) {
	w := newReloadWorld(t)
	port := weirtest.FreePort(t)
	addr := "127.0.0.1:" + port
	text := func(a, b string) string {
		listeners := ""
		for name, bind := range map[string]string{"a": a, "b": b} {
			if bind != "" {
				listeners += fmt.Sprintf("  %s: {bind: %q, routes: [{match: {path: /}, respond: {code: 200, body: %s}}, {pool: stay}]}\n", name, bind, name)
			}
		}
		return "admin: {bind: \"127.0.0.1:0\"}\nlisteners:\n" + listeners + fmt.Sprintf("pools: {stay: {backends: [%q]}}\n", w.backends[0])
	}
	other := "127.0.0.2:" + port
	r := start(t, text(addr, other))
	l := &reloadLoad{t: t, front: "http://" + addr, stop: make(chan struct{})}
	var ready sync.WaitGroup
	ready.Add(2)
	l.all.Go(func() { l.download(&ready) })
	l.all.Go(func() { l.tunnel(&ready) })
	ready.Wait()
	come := arrive(t, addr, 2)
	serves := func(want string) {
		t.Helper()
		if got, err := askOnce(addr); err != nil || got != want {
			t.Errorf("%q serves, %v; want %q", got, err, want)
		}
		come.more(10)
	}
	serves("a")
	for range 5 {
		for _, c := range [][3]string{
			{other, addr, "b"}, // exchanged
			{addr, other, "a"},
			{"127.0.0.3:" + port, addr, "b"}, // given away
			{addr, "", "a"},                  // and its owner gone
			{addr, other, "a"},
		} {
			if _, err := r.Reload(parse(t, text(c[0], c[1])), ReloadOptions{}); err != nil {
				t.Fatal(err)
			}
			serves(c[2])
		}
	}
	come.end()
	close(w.stop)
	l.end()
	if l.closed.Load() != 0 {
		t.Errorf("%d streams ended", l.closed.Load())
	}
}

// TestSettingsOnOldConnections: S16. What is open goes on, and its next request
// goes by the new configuration; TLS settings hold from the next handshake on.
func TestSettingsOnOldConnections(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	cert, key := ca.Write(dir, "a", ca.Issue("a.test"))
	b := backend(t, "a")
	text := func(listener string) string {
		return fmt.Sprintf("admin: {bind: \"127.0.0.1:0\"}\nlisteners:\n  web: {bind: \"127.0.0.1:0\", pool: app%s}\npools: {app: {backends: [%q]}}\n", listener, b.URL)
	}
	secure := fmt.Sprintf(", tls: {certificates: [{cert: %q, key: %q}]}", cert, key)
	r := start(t, text(""))
	reload := func(listener string) {
		t.Helper()
		if _, err := r.Reload(parse(t, text(listener)), ReloadOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	addr := r.Bound().Listeners[0].Addrs[0]
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	old := &rawClient{t: t, c: raw, in: bufio.NewReader(raw)}
	old.ask(0, 200)
	reload(", http: {max_header_bytes: 1KiB}")
	old.ask(500, 200)
	reload(secure)
	old.ask(8<<10, 200) // plain, as it began, and under the default limit again
	if !r.Bound().Listeners[0].TLS {
		t.Error("it is not said that TLS is spoken")
	}
	dial := func(cfg *tls.Config) (*rawClient, error) {
		cfg.RootCAs, cfg.ServerName = ca.Pool(), "a.test"
		c, err := tls.Dial("tcp", addr, cfg)
		if err != nil {
			return nil, err
		}
		return &rawClient{t: t, c: c, in: bufio.NewReader(c)}, nil
	}
	twelve, err := dial(&tls.Config{MaxVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	twelve.ask(0, 200)
	reload(strings.Replace(secure, "tls: {", "tls: {min_version: \"1.3\", ", 1))
	twelve.ask(0, 200)
	if _, err := dial(&tls.Config{MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("a handshake with TLS 1.2 succeeds")
	}
	thirteen, err := dial(&tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	thirteen.ask(0, 200)
	reload(", http: {max_header_bytes: 1KiB}")
	thirteen.ask(0, 200)
	old.ask(0, 200)
	old.ask(2<<10, 431)
	thirteen.ask(2<<10, 431)
}

// rawClient is one connection on which requests follow each other.
type rawClient struct {
	t  *testing.T
	c  net.Conn
	in *bufio.Reader
}

func (c *rawClient) ask(headBytes, want int) {
	c.t.Helper()
	_ = c.c.SetDeadline(time.Now().Add(limit))
	_, _ = fmt.Fprintf(c.c, "GET / HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", headBytes))
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != want {
		c.t.Errorf("a head of %d bytes: %s, %v; want %d", headBytes, res.Status, err, want)
	}
}

// TestAdminMovesItself: the call that moves the admin address is answered where
// it came in.
func TestAdminMovesItself(t *testing.T) {
	a, dir := backend(t, "a"), t.TempDir()
	text := func(path string) string {
		return strings.Replace(simple("", a), `"127.0.0.1:0"`, `"unix:`+dir+path+`"`, 1)
	}
	r := start(t, text("/1"))
	for i := range 4 {
		from, to := fmt.Sprintf("/%d", 1+i), fmt.Sprintf("/%d", 2+i)
		c := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", dir+from) }}, Timeout: limit}
		body := fmt.Sprintf("{\"text\": %q}", text(to))
		res, err := c.Post("http://localhost/api/v1/config", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != 200 || !strings.Contains(string(answer), "admin.bind") {
			t.Errorf("%s: %s, %v", res.Status, answer, err)
		}
		if got := r.Bound().Admin; got != "unix:"+dir+to {
			t.Errorf("admin is on %s", got)
		}
		next, err := admin.NewClient(admin.ClientOptions{Address: "unix:" + dir + to})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := next.Status(t.Context()); err != nil || st.Generation != uint64(i+2) {
			t.Errorf("%+v, %v", st, err)
		}
		next.Close()
		info, err := os.Stat(dir + to)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		eventually(t, "the old path is gone", func() bool {
			_, err := os.Lstat(dir + from)
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

// TestTokenIsReadAgain: a reload takes the token that the file holds now.
func TestTokenIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first-token-of-the-file")
	text := strings.Replace(simple("", backend(t, "a")), `admin: {bind: "127.0.0.1:0"}`, fmt.Sprintf(`admin: {bind: "127.0.0.1:%s", token_file: %q}`, weirtest.FreePort(t), file), 1)
	r := start(t, text)
	status := func(token string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.Bound().Admin+"/api/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := client(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	if got := status("first-token-of-the-file"); got != 200 {
		t.Errorf("the first token: %d", got)
	}
	write("second-token-of-the-file")
	if _, err := r.Reload(parse(t, text), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second token holds", func() bool { return status("second-token-of-the-file") == 200 })
	if got := status("first-token-of-the-file"); got != 401 {
		t.Errorf("the first token after a reload: %d", got)
	}
}

// TestAccessLogChanges: a request is written where its generation writes, and the
// old file is closed after the last of them.
func TestAccessLogChanges(t *testing.T) {
	a, dir := backend(t, "a"), t.TempDir()
	text := func(access string) string {
		return "log: {access: " + access + "}\n" + strings.TrimPrefix(simple("", a), "\n")
	}
	file := func(name string) string { return fmt.Sprintf("{path: %q}", filepath.Join(dir, name)) }
	lines := func(name string) int {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "\n")
	}
	r := start(t, text(file("one")))
	slow := make(chan error, 1)
	go func() {
		_, err := get(client(t), r.front+"/slow")
		slow <- err
	}()
	<-a.arrived
	for _, next := range []string{file("two"), "off", file("three")} {
		if _, err := r.Reload(parse(t, text(next)), ReloadOptions{}); err != nil {
			t.Fatal(err)
		}
		mustGet(t, client(t), r.front+"/")
	}
	eventually(t, "one line in the last file", func() bool { return lines("three") == 1 })
	close(a.release)
	if err := <-slow; err != nil {
		t.Error(err)
	}
	eventually(t, "the line of the request that began first", func() bool { return lines("one") == 1 })
	reloadSettled(t, r)
	eventually(t, "the old logs are closed", func() bool {
		reloadSettled(t, r)
		return !r.logs.waiting()
	})
	if lines("one") != 1 || lines("two") != 1 || lines("three") != 1 {
		t.Errorf("lines: %d, %d, %d", lines("one"), lines("two"), lines("three"))
	}
}

// TestManyListenersComeAndGo: nothing is left of listeners that a reload added
// and another removed.
func TestManyListenersComeAndGo(t *testing.T) {
	a := backend(t, "a")
	base := simple("", a)
	r := start(t, base)
	var before reloadUse
	for n := range reloadListeners {
		more := strings.Replace(base, "pools:", fmt.Sprintf("  extra%d: {bind: \"127.0.0.1:0\", routes: [{pool: app, limits: {requests: 10}}]}\npools:", n), 1)
		if _, err := r.Reload(parse(t, more), ReloadOptions{}); err != nil {
			t.Fatal(err)
		}
		if n%10 == 0 {
			if got, err := askOnce(r.Bound().Listeners[0].Addrs[0]); err != nil || got != "a" {
				t.Fatalf("the new listener: %q, %v", got, err)
			}
		}
		if _, err := r.Reload(parse(t, base), ReloadOptions{}); err != nil {
			t.Fatal(err)
		}
		if n == reloadListeners/10 {
			before = listenersSettled(t, r)
		}
	}
	after := listenersSettled(t, r)
	t.Logf("before %+v, after %+v", before, after)
	if after.goroutines > before.goroutines+5 || after.files > before.files+5 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	// Series stay by name for ten minutes: four histograms and some counters each.
	if most := before.heap + uint64(reloadListeners)*16<<10 + reloadHeapSlack; after.heap > most {
		t.Errorf("heap: before %d, after %d, at most %d", before.heap, after.heap, most)
	}
	f := r.Engine.front
	if len(f.slots) > 60 || len(r.gen.Load().handlers) > 60 || len(r.limiters) != 0 {
		t.Errorf("%d slots, %d handlers, %d limiters", len(f.slots), len(r.gen.Load().handlers), len(r.limiters))
	}
}

func listenersSettled(t *testing.T, r *running) reloadUse {
	t.Helper()
	eventually(t, "no listener is retired", func() bool {
		f := r.Engine.front
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.retired) == 0
	})
	return reloadSettled(t, r)
}
