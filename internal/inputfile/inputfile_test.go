// SPDX-License-Identifier: Apache-2.0

package inputfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func pipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReadWaitsForNobody: what never ends, or never begins, is an error or empty.
func TestReadWaitsForNobody(t *testing.T) {
	if text, err := Read(pipe(t), 100); err != nil || len(text) != 0 {
		t.Errorf("a pipe without a writer: %q, %v", text, err)
	}
	if _, err := Read("/dev/zero", 100); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "/dev/zero") {
		t.Errorf("a device: %v", err)
	}
	idle := pipe(t)
	w, err := os.OpenFile(idle, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := head(idle, 100, time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a writer that says nothing: %v", err)
	}
	if _, err := KeyPair(pipe(t), "/dev/zero"); err == nil {
		t.Error("a key pair of nothing")
	}
}

// TestRead: a pipe that is written into is a file like others.
func TestRead(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("text"); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	if text, err := Read("/dev/fd/"+strconv.Itoa(int(r.Fd())), 4); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	path := filepath.Join(t.TempDir(), "file")
	if _, err := Read(path, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for most, fits := range map[int64]bool{3: false, 4: true, 5: true} {
		if _, err := Read(path, most); (err == nil) != fits {
			t.Errorf("of at most %d: %v", most, err)
		}
	}
	if head, err := Head(path, 2); err != nil || string(head) != "te" {
		t.Errorf("%q, %v", head, err)
	}
	if _, err := Read(t.TempDir(), 4); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("a folder: %v", err)
	}
}
