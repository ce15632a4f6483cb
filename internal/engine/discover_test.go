// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/discover"
	"github.com/weirlb/weir/internal/config"
)

// finderRig is a pool that is not started, to which findings are given by hand.
func finderRig(t *testing.T, poolYAML string) (*Engine, *livePool) {
	t.Helper()
	plan, err := config.Parse("test.yaml", []byte(`
admin: {bind: "127.0.0.1:0"}
status: {bind: "127.0.0.1:39901"}
log: {access: off}
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools:
  app: `+poolYAML+"\n"), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	plan.Status.Bind = "" // not bound; what must not be reached is tested with the plan
	e, err := New(plan, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, e.pools["app"]
}

func endpoints(ids ...string) (out []discover.Endpoint) {
	for _, id := range ids {
		out = append(out, discover.Endpoint{ID: id, URL: "http://" + id, Weight: 1})
	}
	return out
}

func membersOf(p *livePool) string {
	s := p.pool.Snapshot()
	var out []string
	for i := range s.Backends {
		if b := &s.Backends[i]; !b.Removed {
			out = append(out, fmt.Sprintf("%s=%.0f", b.ID, b.Share))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestFoundBackends: those of the first answer are a first configuration's, which
// have their share at once; later ones prove themselves; failures change nothing.
func TestFoundBackends(t *testing.T) {
	e, p := finderRig(t, "{discover: {dns: {name: app.test, port: 80}}}")
	if membersOf(p) != "" || !p.undiscovered() {
		t.Fatal(membersOf(p))
	}
	p.found(discover.Finding{Err: errors.New("no answer in time")})
	if !p.undiscovered() || !p.discovery().Failing {
		t.Fatal("a failure counts as an answer")
	}
	p.found(discover.Finding{Endpoints: endpoints("10.0.0.1:80", "10.0.0.2:80")})
	if got := membersOf(p); got != "10.0.0.1:80=1 10.0.0.2:80=1" || p.undiscovered() {
		t.Fatal(got)
	}
	p.found(discover.Finding{Endpoints: endpoints("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")})
	if got := membersOf(p); got != "10.0.0.1:80=1 10.0.0.2:80=1 10.0.0.3:80=0" {
		t.Fatal(got)
	}
	for _, f := range []discover.Finding{{Err: errors.New("SERVFAIL")}, {Err: fmt.Errorf("app.test: %w", discover.ErrEmpty)}, {}} {
		p.found(f)
	}
	p.found(discover.Finding{Endpoints: endpoints("10.0.0.3:80")})
	if got := membersOf(p); got != "10.0.0.1:80=1 10.0.0.2:80=1 10.0.0.3:80=0" {
		t.Fatal(got)
	}
	d := p.discovery()
	if d.Held != 2 || d.Found != 3 || d.Failing || d.LastAnswer == nil || d.Source != "dns a+aaaa app.test port 80" {
		t.Fatalf("%+v", d)
	}
	p.found(discover.Finding{Endpoints: endpoints("10.0.0.3:80")})
	if got := membersOf(p); got != "10.0.0.3:80=0" {
		t.Fatal(got)
	}
	var counts []string
	for _, a := range p.discoveryGauges().Answers {
		counts = append(counts, fmt.Sprint(a.Outcome, a.Count))
	}
	if got := strings.Join(counts, " "); got != "ok4 partial0 empty2 failed2" {
		t.Error(got)
	}
	var texts []string
	for _, ev := range e.Events(0) {
		if strings.Contains(ev.Text, "discovery") || strings.Contains(ev.Text, "backends") {
			texts = append(texts, ev.Text)
		}
	}
	want := []string{
		"discovery fails: no answer in time", "discovery works again", "2 backends found",
		"backends changed: 1 added, 0 removed, 0 updated", "discovery fails: SERVFAIL", "discovery works again",
		"2 of 3 backends are missing from an answer: they stay until another one confirms that", "backends changed: 0 added, 2 removed, 0 updated",
	}
	if !slices.Equal(texts, want) {
		t.Errorf("events %q\nwant %q", texts, want)
	}
}

// TestFoundBesideListed: listed backends are there from the beginning, are never
// replaced, and count when half of the pool is reckoned.
func TestFoundBesideListed(t *testing.T) {
	e, p := finderRig(t, `{backends: ["http://10.0.0.1:80"], discover: {dns: {name: app.test, port: 80}}}`)
	if got := membersOf(p); got != "10.0.0.1:80=1" {
		t.Fatal(got)
	}
	p.found(discover.Finding{Endpoints: endpoints("10.0.0.1:80", "10.0.0.2:80")})
	if got := membersOf(p); got != "10.0.0.1:80=1 10.0.0.2:80=0" || !strings.Contains(p.discovery().NotUsed, "is listed") {
		t.Fatal(got, p.discovery().NotUsed)
	}
	p.found(discover.Finding{Endpoints: endpoints("10.0.0.3:80")}) // one of two leaves
	if got := membersOf(p); got != "10.0.0.1:80=1 10.0.0.3:80=0" {
		t.Fatal(got)
	}
	plan := *e.gen.Load().Plan
	plan.Pools = slices.Clone(plan.Pools)
	plan.Pools[0].Discover = nil
	p.populate(&plan.Pools[0])
	if got := membersOf(p); got != "10.0.0.1:80=1" || p.discovery() != nil || p.discoveryGauges() != nil {
		t.Fatal(got)
	}
}

// TestFoundItself: weir's own services for operators are no backends.
func TestFoundItself(t *testing.T) {
	e, p := finderRig(t, "{discover: {dns: {name: app.test, port: 39901}}}")
	e.gen.Load().Plan.Status.Bind = "127.0.0.1:39901"
	p.found(discover.Finding{Endpoints: endpoints("127.0.0.1:39901")})
	if got := membersOf(p); got != "" || !strings.Contains(p.discovery().NotUsed, "where weir serves status") || !p.discovery().Failing {
		t.Fatal(got, p.discovery())
	}
	p.found(discover.Finding{Endpoints: endpoints("127.0.0.1:39901", "10.0.0.1:39901")})
	if got := membersOf(p); got != "10.0.0.1:39901=1" {
		t.Fatal(got)
	}
	e.gen.Load().Plan.Status.Bind = ""
}

// TestFoundInFile runs a file through the engine: found, changed, broken, told in
// the words of the configuration, and another file after a reload.
func TestFoundInFile(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := put("a.yaml", "- http://127.0.0.1:1\n- {url: \"http://127.0.0.1:2\", weight: 3}\n")
	e, p := finderRig(t, "{discover: {file: "+path+"}, health: {active: off}}")
	e.Start()
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for until := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%s: %s, %+v", what, membersOf(p), p.discovery())
			}
		}
	}
	eventually("found", func() bool { return membersOf(p) == "127.0.0.1:1=1 127.0.0.1:2=1" })
	put("a.yaml", "- http://127.0.0.1:1\n- {url: \"http://127.0.0.1:2\", wieght: 3}\n")
	eventually("broken", func() bool { return p.discovery().Failing })
	if d := p.discovery(); !strings.Contains(d.LastError, "did you mean weight?") || !strings.Contains(d.LastError, ":2:") || membersOf(p) != "127.0.0.1:1=1 127.0.0.1:2=1" {
		t.Fatalf("%s, %+v", membersOf(p), d)
	}
	put("a.yaml", "- http://127.0.0.1:3\n")
	eventually("replaced", func() bool {
		return !strings.Contains(membersOf(p), "127.0.0.1:1") && strings.Contains(membersOf(p), "127.0.0.1:3")
	})
	plan := *e.gen.Load().Plan
	plan.Pools = slices.Clone(plan.Pools)
	plan.Pools[0].Discover = &config.Discover{File: put("b.yaml", `["http://127.0.0.1:4"]`)}
	if err := e.Apply(&plan); err != nil {
		t.Fatal(err)
	}
	eventually("another file", func() bool {
		return strings.Contains(membersOf(p), "127.0.0.1:4") && !strings.Contains(membersOf(p), "127.0.0.1:3")
	})
}
