// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
)

// halfBase is what runs while mutated configurations are posted.
const halfBase = `listeners:
  web:
    bind: "127.0.0.1:0"
    routes:
      - {match: {path: /say}, respond: {code: 200, body: hello, content_type: text/plain}}
      - {match: {host: "*.example.com", path_prefix: /v1}, pool: app, timeouts: {request: 5s}, retry: {attempts: 3}}
      - {pool: shop, request_headers: {set: {X-A: b}}}
  more: {bind: "127.0.0.2:0", pool: app, limits: {max_connections: 100}}
pools:
  app:
    balance: p2c
    backends: ["http://127.0.0.1:1", {url: "http://127.0.0.1:2", weight: 3}]
    health: {active: off}
    limits: {requests: 10, queue: 5}
  shop:
    balance: maglev
    hash: {key: client_ip}
    backends: ["http://127.0.0.1:3", {url: "http://127.0.0.1:4", backup: true}]
    health: {active: off}
    timeouts: {connect: 1s}
`

// halfWords are what words of a configuration are replaced by: those of the
// configurations of package config, and odd ones.
func halfWords(tb testing.TB) []string {
	tb.Helper()
	files, err := filepath.Glob("../config/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		tb.Fatal("no configurations", err)
	}
	words := map[string]bool{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		for _, w := range halfWord.FindAllString(string(text), -1) {
			words[w] = true
		}
	}
	odd := []string{"", "~", "[]", "{}", "none", "off", "0", "-1", "5s", "0s", "50%", "1KiB", "app", "shop", "web", `"127.0.0.1:0"`, `"127.0.0.2:0"`, `"http://127.0.0.1:5"`, `"***"`, "include", "\t", "*x", "<<"}
	return append(slices.Sorted(maps.Keys(words)), odd...)
}

var halfWord = regexp.MustCompile(`"[^"\n]*"|[^\s,{}\[\]"]+`)

// mutated replaces, repeats or drops some words and lines of halfBase.
func mutated(rng *rand.Rand, words []string) string {
	text := halfBase
	for range 1 + rng.IntN(3) {
		places := halfWord.FindAllStringIndex(text, -1)
		at := places[rng.IntN(len(places))]
		switch rng.IntN(4) {
		case 0:
			lines := strings.SplitAfter(text, "\n")
			i := rng.IntN(len(lines))
			if rng.IntN(2) == 0 {
				lines = slices.Insert(lines, i, lines[i])
			} else {
				lines = slices.Delete(lines, i, i+1)
			}
			text = strings.Join(lines, "")
		default:
			text = text[:at[0]] + words[rng.IntN(len(words))] + text[at[1]:]
		}
		if text == "" {
			break
		}
	}
	return text
}

// harmless reports whether applying a plan reaches nothing beyond loopback and
// writes no file.
func harmless(p *config.Plan) bool {
	near := func(address string) bool {
		a, err := netip.ParseAddrPort(address)
		return err == nil && a.Addr().IsLoopback()
	}
	for i := range p.Listeners {
		for _, b := range p.Listeners[i].Bind {
			if a, err := netip.ParseAddrPort(b); err != nil || !a.Addr().IsLoopback() || a.Port() != 0 {
				return false
			}
		}
	}
	for i := range p.Pools {
		if p.Pools[i].Discover != nil {
			return false
		}
		for j := range p.Pools[i].Backends {
			if !near(p.Pools[i].Backends[j].Address) {
				return false
			}
		}
	}
	return p.Log.Access.Off && p.Admin.Bind == "" && p.Status.Bind == ""
}

// visible is everything of an engine that a configuration decides.
func visible(e *Engine) string {
	var b strings.Builder
	c := e.RunningConfig()
	fmt.Fprintf(&b, "generation %d\n%s", c.Generation, c.Text)
	for _, l := range e.liveListeners() {
		fmt.Fprintf(&b, "listener %s on %s\n", l.name, strings.Join(l.bound(), ", "))
	}
	for _, p := range e.Pools() {
		fmt.Fprintf(&b, "pool %s %s\n", p.Name, p.Balance)
		for _, m := range p.Members {
			fmt.Fprintf(&b, "  %s %s weight %d backup %v\n", m.ID, m.URL, m.Weight, m.Backup)
		}
	}
	return b.String()
}

