// SPDX-License-Identifier: Apache-2.0

package weirtest

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Within ends the test unless f returns within Patience. f runs on a goroutine
// of its own, so it may report errors but not end the test.
func Within(tb testing.TB, what string, f func()) {
	tb.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(Patience):
		tb.Fatalf("%s: still waiting after %v", what, Patience)
	}
}

// Eventually polls until ok holds, and ends the test when Patience is over.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("%s: not within %v", what, Patience)
		}
	}
}

// Log is a buffer that a logger may write to while a test reads. The zero value
// is empty.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

// Write appends p.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns all that was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
