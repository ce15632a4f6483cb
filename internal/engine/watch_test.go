// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/weirtest"
)

// A change is acted upon when it has been there for settle, once, and whatever
// happens meanwhile begins the wait anew.
func TestWatcher(t *testing.T) {
	w := watcher{settle: time.Second}
	at := time.Unix(1_000_000, 0)
	for i, step := range []struct {
		after time.Duration
		mark  string
		want  bool
		pause time.Duration // of a watch that looks every minute
	}{
		{0, "a", false, time.Second}, // what was there at the start is compared, too
		{time.Second, "a", true, time.Minute},
		{time.Minute, "a", false, time.Minute},
		{time.Minute, "b", false, time.Second},
		{900 * time.Millisecond, "c", false, time.Second}, // still being written
		{900 * time.Millisecond, "c", false, time.Second},
		{100 * time.Millisecond, "c", true, time.Minute},
		{time.Minute, "c", false, time.Minute},
		{time.Minute, "d", false, time.Second},
		{500 * time.Millisecond, "c", false, time.Minute}, // taken back before anybody looked
		{time.Minute, "c", false, time.Minute},
		{time.Minute, "d", false, time.Second},
		{time.Hour, "d", true, time.Minute},
	} {
		at = at.Add(step.after)
		got := w.look(at, step.mark)
		if got {
			w.done()
		}
		if got != step.want || w.pause(time.Minute) != step.pause {
			t.Errorf("step %d: %v, then after %v; want %v, %v", i, got, w.pause(time.Minute), step.want, step.pause)
		}
	}
	// One that may not act now acts later.
	w.look(at, "e")
	if !w.look(at.Add(time.Second), "e") || !w.look(at.Add(2*time.Second), "e") {
		t.Error("a change that was not acted upon is forgotten")
	}
}

// What takes the place of a file and can only be waited for is looked at from
// outside.
func TestContentOfPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	if contentOf([]string{path}) == contentOf([]string{path + ".gone"}) {
		t.Error("a pipe is there as if it was not")
	}
}

// watching makes an engine that watches a file.
func watching(t *testing.T, dir string) (*Engine, *weirtest.Log) {
	t.Helper()
	path, log := filepath.Join(dir, "weir.yaml"), &weirtest.Log{}
	load := func() (*config.Plan, error) { return config.Load(path) }
	plan, err := load()
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(plan, Options{Version: "test", Logger: slog.New(slog.NewTextHandler(log, nil)), Load: load})
	if err != nil {
		t.Fatal(err)
	}
	e.stable = 20 * time.Millisecond
	e.Start()
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			t.Log(log)
		}
	})
	return e, log
}

func watchedText(body string) string {
	return `reload: {watch: 100ms}
admin: off
log: {access: off}
include: ["more*.yaml"]
listeners: {web: {bind: "127.0.0.1:0", routes: [{respond: {body: ` + body + `}}]}}
`
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (e *Engine) serves(body string) bool {
	l := e.gen.Load().Plan.Listener("web")
	return l != nil && l.Routes[0].Respond.Body == body
}

// Whatever way a file comes to hold something else, it is seen.
func TestWatchSees(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weir.yaml")
	put(t, path, watchedText("one"))
	put(t, filepath.Join(dir, "more.yaml"), "{}\n")
	e, log := watching(t, dir)
	expect := func(how, body string) {
		t.Helper()
		weirtest.Eventually(t, how+" is seen", func() bool { return e.serves(body) })
	}
	put(t, path, watchedText("two"))
	expect("a write in place", "two")

	put(t, path+"~", watchedText("three")) // as vim and most editors do
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
	expect("a rename", "three")

	// As Kubernetes shows a ConfigMap: the file is a link to ..data/FILE, and ..data a
	// link that is switched to another directory.
	for i, body := range []string{"four", "five!"} { // of one length, by the same clock
		data := filepath.Join(dir, "..version"+body)
		if err := os.Mkdir(data, 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(data, "weir.yaml"), watchedText(body))
		if err := os.Symlink(data, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := os.Symlink("..data/weir.yaml", path+"~"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+"~", path); err != nil {
				t.Fatal(err)
			}
			// What it includes is beside the link.
		}
		expect("a switched link", body)
	}

	put(t, filepath.Join(dir, "more.yaml"), "pools: {app: {backends: [\"http://127.0.0.1:9\"], health: {active: off}}}\n")
	weirtest.Eventually(t, "a change of an included file is seen", func() bool { return e.gen.Load().Plan.Pool("app") != nil })
	put(t, filepath.Join(dir, "more2.yaml"), "pools: {app2: {backends: [\"http://127.0.0.1:9\"], health: {active: off}}}\n")
	weirtest.Eventually(t, "a file that begins to match is seen", func() bool { return e.gen.Load().Plan.Pool("app2") != nil })

	before := e.gen.Load().Number
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		t.Fatal(err)
	}
	put(t, path, watchedText("six"))
	expect("what follows a touch", "six")
	if n := e.gen.Load().Number; n > before+2 {
		t.Errorf("a touch made %d generations", n-before-1)
	}
	if strings.Contains(log.String(), "not reloaded") {
		t.Error("something was refused")
	}
}

