// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/weirtest"
)

// TestSoak runs clients of every kind against backends that fail in every way
// while operators change everything, all by chance from a seed, and holds weir to
// what must be true whatever happens: each request is answered once, by the right
// answer, a POST is executed at most once, what fails has failed on a backend that
// was ailing and was tried elsewhere first, shares are right in calm, retries stay
// within their budget, log, metrics and clients count the same, and at rest
// nothing is left. SOAK is how long it runs, SEED where its chance comes from.
func TestSoak(t *testing.T) {
	length, seed := soakShort, uint64(soakSeed)
	if text := os.Getenv("SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil || length <= 0 {
			t.Fatalf("SOAK is %q: use a duration such as 1h", text)
		}
	} else {
		t.Parallel()
	}
	if text := os.Getenv("SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SEED is %q: use a number", text)
		}
	}
	s := newSoak(t)
	s.run(seed, length)
}

const (
	soakShort    = 5 * time.Second
	soakSeed     = 902             // of the short run: its script has an upgrade, a broken reload, a drain and nearly every fault
	soakCycle    = 5 * time.Minute // between two rests; each has a seed of its own
	soakBackends = 4               // of a pool, besides those that come and go
	soakPatience = 30 * time.Second
	soakKept     = 16 << 10 // content up to which is kept for a retry
	soakWithin   = 3 * time.Second
	soakStall    = 200 * time.Millisecond // without a processor that are noticed
)

// soak is one run.
type soak struct {
	t       *testing.T
	started time.Time
	short   bool // there is no time to see predecessors off
	live    *live
	api     *admin.Client
	dir     string
	trust   *tls.Config
	pools   []*soakPool
	names   map[string]*soakBackend
	book    *soakBook
	logs    *soakLogs

	web, secure string
	ca          string // files
	cert, key   string

	// Of the goroutine that plays the script.
	text      soakText
	processAt int // the number of the first log of the process that serves

	mark     atomic.Int64 // of the configuration that is in force
	upgraded atomic.Int64 // when the last upgrade began, in ns
	pid      atomic.Int64 // of the process that serves
	stalls   spans        // times in which this process or weir got no processor
	stalled  atomic.Int64 // their sum, in ns

	ctx  context.Context // ends when there is no use in going on
	quit context.CancelFunc
	wg   sync.WaitGroup

	rest struct {
		sync.Mutex
		wake   *sync.Cond
		paused bool // guarded by Mutex
		stop   bool // guarded by Mutex
		active int  // guarded by Mutex: clients that do not rest
	}
	said struct {
		sync.Mutex
		seed   uint64         // of the cycle
		began  time.Time      // of the cycle
		recent []string       // guarded by Mutex: what happened last
		kinds  map[string]int // guarded by Mutex: violations
		all    int            // guarded by Mutex
	}
}

func newSoak(t *testing.T) *soak {
	s := &soak{t: t, started: time.Now(), names: map[string]*soakBackend{}, web: freeAddr(t), secure: freeAddr(t)}
	s.rest.wake = sync.NewCond(&s.rest)
	s.said.kinds = map[string]int{}
	s.ctx, s.quit = context.WithCancel(t.Context())
	s.book = newSoakBook(s)
	authority := weirtest.NewAuthority(t)
	dir := t.TempDir()
	s.ca = authority.WritePool(dir)
	s.cert, s.key = authority.Write(dir, "weir", authority.Issue("weir.test"))
	s.trust = &tls.Config{RootCAs: authority.Pool(), ServerName: "weir.test"}
	backends := &tls.Config{Certificates: []tls.Certificate{authority.Issue("backend.test")}, NextProtos: []string{"http/1.1"}}
	for _, p := range newSoakPools() {
		for i := range soakBackends + 2 {
			b := &soakBackend{pool: p, n: i, name: fmt.Sprintf("%s-%d", p.name, i), addr: weirtest.FreeAddr(), book: s.book, changed: make(chan struct{}), conns: map[net.Conn]bool{}}
			if p.tls {
				b.tls = backends
			}
			if i >= soakBackends {
				b.offSince.Store(time.Now().UnixNano())
			}
			p.backends = append(p.backends, b)
			s.names[b.name] = b
			if err := b.start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.set(ail{}); b.stop(true) })
		}
		s.pools = append(s.pools, p)
	}
	s.text.extra = make([]bool, len(s.pools))
	s.live = startLive(t, binary, func(dir string) string { s.dir = dir; return s.config() })
	s.pid.Store(int64(s.live.pid))
	t.Cleanup(s.keepLog)
	var err error
	if s.api, err = admin.NewClient(admin.ClientOptions{Address: s.live.admin}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.api.Close)
	s.logs = &soakLogs{dir: s.dir, take: s.book.line, open: map[uint64]*soakLog{}, lines: map[int]int64{}}
	return s
}

