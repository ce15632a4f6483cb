// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestUpgradeForgetsNothing: what operators said and what weir found out is the
// same after an upgrade: a drain, a weight, an ejection with its time, the age of a
// slow start, the generation.
func TestUpgradeForgetsNothing(t *testing.T) {
	t.Parallel()
	sick := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusBadGateway) }))
	defer sick.Close()
	var late atomic.Int64
	newcomer := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { late.Add(1) }))
	defer newcomer.Close()
	sickID, newID := strings.TrimPrefix(sick.URL, "http://"), strings.TrimPrefix(newcomer.URL, "http://")
	r := newUpgradeRig(t, fmt.Sprintf(`
  errors:
    balance: round_robin
    health: {active: off, passive: {eject: 90s}}
    retry: {attempts: 1}
    backends: ["http://%s", "http://%s"]
`, sickID, newID))
	app := r.world.backends
	r.must("drain", "app/"+app[0])
	r.must("weight", "app/"+app[1], "7")
	// A route of its own leads to the sick one, and a newcomer begins its slow start.
	text, err := os.ReadFile(r.config)
	if err != nil {
		t.Fatal(err)
	}
	next := strings.Replace(string(text), "routes: [{match", `routes: [{match: {path_prefix: /errors}, pool: errors}, {match`, 1)
	next += fmt.Sprintf("  young: {slow_start: {window: 60s}, health: {active: {interval: 1s, fast_interval: 100ms}}, backends: [\"http://%s\"]}\n", app[2])
	r.write(strings.Replace(next, "/errors}, pool: errors}", "/errors}, pool: errors}, {match: {path_prefix: /young}, pool: young}", 1))
	r.must("reload")
	r.write(strings.Replace(next, fmt.Sprintf("backends: [\"http://%s\"]}", app[2]), fmt.Sprintf("backends: [\"http://%s\", \"http://%s\"]}", app[2], newID), 1))
	r.must("reload")
	for range 12 {
		if resp, err := http.Get("http://" + r.web + "/errors/"); err == nil {
			resp.Body.Close()
		}
	}
	eventually(t, 5*time.Second, "the sick one is ejected, the new one young", func() bool {
		b := r.backend("young", newID)
		return r.backend("errors", sickID).Reason == "ejected" && b.Health == "healthy" && b.Reason == "slow_start"
	})
	time.Sleep(2 * time.Second) // for the slow start to have an age
	young, generation := r.backend("young", newID), r.ask().Generation

	for i := range 2 {
		old := r.upgrade(i%2 == 1)
		if b := r.backend("app", app[0]); b.Admin != "draining" || b.Override == nil {
			t.Errorf("upgrade %d: the drained backend: %+v", i, b)
		}
		if b := r.backend("app", app[1]); b.Weight != 7 || b.Override == nil {
			t.Errorf("upgrade %d: the weight: %+v", i, b)
		}
		if b := r.backend("errors", sickID); b.Share != 0 || b.Reason != "ejected" {
			t.Errorf("upgrade %d: the ejected backend: %+v", i, b)
		}
		b := r.backend("young", newID)
		if b.Reason != "slow_start" || b.Share < young.Share || b.Share > young.Share+0.5 || b.Health != "healthy" {
			t.Errorf("upgrade %d: the slow start: before %+v, after %+v", i, young, b)
		}
		if s := r.ask(); s.Generation < generation {
			t.Errorf("upgrade %d: generation %d after %d", i, s.Generation, generation)
		}
		r.must("weight", "app/"+app[1], "7") // a change: the process before is let go
		r.gone(20*time.Second, old)
	}
	// The path of a unix socket leads to who serves, though its predecessors ended.
	sock := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(r.dir, "web.sock"))
	}}}
	resp, err := sock.Get("http://x/g")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	// What was said is taken back as if it had been said here.
	r.must("enable", "app/"+app[0])
	r.must("weight", "app/"+app[1], "--reset")
	if a, b := r.backend("app", app[0]), r.backend("app", app[1]); a.Admin != "enabled" || b.Weight != 1 {
		t.Errorf("taken back: %+v, %+v", a, b)
	}
}

// slowStart is a binary that takes a second until it begins.
const slowBinary = "#!/bin/sh\nsleep 1\nexec ${WEIR} \"$@\"\n"

// TestUpgradeAndChanges: what is changed while a successor builds is refused or
// arrives; it is never lost.
func TestUpgradeAndChanges(t *testing.T) {
	t.Parallel()
	r := newUpgradeRig(t, "")
	l := r.loaded(2)
	app := r.world.backends
	r.install(slowBinary)
	type answer struct {
		out  string
		code int
	}
	begin := func() chan answer {
		done := make(chan answer, 1)
		go func() {
			out, code := r.run("upgrade")
			done <- answer{out, code}
		}()
		eventually(t, 5*time.Second, "the successor has been started", func() bool { return len(r.processes()) == 2 })
		return done
	}
	done := begin()
	// Another upgrade and a reload wait their turn, and say so; an operator's word goes along.
	if out, code := r.run("upgrade"); code != 1 || !strings.Contains(out, "wait until") {
		t.Errorf("a second upgrade: exit code %d\n%s", code, out)
	}
	if out, code := r.run("reload"); code != 1 || !strings.Contains(out, "again in a moment") {
		t.Errorf("a reload during an upgrade: exit code %d\n%s", code, out)
	}
	r.must("drain", "app/"+app[0])
	a := <-done
	if a.code != 0 {
		t.Fatalf("exit code %d\n%s", a.code, a.out)
	}
	old := r.pid
	r.pid = r.ask().PID
	r.reap(r.pid)
	if b := r.backend("app", app[0]); b.Admin != "draining" {
		t.Errorf("a drain during the upgrade is lost: %+v", b)
	}
	// A reload that has begun is in the successor.
	r.install("")
	text, err := os.ReadFile(r.config)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 5; n++ {
		r.write(strings.ReplaceAll(string(text), `X-Generation: "0"`, fmt.Sprintf(`X-Generation: "%d"`, n)))
		reloaded := make(chan answer, 1)
		go func() {
			out, code := r.run("reload")
			reloaded <- answer{out, code}
		}()
		before := r.upgrade(false)
		// The new process has read the file after it was written, whichever came first.
		l.least.Store(int64(n))
		got := <-reloaded
		if got.code != 0 && !strings.Contains(got.out, "again in a moment") && !strings.Contains(got.out, "ask it") {
			t.Errorf("a reload beside an upgrade: exit code %d\n%s", got.code, got.out)
		}
		resp, err := http.Get("http://" + r.web + "/g")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		r.must("weight", "app/"+app[1], "2")
		defer r.gone(20*time.Second, before)
	}
	l.quiet()
	l.end(r.world)
	r.gone(20*time.Second, old)
}
