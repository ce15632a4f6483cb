// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// soakRequest is one request of the soak, as client, backends and access log
// saw it.
type soakRequest struct {
	id, method string
	pool       *soakPool
	kind       string
	replayable bool  // method and content allow to send it again
	least      int64 // the mark of the configuration that was in force when it began
	began      time.Time
	ended      time.Time // zero: the client still waits

	// What the client saw.
	status  int    // 0: no answer
	by      string // the backend that the answer names
	cut     bool   // the answer ended too early
	aborted bool   // the client left on purpose
	waited  bool   // it waited in vain
	unread  bool   // its connection closed before weir can have read it: it was sent again under another id
	trouble string // what was wrong with the answer itself

	executed []*soakBackend
	lines    []soakLine
	judged   bool
}

// soakLine is a line of the access log.
type soakLine struct {
	Time       time.Time `json:"time"`
	Pool       string    `json:"pool"`
	Backend    string    `json:"backend"`
	Method     string    `json:"method"`
	Path       string    `json:"path"`
	Status     int       `json:"status"`
	Reason     string    `json:"reason"`
	Sent       bool      `json:"sent"`
	Attempts   int       `json:"attempts"`
	Retries    int       `json:"retries"`
	Again      int       `json:"redispatches"`
	DurationMS float64   `json:"duration_ms"`
	QueueMS    float64   `json:"queue_ms"`
	Detail     string    `json:"detail"`
	RequestID  string    `json:"request_id"`
	Tried      []struct {
		Backend string `json:"backend"`
		Reason  string `json:"reason"`
		Status  int    `json:"status"`
	} `json:"tried"`

	text string
}

func (l *soakLine) end() time.Time {
	return l.Time.Add(time.Duration(l.DurationMS * float64(time.Millisecond)))
}

// soakBook holds the requests of the last minute. What is older is forgotten: a
// run of hours needs no more memory than one of minutes.
type soakBook struct {
	soak *soak

	mu       sync.Mutex
	all      map[string]*soakRequest // guarded by mu
	outcomes map[string]int64        // guarded by mu: ends of requests, by pool, status and reason
	requests int64                   // guarded by mu
	answered int64                   // guarded by mu
}

const (
	soakForget = 25 * time.Second // after its end a request is no longer looked at
	soakLag    = 15 * time.Second // by then its line is in the log
)

func newSoakBook(s *soak) *soakBook {
	return &soakBook{soak: s, all: map[string]*soakRequest{}, outcomes: map[string]int64{}}
}

func (b *soakBook) begin(r *soakRequest) {
	r.began = time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all[r.id] = r
	b.requests++
	r.pool.began.add(1)
}

// end notes what the client saw.
func (b *soakBook) end(r *soakRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.ended = time.Now()
	if r.status > 0 {
		b.answered++
	}
	b.judge(r)
}

// execute notes that a backend has got a request.
func (b *soakBook) execute(id, method string, by *soakBackend) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.all[id]
	if r == nil {
		b.soak.violate("a backend got a request that nobody has sent lately", "%s %q at %s", method, id, by.name)
		return
	}
	r.executed = append(r.executed, by)
	switch {
	case r.method != method:
		b.soak.violate("a backend got another method", "%s at %s\n%s", method, by.name, r)
	case r.pool != by.pool:
		b.soak.violate("a request went to another pool", "at %s\n%s", by.name, r)
	case len(r.executed) > 1 && method == "POST":
		b.soak.violate("a POST was executed twice", "%s", r)
	case len(r.executed) > r.pool.attempts+1: // one more for a connection that turned out dead
		b.soak.violate("a request was executed more often than attempts allow", "%s", r)
	}
	if len(r.executed) > 1 {
		r.pool.again.add(1)
	}
	if off := by.offSince.Load(); off != 0 && !b.soak.twoProcesses() && !r.brief() {
		since := time.Unix(0, off)
		if r.began.Sub(since) > 300*time.Millisecond && now.Sub(since) > 300*time.Millisecond {
			b.soak.violate("a backend that was taken out got a request", "%s, out since %s\n%s", by.name, clockTime(since), r)
		}
	}
}

// line notes a line of the access log.
func (b *soakBook) line(l soakLine) {
	_, _, id := soakPath(l.Path)
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.all[id]
	if r == nil {
		b.soak.violate("the access log has a request that nobody has sent lately", "%s", l.text)
		return
	}
	r.lines = append(r.lines, l)
	b.outcomes[fmt.Sprintf("%s %d %s", l.Pool, l.Status, l.Reason)]++
	if len(r.lines) > 1 {
		b.soak.violate("a request has two lines in the access log", "%s", r)
	}
	b.judge(r)
}

// sweep judges what waited for a line in vain, and forgets what is old.
func (b *soakBook) sweep() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, r := range b.all {
		if r.ended.IsZero() {
			if time.Since(r.began) > 90*time.Second {
				b.soak.violate("a client waits for ever", "%s", r)
				r.ended = time.Now()
			}
			continue
		}
		since := time.Since(r.ended)
		if since > soakLag && len(r.lines) == 0 && !r.judged {
			r.judged = true
			b.judgeUnlogged(r)
		}
		if since > soakForget {
			delete(b.all, id)
		}
	}
}