// run plays cycle after cycle, each followed by a rest.
func (s *soak) run(seed uint64, length time.Duration) {
	s.begin(seed)
	defer s.end()
	warm, pace := 8*time.Second, soakPace{storm: 25 * time.Second, calm: 50 * time.Second, operator: 1500 * time.Millisecond, upgrade: 25 * time.Second, changes: true}
	if length < time.Minute {
		warm, pace = time.Second, soakPace{storm: 8 * time.Second, calm: 2 * time.Second, operator: 400 * time.Millisecond, upgrade: 15 * time.Second}
		s.short = true
	}
	s.sleep(warm)
	first := s.pause(holding{})
	for cycle := uint64(0); length > 0 && s.ctx.Err() == nil; cycle++ {
		this := min(length, soakCycle)
		if left := length - this; left < time.Minute {
			this = length
		}
		length -= this
		s.resume(seed + cycle)
		s.play(soakScript(seed+cycle, this, len(s.pools), pace))
		at := s.pause(first)
		s.t.Logf("seed %d, %s: %d requests, %d executed, %d upgrades, generation %d; at rest %+v, at first %+v; stalled for %s in all",
			seed+cycle, this, s.book.total(), s.executed(), s.text.number, s.live.ask().Generation, at, first, time.Duration(s.stalled.Load()).Round(time.Millisecond))
	}
	s.t.Logf("how requests ended:\n%s", s.book.counts())
}

// begin starts clients and those who watch.
func (s *soak) begin(seed uint64) {
	s.resume(seed)
	for i, kind := range soakClients {
		for n := range kind.n {
			c := &soakClient{s: s, name: fmt.Sprintf("%s%d", kind.kind, n), dice: rand.New(rand.NewPCG(seed, uint64(i*100+n))), secure: n%3 == 2}
			s.rest.active++
			s.wg.Go(func() { c.run(kind.think, kind.do) })
		}
	}
	s.every(20*time.Millisecond, s.feel())
	s.every(100*time.Millisecond, s.feelWeir())
	s.every(200*time.Millisecond, func() {
		if err := s.logs.read(); err != nil {
			s.violate("the access log cannot be read", "%v", err)
		}
	})
	s.every(time.Second, func() { s.book.sweep(); s.budgets() })
	s.every(500*time.Millisecond, newSoakWatch(s).look)
}

// every calls f again and again until the end; two are never under way.
func (s *soak) every(d time.Duration, f func()) {
	s.wg.Go(func() {
		for s.ctx.Err() == nil {
			f()
			s.sleep(d)
		}
	})
}

// feel notices that this process gets no processor: what happens then may be
// the test's own doing.
func (s *soak) feel() func() {
	last := time.Now()
	return func() {
		s.stall(last, time.Since(last))
		last = time.Now()
	}
}

// feelWeir notices the same of weir: by the kernel's account of how long its
// threads were ready to run and did not.
func (s *soak) feelWeir() func() {
	last, before := time.Now(), map[string]int64{}
	return func() {
		now, longest := map[string]int64{}, int64(0)
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.pid.Load()))
		for _, f := range files {
			text, _ := os.ReadFile(f)
			var ran, waited int64
			if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
				continue // the thread is gone
			}
			now[f] = waited
			longest = max(longest, waited-before[f])
		}
		if len(before) > 0 {
			s.stall(last, time.Duration(longest))
		}
		last, before = time.Now(), now
	}
}

