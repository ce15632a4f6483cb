// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// fileRig is a configuration with a state file.
func fileRig(t *testing.T) (text, path string, b *server) {
	b = backend(t, "a")
	path = filepath.Join(t.TempDir(), "state.json")
	return simple("state_file: "+path, b), path, b
}

// TestStateFile: what an operator said outlives the process, and so does health.
func TestStateFile(t *testing.T) {
	text, path, b := fileRig(t)
	r := start(t, text)
	eventually(t, "proven", func() bool { return r.member(t, b.id()).Health == "healthy" })
	if _, err := r.Patch("app", b.id(), admin.Patch{Admin: "draining", Weight: count32(9)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the word of an operator is safe at once", func() bool {
		s, err := readState(path)
		return err == nil && len(s.Pools) == 1 && len(s.Pools[0].Core.Overrides) == 1
	})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
		t.Errorf("left beside it: %v", list)
	}
	next := start(t, text)
	m := next.member(t, b.id())
	if m.Admin != "draining" || m.Weight != 9 || m.Override == nil || m.Health != "healthy" {
		t.Errorf("%+v", m)
	}
	if log := next.log.String(); !strings.Contains(log, "restored: 1 backends, 1 overrides") {
		t.Error("it is not said")
	}
	eventually(t, "written first", func() bool { return next.states.written.Load() == 1 })
	// A reload may take it away, and name another one.
	other := path + ".other"
	for _, to := range []string{"none", other} {
		if _, err := next.Reload(parse(t, strings.Replace(text, path, to, 1)), ReloadOptions{}); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		next.states.write(next.Engine, false)
		if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
			t.Errorf("%s: still written", to)
		}
	}
	if s, err := readState(other); err != nil || len(s.Pools) != 1 {
		t.Error(err)
	}
}

// TestStateFileWhenChanged: nothing is written when nothing happens.
func TestStateFileWhenChanged(t *testing.T) {
	text, _, b := fileRig(t)
	r := start(t, strings.Replace(text, "balance: round_robin", "balance: round_robin\n    health: {active: off}", 1))
	eventually(t, "written first", func() bool { return r.states.written.Load() == 1 })
	for range 3 {
		r.states.write(r.Engine, false)
	}
	if n := r.states.written.Load(); n != 1 {
		t.Errorf("written %d times", n)
	}
	mustGet(t, client(t), r.front+"/")
	eventually(t, "a request is counted", func() bool { return r.member(t, b.id()).Requests == 1 })
	r.states.write(r.Engine, false)
	if n := r.states.written.Load(); n != 2 {
		t.Errorf("after a request: written %d times", n)
	}
	// A successor owns the file until it dies.
	r.state.Store(phaseLeaving)
	r.states.write(r.Engine, true)
	r.state.Store(phaseServing)
	if n := r.states.written.Load(); n != 2 {
		t.Errorf("by a process whose successor serves: written %d times", n)
	}
}

