// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// logPatience is how long whoever writes a line of the log waits for its reader.
	logPatience = 250 * time.Millisecond
	// logHeld is how many bytes wait for a reader that has stopped.
	logHeld = 1 << 20
)

// LogWriter passes the lines of weir's own log on to a writer that may hang, as a pipe
// does whose reader has stopped: checks, reloads and signals to stop must not wait for
// it. As long as lines are taken, Write returns when its line is written, so that what
// others write there comes in order. Once a line was not taken within 250 ms nobody waits
// any more: lines are held, 1 MiB of them, and further ones are lost and counted, until
// all that is held has been taken. While nothing waits there is no goroutine. Make it with
// NewLogWriter; it is safe for concurrent use.
type LogWriter struct {
	// Constant.
	to       io.Writer
	patience time.Duration

	mu     sync.Mutex    // guards what follows
	lines  [][]byte      // not written yet, oldest first
	held   int           // bytes of them, and of the one that is being written
	lost   int           // lines since the last that were told of
	behind bool          // somebody has waited in vain
	idle   chan struct{} // closed when all is written; nil: all is
}

// NewLogWriter returns a LogWriter to w.
func NewLogWriter(w io.Writer) *LogWriter { return &LogWriter{to: w, patience: logPatience} }

// Write takes a line. It returns no error: there is nobody to tell.
func (l *LogWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	if l.held > 0 && l.held+len(p) > logHeld {
		l.lost++
		l.mu.Unlock()
		return len(p), nil
	}
	l.lines = append(l.lines, bytes.Clone(p))
	l.held += len(p)
	if l.idle == nil {
		l.idle = make(chan struct{})
		go l.pass(l.idle)
	}
	wait, idle := !l.behind, l.idle
	l.mu.Unlock()
	if wait {
		l.await(idle)
	}
	return len(p), nil
}

// await waits until all is written, and no longer than it is worth.
func (l *LogWriter) await(idle chan struct{}) {
	t := time.NewTimer(l.patience)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
		l.mu.Lock()
		l.behind = l.idle == idle
		l.mu.Unlock()
	}
}

// pass writes what there is, and ends.
func (l *LogWriter) pass(idle chan struct{}) {
	for {
		line, ok := l.next()
		if !ok {
			close(idle)
			return
		}
		_, _ = l.to.Write(line) // nobody to tell
		l.mu.Lock()
		l.held -= len(line)
		l.mu.Unlock()
	}
}

// next takes the oldest line; behind the last one it says how many were lost.
func (l *LogWriter) next() (line []byte, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.lines) > 0:
		line, l.lines[0] = l.lines[0], nil
		l.lines = l.lines[1:]
	case l.lost > 0:
		line = fmt.Appendf(nil, "time=%s level=ERROR msg=\"whoever reads the log had stopped: lines are lost\" lines_lost=%d\n",
			time.Now().Format("2006-01-02T15:04:05.000Z07:00"), l.lost)
		l.held, l.lost = l.held+len(line), 0
	default:
		l.lines, l.behind, l.idle = nil, false, nil
		return nil, false
	}
	return line, true
}
