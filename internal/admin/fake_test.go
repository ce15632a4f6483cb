// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

// fake is a Controller with one pool.
type fake struct {
	mu      sync.Mutex
	pool    Pool
	patches []Patch
	unready []string
	asked   []string // pools of the last NotReady
}

func newFake() *fake {
	weight := uint32(3)
	return &fake{pool: Pool{
		PoolSummary: PoolSummary{
			Name: "app", Balance: "p2c", Ready: true, Backends: 2, Serving: 1, InFlight: 4, QueueLength: 1,
			Saturation: 0.25, RetryBudgetRemaining: 7.5, Connections: 6, Requests: 1000, Failures: 3, DetectionMS: 11500,
		},
		Tiers: []Tier{
			{Name: "priority 0", Backends: 2, Serving: 1, Health: 0.5, Load: 0.7, Zoned: "on", Zones: []Zone{
				{Name: "eu-1a", Local: true, Backends: 1, Serving: 1, Capacity: 1, Load: 1}, {Backends: 1},
			}},
			{Name: "backup", Panic: true, Load: 0.3},
		},
		Members: []Backend{
			{
				ID: "10.0.1.21:8080", URL: "http://10.0.1.21:8080", Zone: "eu-1a", Weight: 1, Admin: "enabled", Health: "healthy",
				Share: 0.55, Reason: "slow_start", SlowStartLeftS: 15, Tier: "priority 0", Since: epoch, InFlight: 4, Requests: 900, Latency: Latency{P50: 1.5, P99: 20, EWMA: 2.25},
				LastCheck: &Check{At: epoch, OK: true},
			},
			{
				ID: "a/b:c%", URL: "http://10.0.1.22:8080", Weight: 3, Admin: "draining", Health: "not_ready", Reason: "not_ready",
				Since: epoch, Flips: 2, Requests: 100, Failures: 3,
				LastCheck: &Check{At: epoch, Error: "status: 503, expected 200-299"},
				History: []Change{
					{At: epoch.Add(-time.Minute), From: "unproven", To: "healthy", Why: "probe passed"},
					{At: epoch, From: "healthy", To: "not_ready", Reason: "not_ready", Why: "3 of 3 probes failed: status: 503, expected 200-299"},
				},
				Override: &Override{Admin: "draining", Weight: &weight, ConfiguredWeight: 1, Since: epoch, AgeS: 12.5},
				Drain:    &Drain{InFlight: 0, DeadlineS: 3, Done: true},
			},
		},
	}}
}

func (f *fake) Status() Status {
	return Status{
		Version: "1.2.3", PID: 42, Started: epoch, UptimeS: 61, State: "serving", Generation: 2, Config: "weir.yaml", Ready: true,
		Listeners: []Listener{{Name: "web", Bind: []string{"[::]:8080"}, Protocol: "http", Connections: 5, Routes: []Route{{Name: "all", Match: "everything", Pool: "app", InFlight: 4}}}},
		Pools:     []PoolSummary{f.pool.PoolSummary},
	}
}

func (f *fake) Pools() []Pool { return []Pool{f.pool, {PoolSummary: PoolSummary{Name: "empty"}}} }

func (f *fake) Pool(name string) (Pool, error) {
	if name != f.pool.Name {
		return Pool{}, fmt.Errorf("%w: %s", ErrUnknownPool, name)
	}
	return f.pool, nil
}

func (f *fake) Patch(pool, id string, p Patch) (Backend, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if pool != f.pool.Name {
		return Backend{}, fmt.Errorf("%w: %s", ErrUnknownPool, pool)
	}
	for _, b := range f.pool.Members {
		if b.ID == id {
			if p.Admin == "disabled" && p.Weight != nil {
				return Backend{}, fmt.Errorf("%w: not both", ErrBadPatch)
			}
			f.patches = append(f.patches, p)
			if p.Admin != "" {
				b.Admin = p.Admin
			}
			return b, nil
		}
	}
	return Backend{}, fmt.Errorf("%w in pool %s: %s", ErrUnknownBackend, pool, id)
}

func (f *fake) NotReady(pools []string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = pools
	return f.unready
}

const testToken = "correct-horse-battery-staple"

func tokenFile(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serve starts a Server of the options and closes it with the test.
func serve(t *testing.T, opt Options) *Server {
	t.Helper()
	if opt.Controller == nil {
		opt.Controller = newFake()
	}
	if opt.Bind == "" {
		opt.Bind = "127.0.0.1:0"
	}
	opt.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "weir_up 1\n") })
	s, err := Listen(opt)
	if err != nil {
		t.Fatal(err)
	}
	started(t, s)
	return s
}

func started(t *testing.T, s *Server) {
	t.Helper()
	s.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// httpClient keeps no connection behind.
func httpClient(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	return &http.Client{Transport: tr, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}
