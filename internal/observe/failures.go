// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirlb/weir/internal/message"
)

// How much Failures remembers of each pool. Clients that leave and requests that
// are refused for the client's own fault have a ring of their own, as a thousand
// of them would push out the one failure that matters.
const (
	failuresKept = 64
	faultsKept   = 32
	maxPools     = 256 // further names share one memory
)

// Failures remembers the last requests of each pool that failed, as lines of the
// access log. It is safe for concurrent use. What fails costs a line and a lock
// that is never waited for: where two fail at the same moment one may be left out,
// which is counted. The zero value is ready.
type Failures struct {
	pools sync.Map // name -> *poolFailures
	names sync.Mutex
	count int // guarded by names
}

type poolFailures struct {
	missed atomic.Uint64

	mu     sync.Mutex // guards what follows
	failed failureRing
	faults failureRing
	line   []byte
}

// failureRing keeps the last lines. Their memory is used again.
type failureRing struct {
	lines [][]byte
	most  int
	at    int    // the oldest line, once there are most of them
	n     uint64 // lines so far, those of processes before included
}

// PoolFailures is what is remembered of one pool.
type PoolFailures struct {
	Pool   string   // empty: requests that got no route
	Lines  [][]byte // JSON objects as in the access log, oldest first, queries left out
	Failed uint64   // requests that failed by weir or a backend since the start
	Faults uint64   // requests that failed by their client since the start
	Missed uint64   // requests that failed while another was being noted; in neither
}

// Note remembers a record. It does not keep it. A tunnel that was closed in order
// for a drain is none that failed.
func (f *Failures) Note(r *Record) {
	if r.Reason == message.DrainClosed {
		return
	}
	p := f.pool(r.Pool)
	if !p.mu.TryLock() {
		p.missed.Add(1)
		return
	}
	defer p.mu.Unlock()
	ring := &p.failed
	if byClient(r) {
		ring = &p.faults
	}
	p.line = appendRecord(p.line[:0], r, false)
	ring.add(bytes.TrimSuffix(p.line, []byte("\n")))
	if cap(p.line) > logKeep {
		p.line = nil
	}
}

// byClient reports whether a request failed by its client. The reason tells, not
// the status that was sent: an answer that is cut in its middle had begun with 200.
func byClient(r *Record) bool {
	switch r.Reason {
	case message.OK:
		return r.code() < 500
	case message.WriteTimeout: // it did not take the answer
		return true
	default:
		s := r.Reason.Status()
		return s >= 400 && s < 500
	}
}

func (f *Failures) pool(name string) *poolFailures {
	if p, ok := f.pools.Load(name); ok {
		return p.(*poolFailures)
	}
	f.names.Lock()
	defer f.names.Unlock()
	if f.count >= maxPools {
		name = ""
	}
	p, there := f.pools.LoadOrStore(name, &poolFailures{failed: failureRing{most: failuresKept}, faults: failureRing{most: faultsKept}})
	if !there {
		f.count++
	}
	return p.(*poolFailures)
}

// maxFailure bounds what one line may keep.
const maxFailure = 8 << 10

func (r *failureRing) add(line []byte) {
	if len(line) > maxFailure {
		return // a path of escapes; the access log has it
	}
	if len(r.lines) < r.most {
		r.lines = append(r.lines, slices.Clone(line))
	} else {
		at := &r.lines[r.at]
		*at = append((*at)[:0], line...)
		r.at = (r.at + 1) % r.most
	}
	r.n++
}

// last returns copies, oldest first.
func (r *failureRing) last() [][]byte {
	var out [][]byte
	for i := range r.lines {
		out = append(out, slices.Clone(r.lines[(r.at+i)%len(r.lines)]))
	}
	return out
}

// Last returns what is remembered, by pool; of one pool with a name, of all with
// none.
func (f *Failures) Last(pool string) []PoolFailures {
	var out []PoolFailures
	f.pools.Range(func(k, v any) bool {
		name, p := k.(string), v.(*poolFailures)
		if pool != "" && pool != name {
			return true
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		out = append(out, PoolFailures{
			Pool: name, Lines: append(p.faults.last(), p.failed.last()...), Failed: p.failed.n, Faults: p.faults.n, Missed: p.missed.Load(),
		})
		return true
	})
	for i := range out { // lines begin with their time
		slices.SortStableFunc(out[i].Lines, func(a, b []byte) int { return bytes.Compare(a[:min(len(a), timeEnd)], b[:min(len(b), timeEnd)]) })
	}
	slices.SortFunc(out, func(a, b PoolFailures) int { return strings.Compare(a.Pool, b.Pool) })
	return out
}

// KeptFailures are those of one pool, for another process.
type KeptFailures struct {
	Pool        string            `json:"pool"`
	Failed      uint64            `json:"failed"` // as PoolFailures has them
	Faults      uint64            `json:"faults"`
	Missed      uint64            `json:"missed,omitempty"`
	FailedLines []json.RawMessage `json:"failed_lines,omitempty"` // oldest first
	FaultLines  []json.RawMessage `json:"fault_lines,omitempty"`
}

// Export returns what is remembered, sorted by pool, for Import. Lines of no more
// than most bytes in all are in it: of each pool the oldest are left out, those of
// clients' own faults first.
func (f *Failures) Export(most int) []KeptFailures {
	var out []KeptFailures
	f.pools.Range(func(k, v any) bool {
		p := v.(*poolFailures)
		p.mu.Lock()
		defer p.mu.Unlock()
		out = append(out, KeptFailures{
			Pool: k.(string), Failed: p.failed.n, Faults: p.faults.n, Missed: p.missed.Load(),
			FailedLines: raw(p.failed.last()), FaultLines: raw(p.faults.last()),
		})
		return true
	})
	slices.SortFunc(out, func(a, b KeptFailures) int { return strings.Compare(a.Pool, b.Pool) })
	for i := range out {
		share := most / (len(out) - i) // what one pool leaves is for those behind it
		used := 0
		out[i].FailedLines = youngest(out[i].FailedLines, share, &used)
		out[i].FaultLines = youngest(out[i].FaultLines, share, &used)
		most -= used
	}
	return out
}

func raw(lines [][]byte) []json.RawMessage {
	var out []json.RawMessage
	for _, l := range lines {
		if json.Valid(l) { // one that is not would cost the upgrade its state
			out = append(out, l)
		}
	}
	return out
}

// youngest leaves out the oldest lines until all that is used fits.
func youngest(lines []json.RawMessage, most int, used *int) []json.RawMessage {
	for i := len(lines) - 1; i >= 0; i-- {
		if *used+len(lines[i]) > most {
			return lines[i+1:]
		}
		*used += len(lines[i])
	}
	return lines
}

// Import takes in what another process has remembered, before anything is noted.
func (f *Failures) Import(before []KeptFailures) {
	for i := range before {
		b := &before[i]
		p := f.pool(b.Pool)
		p.mu.Lock()
		p.missed.Add(b.Missed)
		p.failed.take(b.FailedLines, b.Failed)
		p.faults.take(b.FaultLines, b.Faults)
		p.mu.Unlock()
	}
}

// take adds the last lines of n.
func (r *failureRing) take(lines []json.RawMessage, n uint64) {
	for _, l := range lines {
		r.add(l)
	}
	r.n += n - min(n, uint64(len(lines)))
}

// timeEnd is where the time of a line ends.
const timeEnd = len(`{"time":"2006-01-02T15:04:05.000000`)