func (s *soak) stall(from time.Time, lag time.Duration) {
	if lag > soakStall {
		s.stalls.add(from.Add(-soakStall), time.Now().Add(300*time.Millisecond))
		s.stalled.Add(int64(lag))
	}
}

// starved reports that a process did not get its processor within a time.
func (s *soak) starved(d time.Duration) bool {
	return s.stalls.meet(time.Now().Add(-d), time.Now())
}

func (s *soak) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

func (s *soak) end() {
	s.rest.Lock()
	s.rest.stop, s.rest.paused = true, false
	s.rest.wake.Broadcast()
	s.rest.Unlock()
	s.quit()
	s.wg.Wait()
}

// gate lets a client go on, holds it while the soak rests, and says whether
// there is more to do.
func (s *soak) gate(hang func()) bool {
	s.rest.Lock()
	defer s.rest.Unlock()
	if s.rest.paused {
		hang()
		s.rest.active--
		for s.rest.paused {
			s.rest.wake.Wait()
		}
		s.rest.active++
	}
	return !s.rest.stop
}

// resting reports that what lasts is to come to its end.
func (s *soak) resting() bool {
	s.rest.Lock()
	defer s.rest.Unlock()
	return s.rest.paused || s.rest.stop
}

func (s *soak) resume(seed uint64) {
	s.said.Lock()
	s.said.seed, s.said.began = seed, time.Now()
	s.said.Unlock()
	s.rest.Lock()
	s.rest.paused = false
	s.rest.wake.Broadcast()
	s.rest.Unlock()
}

// happened notes what was done, to be told with a violation.
func (s *soak) happened(format string, args ...any) {
	s.said.Lock()
	defer s.said.Unlock()
	if len(s.said.recent) >= 60 {
		s.said.recent = append(s.said.recent[:0], s.said.recent[30:]...)
	}
	s.said.recent = append(s.said.recent, clockTime(time.Now())+" "+fmt.Sprintf(format, args...))
}

// violate tells of something that must not be, with the seed and what happened
// before. Of each kind the first few are told.
func (s *soak) violate(what, format string, args ...any) {
	s.said.Lock()
	defer s.said.Unlock()
	s.said.all++
	if s.said.kinds[what]++; s.said.kinds[what] <= 3 {
		s.t.Errorf("SEED=%d, %s after its start, %s: %s\n%s\n  what happened before:\n    %s", s.said.seed, time.Since(s.said.began).Round(time.Millisecond), clockTime(time.Now()),
			what, fmt.Sprintf(format, args...), strings.Join(s.said.recent, "\n    "))
	}
	if s.said.all == 200 {
		s.quit()
	}
}

// keepLog keeps what weir said of a run that failed: SOAK_LOG names the file.
func (s *soak) keepLog() {
	if name := os.Getenv("SOAK_LOG"); name != "" && s.t.Failed() {
		if err := os.WriteFile(name, []byte(s.live.said()), 0o644); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *soak) named(name string) *soakBackend { return s.names[name] }

func (s *soak) executed() (n int64) {
	for _, b := range s.names {
		n += b.executed.Load()
	}
	return n
}

// twoProcesses reports that a predecessor may still take requests, of clients
// that were connected to it: it knows nothing of what operators say now. It closes
// their connections within five seconds.
func (s *soak) twoProcesses() bool { return s.sinceUpgrade() < 8*time.Second }

// mayClose reports that idle connections of clients may have been closed for an
// upgrade.
func (s *soak) mayClose() bool { return s.sinceUpgrade() < 25*time.Second }

func (s *soak) sinceUpgrade() time.Duration { return time.Since(time.Unix(0, s.upgraded.Load())) }

// use measures the process, and waits until that does not go down any more.
func (s *soak) use(limit time.Duration, good func(holding) bool) (u holding) {
	for end := time.Now().Add(limit); ; time.Sleep(250 * time.Millisecond) {
		if u = s.live.use(); good(u) || time.Now().After(end) {
			return u
		}
	}
}

func errorStatus(err error) int {
	if p, ok := errors.AsType[*admin.Problem](err); ok {
		return p.Status
	}
	return 0
}
