// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// soakPool is a pool with its backends: soakBackends that are always there, one
// that a reload brings, one that the API adds.
type soakPool struct {
	name, settings string
	attempts       int
	weights        [soakBackends]int
	hedged         bool
	limited        bool
	tls            bool
	slack          float64 // by which shares may differ in calm, besides chance: tunnels and downloads are load that lasts
	backends       []*soakBackend

	began, again perSecond // requests, and further executions of one
}

func newSoakPools() []*soakPool {
	even := [soakBackends]int{1, 1, 1, 1}
	return []*soakPool{
		{name: "p2c", settings: "balance: p2c", attempts: 3, weights: even, slack: .5},
		{name: "least", settings: "balance: least_request, limits: {requests: 8, queue: 32, queue_timeout: 500ms}", attempts: 2, weights: even, limited: true, slack: .6},
		{name: "rr", settings: "balance: round_robin", attempts: 2, weights: [soakBackends]int{1, 2, 1, 3}, hedged: true, slack: .05},
		{name: "hash", settings: `balance: maglev, hash: {key: "header:X-Key", table_size: 5003, bounded_load: off}`, attempts: 2, weights: even, slack: .15},
		{name: "ewma", settings: "balance: peak_ewma, tls: {ca: %CA%, server_name: backend.test}", attempts: 3, weights: even, tls: true, slack: .8},
	}
}

// well counts the backends that nothing was wrong with in a time.
func (p *soakPool) well(from, to time.Time) (n int) {
	for _, b := range p.backends[:soakBackends] {
		if !b.hard.meet(from, to) && !b.soft.meet(from, to) && !b.away.meet(from, to) {
			n++
		}
	}
	return n
}

// hard reports that a backend failed in a time.
func (p *soakPool) hard(from, to time.Time) bool {
	for _, b := range p.backends {
		if b.hard.meet(from, to) {
			return true
		}
	}
	return false
}

// perSecond counts by seconds, of the last minute.
type perSecond struct {
	mu    sync.Mutex
	n     [64]int64 // guarded by mu
	at    [64]int64 // guarded by mu: the second that n is of
	total int64     // guarded by mu
}

func (c *perSecond) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().Unix()
	i := now % int64(len(c.n))
	if c.at[i] != now {
		c.at[i], c.n[i] = now, 0
	}
	c.n[i] += n
	c.total += n
}

// last returns the sum of the last seconds, the one under way included.
func (c *perSecond) last(seconds int64) (sum int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().Unix()
	for i, at := range c.at {
		if at > now-seconds {
			sum += c.n[i]
		}
	}
	return sum
}

// soakText is what the configuration says at the moment.
type soakText struct {
	mark   int64
	number int // of the access log
	extra  []bool
	brief  bool
	tune   int
}

// config writes the configuration out.
func (s *soak) config() string {
	t := &s.text
	var routes, pools strings.Builder
	tunes := []string{"balance: p2c", "balance: p2c, p2c: {choices: 3}", "balance: random", "balance: p2c, overload: {floor: 20%}"}
	for i, p := range s.pools {
		settings := strings.ReplaceAll(p.settings, "%CA%", s.ca)
		if p.name == "p2c" {
			settings = tunes[t.tune%len(tunes)]
		}
		retry := fmt.Sprintf("attempts: %d, within: %s, body: 16KiB, min_per_second: 1", p.attempts, soakWithin)
		if p.hedged {
			retry += ", hedge: {after: 95%}"
		}
		fmt.Fprintf(&routes, "      - {name: %s, match: {path_prefix: /%s}, pool: %s, request_headers: {set: {X-Mark: \"%d\"}}, timeouts: {request: 6s}}\n", p.name, p.name, p.name, t.mark)
		var list []string
		for n, b := range p.backends[:soakBackends+1] {
			weight, scheme := 1, "http"
			if n < soakBackends {
				weight = p.weights[n]
			} else if !t.extra[i] {
				continue
			}
			if p.tls {
				scheme = "https"
			}
			list = append(list, fmt.Sprintf("{url: \"%s://%s\", id: %s, weight: %d}", scheme, b.addr, b.name, weight))
		}
		body := fmt.Sprintf(`{%s, health: {active: {path: /readyz, interval: 1s, fast_interval: 300ms, timeout: 400ms}, passive: {eject: 2s, max_eject: 8s}}, slow_start: {window: 3s}, retry: {%s}, timeouts: {connect: 1s, response_header: 1500ms, keepalive: 2s}, backends: [%s]}`,
			settings, retry, strings.Join(list, ", "))
		fmt.Fprintf(&pools, "  %s: %s\n", p.name, body)
		if p.name == "p2c" && t.brief {
			fmt.Fprintf(&pools, "  brief: %s\n", body)
			fmt.Fprintf(&routes, "      - {name: brief, match: {path_prefix: /p2c/none}, pool: brief, request_headers: {set: {X-Mark: \"%d\"}}, timeouts: {request: 6s}}\n", t.mark)
		}
	}
	return fmt.Sprintf(`admin: {bind: "unix:%s/admin.sock"}
log: {access: {path: "%s/access-%d.log"}}
shutdown: {delay: none, deadline: 20s}
listeners:
  web:
    bind: %q
    routes:
%s  secure:
    bind: %q
    tls: {certificates: [{cert: %q, key: %q}]}
    routes:
%spools:
%s`, s.dir, s.dir, t.number, s.web, routes.String(), s.secure, s.cert, s.key, routes.String(), pools.String())
}

