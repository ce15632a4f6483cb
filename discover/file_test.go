// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parseWords reads a file of words as list does; "!" breaks it.
func parseWords(_ string, text []byte) ([]Endpoint, error) {
	if strings.Contains(string(text), "!") {
		return nil, errors.New("broken")
	}
	return list(string(text)), nil
}

// TestFile writes, replaces, breaks, removes and empties a file, also behind a
// symbolic link, and looks at what is found.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "list")
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	found := watch(t, &File{Path: path, Parse: parseWords, Interval: 10 * time.Millisecond})
	expect := func(step, want, fault string) {
		t.Helper()
		var last string
		for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
			f := <-found
			last = fmt.Sprintf("%s, %v", words(f.Endpoints), f.Err)
			if words(f.Endpoints) == want && (f.Err == nil) == (fault == "") && (fault == "" || strings.Contains(f.Err.Error(), fault)) {
				return
			}
		}
		t.Fatalf("%s: %s; want %q %q", step, last, want, fault)
	}
	expect("not there", "", "no such file")
	put("list", "a b")
	expect("written", "a b", "")
	put("list", "a c") // the same size, within one tick of the file's clock perhaps
	expect("written in place", "a c", "")
	put("new", "d e f")
	must(os.Rename(filepath.Join(dir, "new"), path))
	expect("renamed over", "d e f", "")
	put("list", "!")
	expect("broken", "", "broken")
	put("list", "")
	expect("empty", "", ErrEmpty.Error())
	put("list", "a")
	expect("mended", "a", "")
	must(os.Remove(path))
	expect("gone", "", "no such file")
	must(os.Mkdir(path, 0o700))
	expect("a directory", "", "not a regular file")
	must(os.Remove(path))
	// As Kubernetes does: list -> data/list, data -> v1, switched to v2 at once.
	for _, v := range []string{"v1", "v2"} {
		must(os.Mkdir(filepath.Join(dir, v), 0o700))
		put(v+"/list", v)
	}
	must(os.Symlink("v1", filepath.Join(dir, "data")))
	must(os.Symlink("data/list", path))
	expect("a link", "v1", "")
	must(os.Symlink("v2", filepath.Join(dir, "data2")))
	must(os.Rename(filepath.Join(dir, "data2"), filepath.Join(dir, "data")))
	expect("a link that was switched", "v2", "")
}

// TestFileWithinOneTick: a file that was just written may change once more without
// its entry telling.
func TestFileWithinOneTick(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	at := time.Now()
	put := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	s := &File{Path: path, Parse: parseWords}
	put("a")
	f, info := s.read()
	if words(f.Endpoints) != "a" || info != nil {
		t.Fatalf("%+v, and the entry is believed", f)
	}
	at = at.Add(-2 * settled)
	put("b")
	if f, info = s.read(); words(f.Endpoints) != "b" || info == nil {
		t.Fatalf("%+v, and the entry is not believed", f)
	}
}

// TestFileIsReadOnce: a file that is as it was is not parsed again.
func TestFileIsReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(path, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	parsed := 0 // by the source's goroutine; read when it waits
	found := watch(t, &File{Path: path, Interval: time.Millisecond, Parse: func(p string, text []byte) ([]Endpoint, error) {
		parsed++
		return parseWords(p, text)
	}})
	for range 20 {
		if f := <-found; words(f.Endpoints) != "a" || f.Err != nil {
			t.Fatalf("%+v", f)
		}
	}
	if parsed != 1 {
		t.Errorf("parsed %d times", parsed)
	}
}

func TestFileRefuses(t *testing.T) {
	for _, s := range []*File{{}, {Path: "x"}, {Parse: parseWords}} {
		if err := s.Run(t.Context(), func(Finding) { t.Error("reported") }); err == nil {
			t.Errorf("%+v runs", s)
		}
	}
}

func TestStatic(t *testing.T) {
	if f := <-watch(t, Static(list("a b"))); words(f.Endpoints) != "a b" || f.Err != nil {
		t.Errorf("%+v", f)
	}
	if f := <-watch(t, Static(nil)); !errors.Is(f.Err, ErrEmpty) {
		t.Errorf("%+v", f)
	}
}

// TestFileIsAPipe: a pipe in the place of a file costs an error and holds nobody up.
func TestFileIsAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	found := watch(t, &File{Path: path, Parse: parseWords})
	select {
	case f := <-found:
		if f.Err == nil || !strings.Contains(f.Err.Error(), "not a regular file") {
			t.Errorf("%+v", f)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing is reported")
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil { // lets it go on
			time.Sleep(100 * time.Millisecond)
			_ = f.Close()
		}
	}
}
