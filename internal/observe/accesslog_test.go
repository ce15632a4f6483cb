// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func openTestLog(t *testing.T, opt AccessLogOptions) *AccessLog {
	t.Helper()
	if opt.Logger == nil {
		opt.Logger = quiet()
	}
	l, err := NewAccessLog(opt)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

var eventually = weirtest.Eventually

func TestAccessLogWritesAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l := openTestLog(t, AccessLogOptions{Path: path})
	const workers, each = 8, 500
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := new(Record)
			for i := range each {
				r.Reset()
				r.Path = fmt.Appendf(nil, "/%d/%d", w, i)
				l.Write(r)
			}
		})
	}
	wg.Wait()
	if err := l.Close(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, line := range lines(t, path) {
		var v struct{ Path string }
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if seen[v.Path] {
			t.Errorf("%s was written twice", v.Path)
		}
		seen[v.Path] = true
	}
	if len(seen) != workers*each || l.Dropped() != 0 {
		t.Errorf("%d lines, %d dropped; want %d and none", len(seen), l.Dropped(), workers*each)
	}
	l.Write(&Record{}) // after Close: no effect, no panic
}

// TestAccessLogShowsSoon: a single line appears without another one after it.
func TestAccessLogShowsSoon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l := openTestLog(t, AccessLogOptions{Path: path})
	for n := 1; n <= 3; n++ {
		l.Write(&Record{})
		eventually(t, "the line is in the file", func() bool { return len(lines(t, path)) == n })
	}
	if err := l.Close(time.Second); err != nil {
		t.Fatal(err)
	}
}

func TestAccessLogReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l := openTestLog(t, AccessLogOptions{Path: path})
	l.Write(&Record{Path: []byte("/old")})
	eventually(t, "first line", func() bool { return len(lines(t, path)) == 1 })
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Write(&Record{Path: []byte("/new")})
	if err := l.Close(time.Second); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, path); len(got) != 1 || !strings.Contains(got[0], "/new") {
		t.Errorf("new file: %q", got)
	}
	if got := lines(t, path+".1"); len(got) != 1 || !strings.Contains(got[0], "/old") {
		t.Errorf("old file: %q", got)
	}
	if err := l.Reopen(); err != nil {
		t.Errorf("Reopen after Close: %v", err)
	}
}

// TestAccessLogReopenUnderLoad: rotation loses nothing.
func TestAccessLogReopenUnderLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "access.log")
	l := openTestLog(t, AccessLogOptions{Path: path})
	const n = 3000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range n {
			l.Write(&Record{Path: []byte("/x")})
			time.Sleep(time.Microsecond)
		}
	}()
	files := []string{path}
	for i := range 20 {
		moved := fmt.Sprintf("%s.%d", path, i)
		if err := os.Rename(path, moved); err != nil {
			t.Fatal(err)
		}
		files = append(files, moved)
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	if err := l.Close(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, f := range files {
		total += len(lines(t, f))
	}
	if total != n || l.Dropped() != 0 {
		t.Errorf("%d of %d lines, %d dropped", total, n, l.Dropped())
	}
}

func TestAccessLogReopenFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l := openTestLog(t, AccessLogOptions{Path: filepath.Join(dir, "access.log")})
	moved := dir + "2"
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil {
		t.Error("Reopen into a missing directory succeeded")
	}
	l.Write(&Record{})
	if err := l.Close(time.Second); err != nil {
		t.Fatal(err)
	}
	if n := len(lines(t, filepath.Join(moved, "access.log"))); n != 1 {
		t.Errorf("the old file has %d lines, want 1", n)
	}
}

// logOnto runs a log whose file is f.
func logOnto(t *testing.T, f *os.File, opt AccessLogOptions) *AccessLog {
	t.Helper()
	opt.Path = filepath.Join(t.TempDir(), "x")
	l := openTestLog(t, opt)
	l.mu.Lock()
	old := l.file
	l.file = f
	l.mu.Unlock()
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	return l
}

// saidLines are lines of a log.
type saidLines chan string

func (s saidLines) Write(p []byte) (int, error) {
	s <- string(p)
	return len(p), nil
}

