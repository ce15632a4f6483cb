// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// docs/sticky.md runs as it stands.
func TestStickyDocument(t *testing.T) {
	t.Parallel()
	runDocument(t, "../docs/sticky.md", 4, "ip link set lo up\n")
}

// stickyWeir runs a weir whose pool of the backends keeps sessions.
func stickyWeir(t *testing.T, addrs []string, sticky string) *weir {
	t.Helper()
	return startRun(t, `
listeners: {web: {bind: "${LISTEN}", pool: app}}
admin: {bind: "${ADMIN}"}
pools:
  app:
    backends: [http://`+strings.Join(addrs, ", http://")+`]
    health: {active: {interval: 500ms, fast_interval: 100ms}}
    drain: {deadline: 30s}
    sticky: `+sticky+`
`)
}

// browser is curl with a jar of cookies.
type browser struct {
	t    *testing.T
	curl string
	jar  string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	return &browser{t, tool(t, "curl"), filepath.Join(t.TempDir(), "jar")}
}

// home asks and returns which backend has answered.
func (b *browser) home(w *weir, args ...string) string {
	b.t.Helper()
	args = append(args, "-sS", "--max-time", "10", "-b", b.jar, "-c", b.jar, "-w", "\n%{http_code}", "http://localhost:"+w.addr[strings.LastIndexByte(w.addr, ':')+1:]+"/")
	out, err := exec.Command(b.curl, args...).CombinedOutput()
	text := string(out)
	if err != nil || !strings.HasSuffix(text, "\n200") {
		b.t.Fatalf("curl %v: %v\n%s", args, err, text)
	}
	_, name, _ := strings.Cut(text, "hello from ")
	return strings.Fields(name)[0]
}

// cookie is weir's in the jar.
func (b *browser) cookie() string {
	text, err := os.ReadFile(b.jar)
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 7 && strings.HasPrefix(f[5], "weir-") {
			return f[5] + "=" + f[6]
		}
	}
	return ""
}

// TestSticky: a browser stays on its backend, over either version of HTTP and
// through every weir with the same keys; when the backend is killed it moves, once,
// without an error; a cookie that nobody made is replaced.
func TestSticky(t *testing.T) {
	t.Parallel()
	addrs := []string{freeAddr(t), freeAddr(t), freeAddr(t)}
	backends := map[string]*process{}
	for _, a := range addrs {
		backends[a] = startBackend(t, a, "--delay", "0ms")
	}
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte(strings.Repeat("QUJD", 16)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	one, two := stickyWeir(t, addrs, "{secret_file: "+keys+"}"), stickyWeir(t, addrs, "{secret_file: "+keys+"}")
	b := newBrowser(t)
	home := b.home(one)
	cookie := b.cookie()
	if cookie == "" || strings.Contains(cookie, home) {
		t.Fatalf("cookie %q", cookie)
	}
	for i := range 10 {
		w, version := one, "--http1.1"
		if i%2 == 1 {
			w = two
		}
		if i%3 == 2 {
			version = "--http2-prior-knowledge"
		}
		if got := b.home(w, version); got != home {
			t.Fatalf("request %d is on %s, the session on %s", i, got, home)
		}
	}
	if b.cookie() != cookie {
		t.Error("the cookie was written anew, and nothing had changed")
	}
	backends[home].signal(syscall.SIGKILL)
	backends[home].wait(10 * time.Second)
	moved := b.home(one)
	if moved == home || b.cookie() == cookie {
		t.Fatalf("the backend is dead: %s, cookie rewritten: %v", moved, b.cookie() != cookie)
	}
	for range 5 {
		if got := b.home(two); got != moved {
			t.Fatalf("moved to %s, then %s", moved, got)
		}
	}
	name, _, _ := strings.Cut(cookie, "=")
	forger := newBrowser(t)
	forger.home(one, "-H", "Cookie: "+name+"="+strings.Repeat("A", 22))
	if forger.cookie() == "" {
		t.Error("a forged cookie is not replaced")
	}
	if text := one.metrics(t); !strings.Contains(text, `weir_sticky_total{outcome="unknown",pool="app"} 1`) || !strings.Contains(text, `weir_sticky_total{outcome="moved",pool="app"} 1`) {
		t.Error("weir_sticky_total does not tell")
	}
}

// TestStickyDrain: a drain moves sessions at once, or with on_drain: keep lets them
// stay while nobody else comes.
func TestStickyDrain(t *testing.T) {
	t.Parallel()
	addrs := []string{freeAddr(t), freeAddr(t)}
	for _, a := range addrs {
		startBackend(t, a, "--delay", "0ms")
	}
	for _, keep := range []bool{false, true} {
		w := stickyWeir(t, addrs, map[bool]string{false: "on", true: "{on_drain: keep}"}[keep])
		b := newBrowser(t)
		home := b.home(w)
		out, err := exec.Command(binary, "drain", "--admin", w.admin, "app/"+home).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for range 5 {
			if got := b.home(w); (got == home) != keep {
				t.Errorf("keep %v: the session was on %s, its request is on %s", keep, home, got)
			}
			if got := newBrowser(t).home(w); got == home {
				t.Errorf("keep %v: a new session on a backend that drains", keep)
			}
		}
	}
}
