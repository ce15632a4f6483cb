// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// AccessLogOptions configures NewAccessLog.
type AccessLogOptions struct {
	Path   string        // stdout, stderr or a file's path
	Format string        // json, common, combined or a template of package logline; empty: json
	Sample float64       // share of the requests that are logged; 0 and 1: all
	Always []string      // of those that sampling would leave out, which are logged nevertheless: words of Kept
	Slow   time.Duration // so are those that took this long; 0: none
	Query  bool          // log the query too: it may hold secrets
	Fields []string      // fields of the request that the JSON form shows; those that hold credentials are refused
	Buffer int           // bytes held for the writer; 0: 4 MiB
	Logger *slog.Logger  // told when lines are lost; nil: slog.Default()
}

const (
	logBuffer    = 4 << 20
	logShards    = 8
	logFlush     = 20 * time.Millisecond // a busy log is written this often, an idle one at once
	logComplain  = time.Minute
	logFilePerm  = 0o640
	logKeep      = 16 << 10 // larger encoding buffers are not kept
	logEagerPart = 4        // a shard filled to 1/logEagerPart is written early
)

// AccessLog writes one line per request. Write never waits for
// the file: lines go into bounded memory that one goroutine writes out, and
// when that is full they are dropped and counted. Lines of requests that end
// within about 20 ms of each other may be out of order; each has its time.
//
// A nil *AccessLog is valid and logs nothing.
type AccessLog struct {
	// Constant.
	path   string
	form   form
	pick   sampling
	log    *slog.Logger
	max    int // bytes per shard
	encode sync.Pool
	wake   chan struct{} // capacity 1: there are lines
	eager  chan struct{} // capacity 1: a shard is filling up
	quit   chan struct{}
	done   chan struct{}

	// Atomic.
	dropped atomic.Uint64
	behind  atomic.Int64 // when it was said last that the writer is behind: Unix ns; 0: never
	closed  atomic.Bool
	stop    sync.Once
	shards  [logShards]logShard

	// Owned by the writer goroutine.
	torn     bool // the file ends within a line
	spare    []byte
	lastTold time.Time
	untold   uint64

	mu   sync.Mutex // guards file
	file *os.File
}

// logShard is one part of the lines that wait to be written.
type logShard struct {
	mu    sync.Mutex // guards what follows; held only to copy a line
	buf   []byte
	lines uint64
	_     [64]byte
}