// A posted configuration is in force as a whole, or has changed nothing.
func wholeOrNothing(tb testing.TB, e *Engine, text string) (applied bool) {
	tb.Helper()
	full := "admin: off\nlog: {access: off, level: error}\n" + text
	plan, perr := config.Parse("posted", []byte(full), os.LookupEnv)
	if perr == nil && !harmless(plan) {
		return false
	}
	before := visible(e)
	if _, err := e.ApplyConfig([]byte(full), 0, true); visible(e) != before {
		tb.Fatalf("a dry run (%v) changed what runs:\n%s\nbefore:\n%s\nafter:\n%s", err, full, before, visible(e))
	}
	r, err := e.ApplyConfig([]byte(full), 0, false)
	after := visible(e)
	if err != nil {
		if after != before {
			tb.Fatalf("refused (%v), but changed:\n%s\nbefore:\n%s\nafter:\n%s", err, full, before, after)
		}
		return false
	}
	if perr != nil {
		tb.Fatalf("applied although %v:\n%s", perr, full)
	}
	c := e.RunningConfig()
	if c.Text != string(plan.Public()) || c.Generation != r.Generation || !strings.Contains(before, fmt.Sprintf("generation %d\n", r.Generation-1)) {
		tb.Fatalf("applied, but generation %d runs:\n%s\nnot:\n%s", c.Generation, c.Text, plan.Public())
	}
	pools := e.Pools()
	if len(pools) != len(plan.Pools) || len(e.liveListeners()) != len(plan.Listeners) {
		tb.Fatalf("applied by half: %d of %d pools, %d of %d listeners", len(pools), len(plan.Pools), len(e.liveListeners()), len(plan.Listeners))
	}
	for i := range plan.Pools {
		want, got := &plan.Pools[i], pools[i]
		if got.Name != want.Name || got.Balance != want.Balance || want.Subset == nil && len(got.Members) != len(want.Backends) {
			tb.Fatalf("pool %s runs with %s and %d backends, not %s and %d", got.Name, got.Balance, len(got.Members), want.Balance, len(want.Backends))
		}
	}
	return true
}

func halfEngine(tb testing.TB) *Engine {
	tb.Helper()
	plan, err := config.Parse("base", []byte("admin: off\nlog: {access: off, level: error}\n"+halfBase), os.LookupEnv)
	if err != nil {
		tb.Fatal(err)
	}
	e, err := New(plan, Options{})
	if err != nil {
		tb.Fatal(err)
	}
	e.Start()
	tb.Cleanup(func() {
		if err := e.Close(); err != nil {
			tb.Error(err)
		}
	})
	return e
}

// TestMutatedConfigurations posts some hundred mutated configurations, one after
// the other, to an engine that runs.
func TestMutatedConfigurations(t *testing.T) {
	e, words := halfEngine(t), halfWords(t)
	rng := rand.New(rand.NewPCG(1, 2))
	const rounds = 150
	applied, refused := 0, 0
	for range rounds {
		if wholeOrNothing(t, e, mutated(rng, words)) {
			applied++
		} else {
			refused++
		}
	}
	if applied < rounds/50 || refused < rounds/4 {
		t.Errorf("%d were applied and %d refused: the mutations are of little use", applied, refused)
	}
	if !wholeOrNothing(t, e, halfBase) {
		t.Error("the first configuration is not accepted any more")
	}
}

// FuzzMutatedConfiguration is TestMutatedConfigurations for any text and for any
// seed of mutations.
func FuzzMutatedConfiguration(f *testing.F) {
	f.Add(halfBase, uint64(0))
	f.Add("", uint64(1))
	f.Add("listeners: {a: {bind: \"127.0.0.1:0\", pool: b}}\npools: {b: {backends: [\"http://127.0.0.1:1\"], health: {active: off}}}\n", uint64(2))
	f.Add("include: [x]\n", uint64(3))
	e, words := halfEngine(f), halfWords(f)
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		if len(text) > 16<<10 {
			return
		}
		wholeOrNothing(t, e, text)
		wholeOrNothing(t, e, mutated(rand.New(rand.NewPCG(seed, 1)), words))
	})
}

