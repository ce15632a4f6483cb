// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
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
	n     uint64
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
		at := &r.lines[r.n%uint64(r.most)]
		*at = append((*at)[:0], line...)
	}
	r.n++
}

// last returns copies, oldest first.
func (r *failureRing) last() [][]byte {
	var out [][]byte
	for i := range r.lines {
		at := i
		if len(r.lines) == r.most {
			at = int((r.n + uint64(i)) % uint64(r.most))
		}
		out = append(out, slices.Clone(r.lines[at]))
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

// timeEnd is where the time of a line ends.
const timeEnd = len(`{"time":"2006-01-02T15:04:05.000000`)
