// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// textWriter remembers what it is given.
type textWriter struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *textWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *textWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// TestLogWriterInOrder: a line is there when Write returns.
func TestLogWriterInOrder(t *testing.T) {
	var to textWriter
	l := NewLogWriter(&to)
	want := ""
	for i := range 100 {
		line := fmt.Sprintf("line %d\n", i)
		if n, err := l.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
		if want += line; to.String() != want {
			t.Fatalf("after %q: %q", line, to.String())
		}
	}
}

// TestLogWriterUnread: while nobody reads one line waits for a moment, the others not at
// all, what does not fit is counted, and when the reader is back everything is as before.
func TestLogWriterUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		to := &gated{open: stuck}
		l := NewLogWriter(to)
		begin := time.Now()
		for i := range 3 {
			_, _ = fmt.Fprintf(l, "line %d\n", i)
		}
		if waited := time.Since(begin); waited != logPatience {
			t.Errorf("three lines waited for %v, want %v for the first alone", waited, logPatience)
		}
		large := strings.Repeat("x", logHeld/4) + "\n"
		for range 10 {
			_, _ = l.Write([]byte(large))
		}
		if waited := time.Since(begin); waited != logPatience {
			t.Errorf("further lines waited, too: %v", waited)
		}
		close(stuck)
		synctest.Wait()
		text := to.String()
		if !strings.HasPrefix(text, "line 0\nline 1\nline 2\n") || strings.Count(text, large) != 3 || !strings.HasSuffix(text, "lines_lost=7\n") {
			t.Errorf("written: %d bytes, %d large ones, ending in %q", len(text), strings.Count(text, large), text[max(len(text)-200, 0):])
		}
		_, _ = l.Write([]byte("again\n"))
		if !strings.HasSuffix(to.String(), "lines_lost=7\nagain\n") || time.Since(begin) != logPatience {
			t.Error("the reader is back, and a line is not there when it was written")
		}
	})
}

// gated hangs until it is opened.
type gated struct {
	open chan struct{}
	textWriter
}

func (w *gated) Write(p []byte) (int, error) {
	<-w.open
	return w.textWriter.Write(p)
}