// TestStateFileNotUsed: what is no state is said once, and the start goes on. What
// weir did not write it does not replace.
func TestStateFileNotUsed(t *testing.T) {
	for name, c := range map[string]struct {
		content  string
		mode     os.FileMode
		says     string
		replaced bool
	}{
		"broken":           {`{"version":1,"pools":[{`, 0o600, "cannot be read", true},
		"later version":    {`{"version":99,"pools":[]}`, 0o600, "another version: 99", true},
		"foreign":          {"127.0.0.1 localhost\n", 0o600, "not a state file of weir", false},
		"foreign, short":   {"x", 0o600, "not a state file of weir", false},
		"empty":            {"", 0o600, "not a state file of weir", true},
		"of all the world": {`{"version":1}`, 0o666, "may be written by others", true},
	} {
		t.Run(name, func(t *testing.T) {
			text, path, _ := fileRig(t)
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			r := start(t, text)
			eventually(t, "a write was tried", func() bool { return r.states.written.Load()+r.states.failures.Load() > 0 })
			r.states.write(r.Engine, true)
			if log := r.log.String(); !strings.Contains(log, c.says) || strings.Count(log, "the state file is not used") != 1 {
				t.Errorf("said is not %q", c.says)
			}
			kept := map[string]string{"broken": ".damaged", "later version": ".other-version"}[name]
			if text, err := os.ReadFile(path + kept); kept != "" && (err != nil || string(text) != c.content) {
				t.Errorf("it is not kept as %s: %q, %v", kept, text, err)
			}
			if list, err := filepath.Glob(path + ".*"); kept == "" && len(list) > 0 {
				t.Errorf("beside it: %v, %v", list, err)
			}
			if (r.states.failures.Load() == 0) != c.replaced || strings.Count(r.log.String(), "cannot be written") != btoi(!c.replaced) {
				t.Errorf("failures %d", r.states.failures.Load())
			}
			got, err := os.ReadFile(path)
			if err != nil || bytes.Equal(got, []byte(c.content)) == c.replaced {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestStateFileFails: a folder that is not there (a full disk is no other to us)
// costs a line in the log and nothing else, and it is written when it can be.
func TestStateFileFails(t *testing.T) {
	text, path, _ := fileRig(t)
	away := filepath.Join(filepath.Dir(path), "away", "state.json")
	r := start(t, strings.Replace(text, path, away, 1))
	for range 3 {
		r.states.write(r.Engine, false)
	}
	if n := r.states.failures.Load(); n < 3 || strings.Count(r.log.String(), "the state file cannot be written") != 1 {
		t.Errorf("%d failures", n)
	}
	if got := mustGet(t, client(t), r.front+"/"); got.status != 200 {
		t.Errorf("%+v", got)
	}
	if err := os.Mkdir(filepath.Dir(away), 0o700); err != nil {
		t.Fatal(err)
	}
	r.states.write(r.Engine, false)
	if _, err := readState(away); err != nil || !strings.Contains(r.log.String(), "written again") {
		t.Error(err)
	}
}

// TestReplaceFile: a link stays one, leftovers go, and nothing is left over.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.WriteFile(real, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(real); err != nil || string(got) != "new" {
		t.Errorf("%s, %v", got, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Error("the link is gone")
	}
	left, fresh := filepath.Join(dir, ".real.tmp-1"), filepath.Join(dir, ".real.tmp-2")
	for _, f := range []string{left, fresh} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(left, time.Time{}, time.Now().Add(-2*stateTemps)); err != nil {
		t.Fatal(err)
	}
	removeTemps(link, time.Now())
	if list, _ := os.ReadDir(dir); len(list) != 3 {
		t.Errorf("%v", list)
	}
	if err := replaceFile(filepath.Join(dir, "none", "x"), nil); err == nil {
		t.Error("no error")
	}
}

// TestStateFileLinks: a link stays one, before its file is there, too.
func TestStateFileLinks(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "far"), 0o700), os.Symlink("b", filepath.Join(dir, "a")), os.Symlink(filepath.Join("far", "c"), filepath.Join(dir, "b"))); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		if err := replaceFile(filepath.Join(dir, "a"), []byte(text)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "far", "c"))
		if info, lerr := os.Lstat(filepath.Join(dir, "a")); err != nil || lerr != nil || string(got) != text || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%q, %v, %v", got, err, info)
		}
	}
}

// TestStateFileOfTheFuture is told as what it is.
func TestStateFileOfTheFuture(t *testing.T) {
	text, path, _ := fileRig(t)
	s := State{Taken: time.Now().Add(240 * time.Hour)}
	if err := os.WriteFile(path, s.Encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	if log := start(t, text).log.String(); !strings.Contains(log, "is to come by this machine's clock") {
		t.Error(log)
	}
}

// TestStateFileShared: two weirs that write one file are told of it, once.
func TestStateFileShared(t *testing.T) {
	text, path, _ := fileRig(t)
	r := start(t, text)
	eventually(t, "written first", func() bool { return r.states.written.Load() > 0 })
	const said = "something else has written the state file"
	r.states.write(r.Engine, true)
	if strings.Contains(r.log.String(), said) {
		t.Error("it speaks of itself")
	}
	for range 2 {
		if err := replaceFile(path, State{}.Encode()); err != nil {
			t.Fatal(err)
		}
		r.states.write(r.Engine, true)
	}
	if n := strings.Count(r.log.String(), said); n != 1 {
		t.Errorf("said %d times", n)
	}
}