// NewAccessLog opens the log and starts its writer; Close ends it. The path
// "off" gives a nil log.
func NewAccessLog(opt AccessLogOptions) (*AccessLog, error) {
	if opt.Path == "off" || opt.Path == "none" {
		return nil, nil
	}
	form, err := newForm(&opt)
	if err != nil {
		return nil, err
	}
	pick, err := newSampling(&opt)
	if err != nil {
		return nil, err
	}
	f, err := openLog(opt.Path)
	if err != nil {
		return nil, err
	}
	l := &AccessLog{
		path: opt.Path, form: form, pick: pick, log: opt.Logger, file: f,
		wake: make(chan struct{}, 1), eager: make(chan struct{}, 1),
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	if l.log == nil {
		l.log = slog.Default()
	}
	if opt.Buffer <= 0 {
		opt.Buffer = logBuffer
	}
	l.max = opt.Buffer / logShards
	l.encode.New = func() any { b := make([]byte, 0, 1024); return &b }
	go l.run()
	return l, nil
}

// openLog opens the file. Standard output and error are duplicated: a write to
// a closed pipe on descriptor 1 or 2 would end the process.
func openLog(path string) (*os.File, error) {
	switch path {
	case "stdout":
		return duplicate(os.Stdout)
	case "stderr":
		return duplicate(os.Stderr)
	case "":
		return nil, errors.New("access log: path is empty")
	}
	mode := os.O_WRONLY
	if info, err := os.Stat(path); err == nil && info.Mode().Type() == os.ModeNamedPipe {
		mode = os.O_RDWR // opening a pipe to write only waits for a reader
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|mode, logFilePerm)
	if err != nil {
		return nil, fmt.Errorf("access log: %w", err)
	}
	return f, nil
}

// CheckAccessLog says why a path cannot be logged to; nil if it can. It leaves no
// file behind.
func CheckAccessLog(path string) error {
	switch path {
	case "stdout", "stderr", "off", "none":
		return nil
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		dir := filepath.Dir(path)
		if err := CheckFolder(dir); err != nil {
			return fmt.Errorf("access log: %s cannot be made: %s: %w", path, dir, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("access log: %w", err)
	case info.Mode().Type() == os.ModeNamedPipe:
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, logFilePerm)
	if err != nil {
		return fmt.Errorf("access log: %w", err)
	}
	return f.Close()
}

// Write logs a finished request. It never blocks and keeps nothing of r.
func (l *AccessLog) Write(r *Record) {
	if l == nil || l.closed.Load() {
		return
	}
	rate := l.pick.rate(r)
	if rate == 0 {
		return
	}
	p := l.encode.Get().(*[]byte)
	line := l.form.append((*p)[:0], r, rate)

	// As in Series.Observe, the record's address spreads cores over shards.
	s := &l.shards[uint64(uintptr(unsafe.Pointer(r))>>6)*0x9e3779b97f4a7c15>>(64-3)]
	s.mu.Lock()
	was := len(s.buf)
	full := was+len(line) > l.max
	if !full {
		s.buf = append(s.buf, line...)
		s.lines++
	}
	s.mu.Unlock()

	if cap(line) <= logKeep {
		*p = line
		l.encode.Put(p)
	}
	switch {
	case full:
		l.full(l.dropped.Add(1))
	case was == 0:
		signal(l.wake)
	case was < l.max/logEagerPart && was+len(line) >= l.max/logEagerPart:
		signal(l.eager)
	}
}

// full says once a minute that lines find no room: the writer, which may wait for
// the reader of a pipe, cannot say so. Nor does the caller wait for the log.
func (l *AccessLog) full(dropped uint64) {
	now, was := time.Now().UnixNano(), l.behind.Load()
	if was != 0 && now-was < int64(logComplain) || !l.behind.CompareAndSwap(was, now) {
		return
	}
	go l.log.Error("access log is written too slowly, or whoever reads it has stopped: lines are lost", "path", l.path, "lines_lost_so_far", dropped)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Dropped returns how many lines were lost so far.
func (l *AccessLog) Dropped() uint64 {
	if l == nil {
		return 0
	}
	return l.dropped.Load()
}

// Reopen opens the path again, after it was moved away by log rotation. When
// that fails the old file stays in use. Standard output and error are left
// alone.
func (l *AccessLog) Reopen() error {
	if l == nil || l.path == "stdout" || l.path == "stderr" {
		return nil
	}
	f, err := openLog(l.path)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if l.file == nil { // closed meanwhile
		l.mu.Unlock()
		return f.Close()
	}
	old := l.file
	l.file = f
	l.mu.Unlock()
	// os.File lets a Write in progress finish before the descriptor is closed.
	return old.Close()
}

// Close writes what is held and closes the file, waiting no longer than
// timeout: a reader that stopped reading must not keep the process. What was
// not written by then is lost and reported.
func (l *AccessLog) Close(timeout time.Duration) error {
	if l == nil {
		return nil
	}
	l.stop.Do(func() {
		l.closed.Store(true)
		close(l.quit)
	})
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-l.done:
		return nil
	case <-t.C:
		return fmt.Errorf("access log: not written within %v: %s", timeout, l.path)
	}
}

// run is the writer.
func (l *AccessLog) run() {
	defer close(l.done)
	pace := time.NewTimer(0)
	defer pace.Stop()
	for {
		select {
		case <-l.wake:
			l.flush()
		case <-l.quit:
			l.flush()
			l.mu.Lock()
			f := l.file
			l.file = nil
			l.mu.Unlock()
			if err := f.Close(); err != nil {
				l.complain(err, 0)
			}
			return
		}
		// Let lines gather, so that a busy log costs few system calls.
		pace.Reset(logFlush)
		select {
		case <-pace.C:
		case <-l.eager:
		case <-l.quit:
		}
	}
}

// flush writes out every shard once.
func (l *AccessLog) flush() {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		buf, lines := s.buf, s.lines
		s.buf, s.lines = l.spare[:0], 0
		s.mu.Unlock()
		if len(buf) > 0 {
			l.put(buf, lines)
		}
		l.spare = buf
	}
}

// put writes one batch. What could not be written is dropped: holding it would
// only drop newer lines instead.
func (l *AccessLog) put(buf []byte, lines uint64) {
	l.mu.Lock()
	f := l.file
	l.mu.Unlock()
	if l.torn {
		if _, err := f.Write([]byte{'\n'}); err != nil {
			l.lost(err, lines)
			return
		}
		l.torn = false
	}
	n, err := f.Write(buf)
	if errors.Is(err, os.ErrClosed) { // Reopen came between
		l.mu.Lock()
		f = l.file
		l.mu.Unlock()
		var more int
		more, err = f.Write(buf[n:])
		n += more
	}
	if err != nil {
		l.torn = n > 0 && buf[n-1] != '\n'
		l.lost(err, uint64(countLines(buf[n:])))
	}
}

func (l *AccessLog) lost(err error, lines uint64) {
	l.dropped.Add(lines)
	l.complain(err, lines)
}

// complain says so in the log, once a minute.
func (l *AccessLog) complain(err error, lines uint64) {
	l.untold += lines
	if now := time.Now(); l.lastTold.IsZero() || now.Sub(l.lastTold) >= logComplain {
		l.log.Error("access log cannot be written", "path", l.path, "error", err, "lines_lost", l.untold)
		l.lastTold, l.untold = now, 0
	}
}

func countLines(b []byte) int {
	n := 0
	for _, c := range b {
		if c == '\n' {
			n++
		}
	}
	return n
}
