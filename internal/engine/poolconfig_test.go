// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/pool"
)

// planOf parses the keys of one pool.
func planOf(t *testing.T, keys string) *config.Pool {
	t.Helper()
	text := "listeners: {web: {bind: \"127.0.0.1:1\", pool: app}}\npools:\n  app:\n    " + strings.ReplaceAll(strings.TrimSpace(keys), "\n", "\n    ") + "\n"
	plan, err := config.Parse("t", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return plan.Pool("app")
}

// TestPoolConfig holds every setting of the core to the key it comes from.
func TestPoolConfig(t *testing.T) {
	c, specs, err := PoolConfig(planOf(t, `
balance: rendezvous
backends:
  - {url: "http://a:1", weight: 3, zone: eu, priority: 2}
  - {url: "http://b:1", backup: true}
health:
  passive: {consecutive: 7, success_rate: {factor: 3, min_requests: 50, min_backends: 3}, latency: {factor: 4, above: 50ms, min_requests: 10}}
  panic: {threshold: 30%, then: failover, floor: 2}
overload: {signals: [429, queue_full], floor: 20%}
slow_start: {window: 60s, from: 5%, pool_ramp: 20s}
limits: {requests: 5, pool_requests: 9, queue: 3, queue_timeout: 1s}
subset: {size: 1, index: 2, count: 10}
zone: {local: eu, min_size: 2}
overprovisioning: 1.2
drain: {deadline: 7s, spread: 3s}
`), 42)
	if err != nil {
		t.Fatal(err)
	}
	want := pool.Config{
		Name: "app", Instance: 42, Policy: c.Policy, Active: c.Active, Retry: c.Retry,
		Passive: health.Passive{
			Enabled: true, Consecutive: 7, ConsecutiveConnect: 2, Eject: 30 * time.Second, MaxEject: 5 * time.Minute, MaxEjected: 0.5,
			SuccessRate: health.SuccessRate{Factor: 3, MinRequests: 50, MinBackends: 3},
			Latency:     health.Latency{Factor: 4, Above: 50 * time.Millisecond, MinRequests: 10},
		},
		Overload:         health.Overload{Enabled: true, TooMany429: true, QueueFull: true, Floor: 0.2},
		SlowStart:        pool.SlowStart{Window: time.Minute, From: 0.05, PoolRamp: 20 * time.Second},
		Panic:            pool.Panic{Threshold: 0.3, Then: pool.ThenFailover, Floor: 2},
		Limits:           pool.Limits{BackendRequests: 5, PoolRequests: 9, Queue: 3, QueueTimeout: time.Second},
		DrainDeadline:    7 * time.Second,
		DrainSpread:      3 * time.Second,
		Zone:             pool.Zone{Local: "eu", MinSize: 2},
		Overprovisioning: 1.2,
		Subset:           pool.Subset{Size: 1, Index: 2, Count: 10},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if want := []pool.Spec{
		{ID: "a:1", URL: "http://a:1", Weight: 3, Zone: "eu", Priority: 2}, {ID: "b:1", URL: "http://b:1", Weight: 1, Backup: true},
	}; !reflect.DeepEqual(specs, want) {
		t.Errorf("backends %+v, want %+v", specs, want)
	}
}

// TestPoolConfigOff: what is switched off in the text is off in the core, and
// the defaults are on.
func TestPoolConfigOff(t *testing.T) {
	c, _, err := PoolConfig(planOf(t, "backends: [http://a:1]"), 1)
	if err != nil || !c.Overload.Enabled || !c.Overload.ORCA || !c.Overload.RetryAfter503 || c.Overload.TooMany429 ||
		c.SlowStart.Window != 30*time.Second || c.Passive.Latency.Off || c.Zone.Local != "" || c.Subset.Size != 0 || c.Overprovisioning != 1.4 {
		t.Errorf("defaults: %v %+v", err, c)
	}
	c, _, err = PoolConfig(planOf(t, `
backends: [http://a:1]
overload: off
slow_start: off
health: {passive: {success_rate: off, latency: off}}
`), 1)
	if err != nil || c.Overload.Enabled || c.SlowStart != (pool.SlowStart{From: 0.1}) || !c.Passive.Latency.Off || !c.Passive.SuccessRate.Off {
		t.Errorf("off: %v %+v", err, c)
	}
	c, _, err = PoolConfig(planOf(t, "backends: [http://a:1, http://b:1]\nsubset: {size: 1}"), 1)
	if err != nil || c.Subset != (pool.Subset{Size: 1}) {
		t.Errorf("subset: %v %+v", err, c.Subset)
	}
}

// TestPolicies: whatever policy and fallback the text may name, the core knows,
// and places equal keys alike only where that is promised.
func TestPolicies(t *testing.T) {
	plain := []string{"p2c", "round_robin", "random", "least_request", "peak_ewma"}
	keyed := []string{"ring_hash", "rendezvous", "maglev"}
	for _, name := range append(append([]string(nil), plain...), keyed...) {
		for _, fallback := range plain {
			p := planOf(t, "backends: [http://a:1]\nbalance: "+name+"\nhash: {fallback: "+fallback+", spill: 2, bounded_load: off, virtual_nodes: 7, table_size: 101}")
			c, _, err := PoolConfig(p, 1)
			if err != nil || c.Policy.Name() != name {
				t.Errorf("%s, fallback %s: %v", name, fallback, err)
				continue
			}
			k, ok := c.Policy.(balance.Keyed)
			if isKeyed := ok && k.Keyed(); isKeyed != p.Keyed() || isKeyed != (keyFunc(p) != nil) {
				t.Errorf("%s: keyed %v in the core, %v in the plan", name, isKeyed, p.Keyed())
			}
		}
	}
	for _, name := range balance.Names() {
		planOf(t, "backends: [http://a:1]\nbalance: "+name)
	}
}

// TestSameSettings: what the core need not know of does not cost a pool its
// health on reload.
func TestSameSettings(t *testing.T) {
	const base = "balance: maglev\nbackends: [http://a:1]\n"
	old := *planOf(t, base+"hash: {key: path}")
	for keys, same := range map[string]bool{
		base + "hash: {key: path}":                                               true,
		base + "hash: {key: [client_ip, query:q]}":                               true,
		base + "hash: {key: path, table_size: 101}":                              false,
		base + "hash: {key: path}\noverload: off":                                false,
		"balance: maglev\nhash: {key: path}\nbackends: [http://b:1, http://a:1]": true,
	} {
		if got := sameSettings(old, *planOf(t, keys)); got != same {
			t.Errorf("%q: %v", keys, got)
		}
	}
	if len(old.Hash.Key) != 1 {
		t.Error("comparing changed the configuration")
	}
}