// play does what a script says, each thing when it is due.
func (s *soak) play(script []soakEvent) {
	begin := time.Now()
	for _, e := range script {
		s.sleep(time.Until(begin.Add(e.at)))
		if s.ctx.Err() != nil {
			return
		}
		if err := s.do(e); err != nil && !s.starved(20*time.Second) {
			s.violate("an operator's action failed", "%s: %v", e, err)
		}
	}
}

// do does one thing.
func (s *soak) do(e soakEvent) error {
	s.happened("%s", e)
	if e.pool < 0 {
		return s.doWeir(e)
	}
	p := s.pools[e.pool]
	b := p.backends[e.backend]
	switch e.what {
	case "heal":
		return b.heal()
	case "drain", "disable":
		b.away.begin()
		return s.patch(b, true, admin.Patch{Admin: map[string]string{"drain": "draining", "disable": "disabled"}[e.what]})
	case "undrain", "undisable":
		b.offSince.Store(0)
		defer b.away.end()
		return s.patch(b, false, admin.Patch{Admin: "enabled"})
	case "weight":
		b.away.begin()
		w := uint32(e.backend+e.n) % 4
		return s.patch(b, w == 0, admin.Patch{Weight: &w})
	case "unweight":
		b.offSince.Store(0)
		defer b.away.end()
		return s.patch(b, false, admin.Patch{ResetWeight: true})
	case "add", "unadd":
		return s.spare(p, p.backends[soakBackends+1], e.what == "add")
	case "extra", "unextra":
		x := p.backends[soakBackends]
		s.text.extra[e.pool] = e.what == "extra"
		if s.text.extra[e.pool] {
			x.offSince.Store(0)
		}
		if err := s.reload(false); err != nil {
			return err
		}
		if !s.text.extra[e.pool] {
			x.offSince.Store(time.Now().UnixNano())
		}
		return nil
	}
	b.fall(ail{e.what, e.p})
	return nil
}

// doWeir does something to weir as a whole.
func (s *soak) doWeir(e soakEvent) error {
	switch e.what {
	case "reload":
		return s.reload(false)
	case "hup":
		return s.reload(true)
	case "brief":
		s.text.brief = !s.text.brief
		return s.reload(false)
	case "retune":
		s.text.tune = e.n
		return s.reload(e.n%2 == 0)
	case "broken":
		return s.reloadBroken(e.n)
	case "rotate":
		return s.rotate()
	case "upgrade":
		return s.upgrade(e.n%2 == 0)
	}
	return fmt.Errorf("nothing is called %q", e.what)
}

// patience calls the API again while an upgrade refuses changes.
func (s *soak) patience(call func(context.Context) error) error {
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := call(s.t.Context())
		if errorStatus(err) != http.StatusConflict || time.Now().After(end) {
			return err
		}
	}
}

// patch says something about a backend; off says that it gets no request then.
func (s *soak) patch(b *soakBackend, off bool, what admin.Patch) error {
	err := s.patience(func(ctx context.Context) error {
		_, err := s.api.Patch(ctx, b.pool.name, b.name, what)
		return err
	})
	if err == nil && off {
		b.offSince.Store(time.Now().UnixNano())
	}
	return err
}