// TestAccessLogNeverBlocks: the reader of a pipe has stopped.
func TestAccessLogNeverBlocks(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// The pipe is full from the start, however late the log's writer runs.
	full := 0
	for n := 1; n > 0 || full == 0; full += n { // a deadline may pass before the first byte
		if err := w.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err = w.Write(make([]byte, 4<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	if err := w.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	said := make(saidLines, 8)
	l := logOnto(t, w, AccessLogOptions{Buffer: 64 << 10, Logger: slog.New(slog.NewTextHandler(said, nil))})
	const n = 20000
	start := time.Now()
	for range n {
		l.Write(&whole)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("%d lines into a stuck log took %v", n, took)
	}
	if l.Dropped() == 0 {
		t.Error("nothing was dropped")
	}
	if line := <-said; !strings.Contains(line, "whoever reads it has stopped") || len(said) > 0 {
		t.Errorf("said %q, and %d more", line, len(said))
	}
	if err := l.Close(50 * time.Millisecond); err == nil {
		t.Error("Close of a stuck log reported success")
	}
	// The reader comes back: what was held arrives whole, the writer ends.
	if _, err := io.CopyN(io.Discard, r, int64(full)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	got := bytes.Count(text, []byte{'\n'})
	if uint64(got)+l.Dropped() != n {
		t.Errorf("%d written + %d dropped, want %d together", got, l.Dropped(), n)
	}
}

// TestAccessLogCannotWrite: full disk and closed pipe are counted, said once,
// and neither ends the process.
func TestAccessLogCannotWrite(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*os.File{"full disk": full, "closed pipe": w} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			l := logOnto(t, f, AccessLogOptions{Logger: slog.New(slog.NewTextHandler(&said, nil))})
			for i := range uint64(5) {
				l.Write(&Record{})
				eventually(t, "the loss is counted", func() bool { return l.Dropped() == i+1 })
			}
			if err := l.Close(time.Second); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(said.String(), "access log cannot be written"); n != 1 {
				t.Errorf("said %d times, want once:\n%s", n, said.String())
			}
		})
	}
}

func TestAccessLogOff(t *testing.T) {
	l, err := NewAccessLog(AccessLogOptions{Path: "off"})
	if l != nil || err != nil {
		t.Fatalf("off gives %v, %v", l, err)
	}
	l.Write(&Record{})
	if l.Dropped() != 0 || l.Reopen() != nil || l.Close(0) != nil {
		t.Error("a nil log does something")
	}
	if _, err := NewAccessLog(AccessLogOptions{Path: filepath.Join(t.TempDir(), "none", "log")}); err == nil {
		t.Error("a log in a missing directory was opened")
	}
}

func TestAccessLogStdout(t *testing.T) {
	l := openTestLog(t, AccessLogOptions{Path: "stderr"})
	if fd := l.file.Fd(); fd <= 2 {
		t.Errorf("standard error is written on descriptor %d: a closed pipe would end the process", fd)
	}
	if err := l.Reopen(); err != nil {
		t.Error(err)
	}
	if err := l.Close(time.Second); err != nil {
		t.Error(err)
	}
	if _, err := fmt.Fprint(os.Stderr, ""); err != nil {
		t.Errorf("Close closed the process's standard error: %v", err)
	}
}

func TestAccessLogSample(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l := openTestLog(t, AccessLogOptions{Path: path, Sample: 0.25})
	for range 4000 {
		l.Write(&Record{})
	}
	if err := l.Close(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	if n := len(lines(t, path)); n < 800 || n > 1200 { // 1000 +- 7 sigma
		t.Errorf("%d of 4000 logged at 25 %%", n)
	}
}

func TestAccessLogAllocatesNothing(t *testing.T) {
	l := openTestLog(t, AccessLogOptions{Path: os.DevNull, Buffer: logShards * 1024})
	r := new(Record)
	*r = whole
	for range 1000 {
		l.Write(r)
	}
	if n := testing.AllocsPerRun(1000, func() { l.Write(r) }); n >= 1 && !raceEnabled {
		t.Errorf("%v allocations per line", n)
	}
	if err := l.Close(time.Second); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkAccessLog(b *testing.B) {
	l, err := NewAccessLog(AccessLogOptions{Path: os.DevNull})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := new(Record)
		*r = whole
		for pb.Next() {
			l.Write(r)
		}
	})
	b.ReportMetric(float64(l.Dropped())/float64(b.N), "dropped/op")
	if err := l.Close(10 * time.Second); err != nil {
		b.Fatal(err)
	}
}

// TestAccessLogTornLine: after a write that ended within a line, the next line
// starts on its own, and only lines that did not get out whole are counted.
func TestAccessLogTornLine(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	const n = 4096
	read := make(chan []byte)
	go func() {
		part := make([]byte, 100<<10)
		got, _ := io.ReadFull(r, part)
		r.Close() // the rest of the batch is still to come
		read <- part[:got]
	}()
	l := &AccessLog{log: quiet(), file: w}
	batch := bytes.Repeat([]byte(strings.Repeat("x", 99)+"\n"), n)
	l.put(batch, n)
	w.Close()
	if got := bytes.Count(<-read, []byte{'\n'}); l.Dropped() == 0 || l.Dropped() > uint64(n-got) {
		t.Errorf("%d lines were read, %d counted as lost of %d", got, l.Dropped(), n)
	}
	path := filepath.Join(t.TempDir(), "log")
	if l.file, err = openLog(path); err != nil {
		t.Fatal(err)
	}
	l.torn = true // whether it was depends on how much the pipe took
	l.put([]byte("next\n"), 1)
	l.put([]byte("last\n"), 1)
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "\nnext\nlast\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestNamedPipe: a pipe that nobody reads must not hold up the start.
func TestNamedPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	opened := make(chan *AccessLog, 1)
	go func() {
		l, err := NewAccessLog(AccessLogOptions{Path: path})
		if err != nil {
			t.Error(err)
		}
		opened <- l
	}()
	select {
	case l := <-opened:
		l.Write(&Record{Method: []byte("GET"), Path: []byte("/")})
		if err := l.Close(time.Second); err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("opening waits for a reader")
	}
}
