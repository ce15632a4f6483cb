// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// unpack writes the files of an archive into a new folder, which becomes the
// working directory, and returns what the archive's comment says of a word.
func unpack(t *testing.T, a *txtar.Archive) (said func(word string) string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, f := range a.Files {
		if f.Name == "want" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.Name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.Name, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(word string) string {
		for line := range strings.Lines(string(a.Comment)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), word+": "); ok {
				return v
			}
		}
		return ""
	}
}

// TestFiles loads configurations of several files: testdata/files/*.txtar hold
// them, with what comes of them in "want". -rewrite puts in what comes now.
func TestFiles(t *testing.T) {
	archives, err := filepath.Glob("testdata/files/*.txtar")
	if err != nil || len(archives) < 10 {
		t.Fatal(err, "no cases")
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			back, err := filepath.Abs(name)
			if err != nil {
				t.Fatal(err)
			}
			a, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			said := unpack(t, a)
			got := loaded(t, said("load"))
			i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" })
			if i < 0 {
				a.Files = append(a.Files, txtar.File{Name: "want"})
				i = len(a.Files) - 1
			}
			if *rewrite {
				a.Files[i].Data = []byte(got)
				if err := os.WriteFile(back, txtar.Format(a), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := string(a.Files[i].Data); got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// loaded shows what comes of loading a path.
func loaded(t *testing.T, path string) string {
	t.Helper()
	plan, outline, err := LoadOutlined(path)
	var faults *Errors
	if err != nil {
		if errors.As(err, &faults) {
			for _, f := range faults.Faults {
				if f.Fix == "" || f.Pos.File == "" {
					t.Errorf("half a message: %+v", f)
				}
			}
		}
		return err.Error() + "\n"
	}
	roundTrip(t, plan)
	var b strings.Builder
	b.Write(plan.YAML(true))
	for _, w := range plan.Warnings {
		b.WriteString(w.String() + "\n")
		if at := outline.PathOf(w.Pos); at == nil {
			t.Errorf("nothing at %s", w.Pos)
		} else if p := outline.At(at...); p.Line != w.Line {
			t.Errorf("%s: %q is shown for %q", w.Pos, p.Line, w.Line)
		}
	}
	fmt.Fprintf(&b, "files: %s\n", strings.Join(plan.Files, " "))
	fmt.Fprintf(&b, "globs: %s\n", strings.Join(plan.Globs, " "))
	return b.String()
}

// What several files say is what one file would say.
func TestFilesAreOne(t *testing.T) {
	t.Chdir(t.TempDir())
	const web = "listeners: {web: {bind: \":8080\", pool: app}}\n"
	const app = "pools: {app: {backends: [\"http://10.0.0.1:80\"]}}\n"
	const log = "log: {level: debug}\n"
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one.yaml", web+app+log)
	write("several.yaml", "include: [parts/*.yaml]\n")
	write("parts/a.yaml", app)
	write("parts/b.yaml", web)
	write("parts/c.yaml", log)
	one, err := Load("one.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"several.yaml", "parts", "parts/"} {
		plan, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if changes := Diff(one, plan); len(changes) > 0 {
			t.Errorf("%s: %v", path, changes)
		}
	}
	if len(one.Files) != 1 || one.Files[0] != "one.yaml" || len(one.Globs) != 0 {
		t.Errorf("files %v, globs %v", one.Files, one.Globs)
	}
}

// What would keep a reload waiting is not read.
func TestIncludeOfPipe(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := syscall.Mkfifo("pipe.yaml", 0o600); err != nil {
		t.Skip(err)
	}
	if err := os.WriteFile("weir.yaml", []byte("include: [pipe.yaml, /dev/zero, \"*.yaml\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load("weir.yaml")
	if err == nil || strings.Count(err.Error(), "(a device, a pipe or a socket)") != 3 {
		t.Errorf("%v", err)
	}
}

// Nor what lies in a folder, or is named alone, so that whoever waits for the
// reload can be told.
func TestFolderOfPipe(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), pipe+": a device, a pipe or a socket") {
		t.Errorf("%v", err)
	}
	if _, err := Load(pipe); err == nil || !strings.Contains(err.Error(), "the configuration is empty") {
		t.Errorf("%v", err)
	}
}

// FuzzLoad reads two files, of which the first may include the second: no panic,
// and every fault has a place in one of them.
func FuzzLoad(f *testing.F) {
	f.Add("include: [conf.d/*.yaml]\n", "listeners: {web: {bind: \":80\", pool: app}}\npools: {app: {backends: [\"http://a\"]}}\n")
	f.Add("include: [conf.d/a.yaml, conf.d, \"**\", \"[\", ../x]\npools: {a: {}}\n", "pools: {a: {}}\ninclude: ../weir.yaml\n")
	f.Add("include: &a [*a, {b: c}]\nlog: off\n", "log: {}\n<<: {pools: x}\n")
	f.Add("include: conf.d/*\nlisteners: []\n", "listeners: {a: b}\npools:\n")
	f.Fuzz(func(t *testing.T, first, second string) {
		if len(first)+len(second) > 32<<10 || strings.Contains(first+second, "/proc") || strings.Contains(first+second, "${") {
			return
		}
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "conf.d"), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"weir.yaml": first, "conf.d/a.yaml": second} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		plan, err := Load(filepath.Join(dir, "weir.yaml"))
		var e *Errors
		switch {
		case err == nil:
			roundTrip(t, plan)
		case !errors.As(err, &e):
			t.Errorf("%v", err)
		default:
			for _, fault := range e.Faults {
				if fault.Pos.Line < 1 || fault.Pos.Col < 1 || !filepath.IsAbs(fault.Pos.File) || fault.What == "" || fault.Fix == "" {
					t.Errorf("half a message: %+v", fault)
				}
			}
		}
	})
}

// Files that hold a file's bounds together are refused together.
func TestFilesAreBounded(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("d", 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range maxFiles + 1 {
		if err := os.WriteFile(fmt.Sprintf("d/%04d.yaml", i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load("d"); err == nil || !strings.Contains(err.Error(), "more than 1000 files") {
		t.Errorf("%v", err)
	}
}