// spare adds a backend through the API, or removes it.
func (s *soak) spare(p *soakPool, b *soakBackend, add bool) error {
	if add {
		b.offSince.Store(0)
		scheme := "http"
		if p.tls {
			scheme = "https"
		}
		return s.patience(func(ctx context.Context) error {
			_, err := s.api.AddBackend(ctx, p.name, admin.NewBackend{URL: scheme + "://" + b.addr, ID: b.name})
			return err
		})
	}
	err := s.patience(func(ctx context.Context) error {
		_, err := s.api.RemoveBackend(ctx, p.name, b.name, admin.Removal{})
		return err
	})
	b.offSince.Store(time.Now().UnixNano())
	return err
}

// reload puts a configuration with the next mark in force, by the API or by
// SIGHUP.
func (s *soak) reload(bySignal bool) error {
	s.text.mark++
	s.live.write(s.config())
	if !bySignal {
		err := s.patience(func(ctx context.Context) error {
			_, err := s.api.Reload(ctx, false)
			return err
		})
		if err == nil {
			s.mark.Store(s.text.mark)
		}
		return err
	}
	before, err := s.api.Status(s.t.Context())
	if err != nil {
		return err
	}
	if err := syscall.Kill(s.live.pid, syscall.SIGHUP); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		now, err := s.api.Status(s.t.Context())
		if err != nil {
			return err
		}
		if now.Generation > before.Generation {
			s.mark.Store(s.text.mark)
			return nil
		}
	}
	return fmt.Errorf("generation %d still serves 10 s after SIGHUP", before.Generation)
}

// reloadBroken has weir read a configuration with a mistake, which must change
// nothing.
func (s *soak) reloadBroken(n int) error {
	good := s.config()
	broken := []string{
		strings.Replace(good, "balance: ", "weigh: ", 1),
		strings.Replace(good, "pool: least", "pool: nobody", 1),
		strings.Replace(good, s.cert, s.cert+".gone", 1),
		strings.Replace(good, s.web, "192.0.2.1:80", 1),
		good[:len(good)/2],
	}[n%5]
	before, err := s.api.Status(s.t.Context())
	if err != nil {
		return err
	}
	s.live.write(broken)
	defer s.live.write(good)
	err = s.patience(func(ctx context.Context) error {
		_, err := s.api.Reload(ctx, false)
		return err
	})
	after, statusErr := s.api.Status(s.t.Context())
	switch {
	case err == nil:
		return fmt.Errorf("a broken configuration (%d) was taken", n%5)
	case statusErr != nil:
		return statusErr
	case after.Generation != before.Generation:
		return fmt.Errorf("generation %d serves after a refusal, not %d", after.Generation, before.Generation)
	}
	return nil
}

// rotate puts the access log away as logrotate does.
func (s *soak) rotate() error {
	name := filepath.Join(s.dir, fmt.Sprintf("access-%d.log", s.text.number))
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil // put away a moment ago, and not begun anew
	} else if err != nil {
		return err
	}
	id, err := inode(f)
	if err := errorsFirst(err, f.Close(), os.Rename(name, rotated(s.dir, s.text.number, id))); err != nil {
		return err
	}
	for _, pid := range s.live.processes() {
		if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil && err != syscall.ESRCH {
			return err
		}
	}
	return nil
}

// upgrade replaces the process. Its successor writes another access log, so that
// lines can be told apart by who wrote them.
func (s *soak) upgrade(bySignal bool) error {
	old := s.live.pid
	s.text.number++
	s.text.mark++
	s.live.write(s.config())
	s.upgraded.Store(time.Now().UnixNano())
	if bySignal {
		if err := syscall.Kill(old, syscall.SIGUSR2); err != nil {
			return err
		}
	} else if _, err := s.api.Upgrade(s.t.Context(), ""); err != nil {
		return err
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		now, err := s.api.Status(s.t.Context())
		if err == nil && now.PID != old {
			s.live.pid = now.PID
			s.live.reap(now.PID)
			s.pid.Store(int64(now.PID))
			s.upgraded.Store(time.Now().UnixNano())
			s.processAt = s.text.number
			s.mark.Store(s.text.mark)
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d still serves, or nobody does: %w", old, err)
		}
	}
}

func inode(f *os.File) (uint64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Ino, nil
}