// judge holds a request against what was wrong with the backends, once its
// client has an end and the log a line.
func (b *soakBook) judge(r *soakRequest) {
	if r.judged || r.ended.IsZero() || len(r.lines) == 0 {
		return
	}
	r.judged = true
	if why := b.soak.fault(r, &r.lines[0]); why != "" {
		b.soak.violate(why, "%s", r)
	}
}

func (b *soakBook) judgeUnlogged(r *soakRequest) {
	switch {
	case r.waited && b.soak.stalls.meet(r.began, r.ended):
	case len(r.executed) > 0:
		b.soak.violate("a request was executed and is not in the access log", "%s", r)
	case r.status != 0:
		b.soak.violate("a request was answered and is not in the access log", "%s", r)
	case !r.aborted && !r.unread:
		b.soak.violate("a request got no answer and is not in the access log", "%s", r)
	}
}

// counts returns how requests ended, the most frequent first.
func (b *soakBook) counts() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for k := range b.outcomes {
		all = append(all, k)
	}
	slices.SortFunc(all, func(x, y string) int { return int(b.outcomes[y] - b.outcomes[x]) })
	var out strings.Builder
	for _, k := range all {
		fmt.Fprintf(&out, "  %8d  %s\n", b.outcomes[k], k)
	}
	return out.String()
}

func clockTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format("15:04:05.000")
}

func (r *soakRequest) String() string {
	var names []string
	for _, e := range r.executed {
		names = append(names, e.name)
	}
	text := fmt.Sprintf("  %s /%s/%s/%s replayable=%t: sent %s, ended %s: status=%d by=%s cut=%t aborted=%t unread=%t %s\n  executed by %v\n",
		r.method, r.pool.name, r.kind, r.id, r.replayable, clockTime(r.began), clockTime(r.ended), r.status, r.by, r.cut, r.aborted, r.unread, r.trouble, names)
	for _, l := range r.lines {
		text += "  " + l.text + "\n"
	}
	return text
}

func (b *soakBook) total() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests
}

// soakLogs reads the files of the access log while they are written, renamed and
// begun anew.
type soakLogs struct {
	dir  string
	take func(soakLine)
	open map[uint64]*soakLog // by inode

	mu    sync.Mutex
	lines map[int]int64 // guarded by mu: by the number in the file's name
}

// since returns how many lines were written to files of the number and later.
func (l *soakLogs) since(number int) (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, v := range l.lines {
		if k >= number {
			n += v
		}
	}
	return n
}

type soakLog struct {
	f       *os.File
	r       *bufio.Reader
	number  int
	partial []byte
	last    time.Time // when something was read
}

// read takes in what was written since the last call.
func (l *soakLogs) read() error {
	names, err := filepath.Glob(filepath.Join(l.dir, "access-*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // renamed meanwhile
		} else if err != nil {
			return err
		}
		id, err := inode(f)
		if err != nil {
			return err
		}
		if l.open[id] != nil {
			_ = f.Close()
			continue
		}
		x := &soakLog{f: f, r: bufio.NewReaderSize(f, 64<<10), last: time.Now()}
		if _, err := fmt.Sscanf(filepath.Base(name), "access-%d", &x.number); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.open[id] = x
	}
	newest := 0
	for _, x := range l.open {
		newest = max(newest, x.number)
	}
	for id, x := range l.open {
		if err := l.drain(x); err != nil {
			return err
		}
		if err := l.retire(id, x, newest); err != nil {
			return err
		}
	}
	return nil
}

// rotated is the name that a file gets when it is put away.
func rotated(dir string, number int, id uint64) string {
	return filepath.Join(dir, fmt.Sprintf("access-%d.old.%d", number, id))
}

// retire lets go of a file, and removes it, that nobody writes any more: it was
// put away, or belonged to a process before, and has been silent for long.
func (l *soakLogs) retire(id uint64, x *soakLog, newest int) error {
	if time.Since(x.last) < 2*time.Minute {
		return nil
	}
	name := rotated(l.dir, x.number, id)
	if _, err := os.Stat(name); err != nil {
		if x.number == newest {
			return nil
		}
		name = filepath.Join(l.dir, fmt.Sprintf("access-%d.log", x.number))
	}
	_ = x.f.Close()
	delete(l.open, id)
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (l *soakLogs) drain(x *soakLog) error {
	for {
		text, err := x.r.ReadBytes('\n')
		x.partial = append(x.partial, text...)
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		x.last = time.Now()
		var line soakLine
		if err := json.Unmarshal(x.partial, &line); err != nil {
			return fmt.Errorf("line %q: %w", x.partial, err)
		}
		line.text = string(bytes.TrimSpace(x.partial))
		x.partial = x.partial[:0]
		l.mu.Lock()
		l.lines[x.number]++
		l.mu.Unlock()
		l.take(line)
	}
}