// Configurations of several files are reloaded as one: a new file that a pattern
// matches, a changed one, and one with a mistake, which changes nothing.
func TestReloadOfSeveralFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "conf.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	write("weir.yaml", "admin: off\nlog: {access: off, level: error}\ninclude: [conf.d/*.yaml]\nlisteners: {web: {bind: \"127.0.0.1:0\", pool: app}}\n")
	const off = ", health: {active: off}}}\n"
	write("conf.d/app.yaml", "pools: {app: {backends: [\"http://127.0.0.1:1\"]"+off)
	main := filepath.Join(dir, "weir.yaml")
	load := func() (*config.Plan, error) { return config.Load(main) }
	e := startLoaded(t, load)
	reload := func(want ...string) {
		t.Helper()
		for _, dry := range []bool{true, false} {
			r, err := e.ReloadConfig(dry)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range r.Changes {
				got = append(got, c.Text)
			}
			if len(got) != len(want) {
				t.Errorf("dry %v: changes %q, want %q", dry, got, want)
				continue
			}
			for i := range want {
				if !strings.Contains(got[i], want[i]) {
					t.Errorf("dry %v: change %q, want %q", dry, got[i], want[i])
				}
			}
		}
	}
	reload()
	write("conf.d/shop.yaml", "pools: {shop: {backends: [\"http://127.0.0.1:2\"]"+off)
	reload("+ pools.shop")
	write("conf.d/app.yaml", "pools: {app: {backends: [\"http://127.0.0.1:3\"]"+off)
	reload("+ pools.app.backends[127.0.0.1:3]", "- pools.app.backends[127.0.0.1:1]")
	if files := e.gen.Load().Plan.Files; len(files) != 3 || files[0] != main {
		t.Errorf("read from %v", files)
	}
	before := visible(e)
	write("conf.d/twice.yaml", "pools: {app: {backends: [\"http://127.0.0.1:4\"]"+off)
	if _, err := e.ReloadConfig(false); err == nil || !strings.Contains(err.Error(), filepath.Join("conf.d", "twice.yaml")+":1:9: pool \"app\" is defined twice") {
		t.Errorf("%v", err)
	}
	if visible(e) != before {
		t.Error("a refused reload changed what runs")
	}
	if err := os.Remove(filepath.Join(dir, "conf.d", "twice.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "conf.d", "shop.yaml")); err != nil {
		t.Fatal(err)
	}
	reload("- pools.shop")
	// A posted text is no file.
	text := "include: [conf.d/*.yaml]\n" + halfBase
	if _, err := e.ApplyConfig([]byte(text), 0, false); err == nil || !strings.Contains(err.Error(), "posted:1:10: include is for files") {
		t.Errorf("%v", err)
	}
	// Nor is what GET /config shows with a secret in it.
	if _, err := e.ApplyConfig([]byte(strings.Replace(halfBase, "X-A: b", `X-A: "***"`, 1)), 0, false); err == nil || !strings.Contains(err.Error(), "*** stands for a secret") {
		t.Errorf("%v", err)
	}
}

// A reload reads the token anew, also when nothing else has changed.
func TestReloadReadsTokenAgain(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("the-first-token-0123\r\n")
	load := func() (*config.Plan, error) {
		return config.Parse("weir.yaml", []byte("admin: {bind: \"127.0.0.1:0\", token_file: "+token+"}\nlog: {access: off, level: error}\n"+halfBase), os.LookupEnv)
	}
	e := startLoaded(t, load)
	ask := func(secret string) error {
		t.Helper()
		given := filepath.Join(t.TempDir(), "given")
		if err := os.WriteFile(given, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		client, err := admin.NewClient(admin.ClientOptions{Address: e.Bound().Admin, TokenFile: given})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		_, err = client.Status(t.Context())
		return err
	}
	if err := ask("the-first-token-0123"); err != nil {
		t.Fatal(err)
	}
	write("the-second-token-0123")
	if err := ask("the-second-token-0123"); err == nil {
		t.Error("a new token is taken before a reload")
	}
	if _, err := e.ReloadConfig(false); err != nil {
		t.Fatal(err)
	}
	if err := ask("the-first-token-0123"); err == nil {
		t.Error("the old token is still taken")
	}
	if err := ask("the-second-token-0123"); err != nil {
		t.Error(err)
	}
	write("short")
	if _, err := e.ReloadConfig(false); err == nil || strings.Contains(err.Error(), "short\"") {
		t.Errorf("%v", err)
	}
	if err := ask("the-second-token-0123"); err != nil {
		t.Errorf("after a refused reload: %v", err)
	}
}

// startLoaded starts an engine that can read its configuration again.
func startLoaded(t *testing.T, load func() (*config.Plan, error)) *Engine {
	t.Helper()
	plan, err := load()
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(plan, Options{Load: load})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}