// A file with a mistake changes nothing and is told of once, however long it
// stays and however often it is written; another mistake is told of again.
func TestWatchRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weir.yaml")
	put(t, path, watchedText("one"))
	e, log := watching(t, dir)
	refused := func(n int) {
		t.Helper()
		weirtest.Eventually(t, "it is refused", func() bool { return strings.Count(log.String(), "not reloaded") >= n })
		if got := strings.Count(log.String(), "not reloaded"); got != n {
			t.Errorf("told %d times, want %d", got, n)
		}
	}
	broken := watchedText("one") + "nonsense: 1\n"
	put(t, path, broken)
	refused(1)
	put(t, path+"~", broken) // the same once more, as configuration management does
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
	put(t, path+"~", watchedText("two"))
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
	weirtest.Eventually(t, "the mended file serves", func() bool { return e.serves("two") })
	refused(1)
	put(t, path, broken)
	refused(2) // it was fine in between
	put(t, path, broken+"more: 1\n")
	refused(3)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	refused(4)
	if !e.serves("two") {
		t.Error("a file with a mistake is in force")
	}
	// An include that cannot be read is watched, although what serves does not name it.
	put(t, path, watchedText("three"))
	weirtest.Eventually(t, "the file is back", func() bool { return e.serves("three") })
	other := filepath.Join(dir, "other.yaml")
	put(t, other, "pools: {app: {backnds: []}}\n")
	put(t, path, strings.Replace(watchedText("four"), "more*.yaml", "other.yaml", 1))
	refused(5)
	put(t, other, "pools: {app: {backends: [\"http://127.0.0.1:9\"], health: {active: off}}}\n")
	weirtest.Eventually(t, "the mended include serves", func() bool { return e.serves("four") })
}

// The watch is switched by the configuration that it watches.
func TestWatchSwitches(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weir.yaml")
	off := func(body string) string { return strings.Replace(watchedText(body), "100ms", "off", 1) }
	put(t, path, off("one"))
	e, _ := watching(t, dir)
	put(t, path, off("two"))
	select {
	case <-time.After(150 * time.Millisecond):
	case <-e.quit:
	}
	if e.serves("two") {
		t.Fatal("a watch that is off has reloaded")
	}
	put(t, path, watchedText("three"))
	if _, err := e.ReloadFile(ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	put(t, path, off("four"))
	weirtest.Eventually(t, "the change is seen", func() bool { return e.serves("four") })
	put(t, path, watchedText("five"))
	select {
	case <-time.After(150 * time.Millisecond):
	case <-e.quit:
	}
	if e.serves("five") {
		t.Error("a watch that was switched off has reloaded")
	}
}
