// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/probe"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// PoolConfig translates a plan's pool into the core's words: what a pool is
// built from, and its backends. instance is this balancer's own number, see
// balance.NewSet. The result is for one pool.New: policies keep state.
func PoolConfig(p *config.Pool, instance uint64) (pool.Config, []pool.Spec, error) {
	policy, err := policyOf(p)
	if err != nil {
		return pool.Config{}, nil, fmt.Errorf("pool %s: %w", p.Name, err)
	}
	return pool.Config{
		Name: p.Name, Instance: instance, Policy: policy,
		Active:    active(&p.Active),
		Passive:   passive(&p.Passive),
		Overload:  overload(&p.Overload),
		SlowStart: pool.SlowStart{Window: p.SlowStart.Window, From: p.SlowStart.From, PoolRamp: p.SlowStart.PoolRamp},
		Panic:     panicRules(&p.Panic),
		Limits: pool.Limits{
			BackendRequests: p.Limits.Requests, PoolRequests: p.Limits.PoolRequests,
			Queue: p.Limits.Queue, QueueTimeout: p.Limits.QueueTimeout, Adaptive: adaptive(p.Limits.Adaptive),
		},
		Retry: pool.Budget{
			Share: p.Budget.Share, Window: p.Budget.Window, MinPerSecond: p.Budget.MinPerSecond,
			Base: p.Budget.Base, Max: p.Budget.Max,
		},
		DrainDeadline:    p.DrainDeadline,
		DrainSpread:      p.DrainSpread,
		KeepSessions:     p.Sticky != nil && p.Sticky.OnDrain == "keep",
		Zone:             zone(p.Zone),
		Overprovisioning: p.Overprovisioning,
		Subset:           subset(p.Subset),
	}, specs(p), nil
}

// policyOf builds the pool's policy, with the one for requests without a key
// below it.
func policyOf(p *config.Pool) (balance.Policy, error) {
	opt := balance.Options{Choices: p.Choices, EWMA: balance.EWMAConfig{Decay: p.EWMA.Decay, Penalty: p.EWMA.Penalty}}
	if !p.Keyed() {
		return balance.New(p.Balance, opt)
	}
	fallback, err := balance.New(p.Hash.Fallback, opt)
	if err != nil {
		return nil, fmt.Errorf("hash.fallback: %w", err)
	}
	opt.Hash = balance.HashConfig{
		BoundedLoad: p.Hash.BoundedLoad, Spill: p.Hash.Spill,
		TableSize: p.Hash.TableSize, VirtualNodes: p.Hash.VirtualNodes, Fallback: fallback,
	}
	return balance.New(p.Balance, opt)
}

func overload(o *config.Overload) health.Overload {
	has := func(signal string) bool { return slices.Contains(o.Signals, signal) }
	return health.Overload{
		Enabled: !o.Off, Floor: o.Floor,
		RetryAfter503: has("503_retry_after"), TooMany429: has("429"), ORCA: has("orca"),
		GRPCExhausted: has("grpc_resource_exhausted"), QueueFull: has("queue_full"),
	}
}

// heedsExhausted reports whether gRPC's RESOURCE_EXHAUSTED is a sign of overload.
func heedsExhausted(o *config.Overload) bool {
	return !o.Off && slices.Contains(o.Signals, "grpc_resource_exhausted")
}

// wantsLoad reports whether load reports of answers and probes are read.
func wantsLoad(o *config.Overload) bool { return !o.Off && slices.Contains(o.Signals, "orca") }

func zone(z *config.Zone) pool.Zone {
	if z == nil {
		return pool.Zone{}
	}
	return pool.Zone{Local: z.Local, MinSize: z.MinSize}
}

func subset(s *config.Subset) pool.Subset {
	if s == nil {
		return pool.Subset{}
	}
	return pool.Subset{Size: s.Size, Index: max(s.Index, 0), Count: s.Count}
}

func active(a *config.Active) health.Active {
	return health.Active{
		Enabled: !a.Off, Interval: a.Interval, FastInterval: a.FastInterval, Timeout: a.Timeout,
		Jitter: a.Jitter, Fall: a.Fall, Rise: a.Rise, InitialUp: a.InitialUp, HTTP: a.Protocol == "http" || a.Protocol == "grpc",
	}
}

func passive(p *config.Passive) health.Passive {
	return health.Passive{
		Enabled: !p.Off, Consecutive: p.Consecutive, ConsecutiveConnect: p.ConsecutiveConnect,
		Eject: p.Eject, MaxEject: p.MaxEject, MaxEjected: p.MaxEjected,
		SuccessRate: health.SuccessRate{
			Off: p.SuccessRate.Off, Factor: p.SuccessRate.Factor,
			MinRequests: p.SuccessRate.MinRequests, MinBackends: p.SuccessRate.MinBackends,
		},
		Latency: health.Latency{
			Off: p.Latency.Off, Factor: p.Latency.Factor, Above: p.Latency.Above, MinRequests: p.Latency.MinRequests,
		},
	}
}

func panicRules(p *config.Panic) pool.Panic {
	out := pool.Panic{Off: p.Off, Threshold: p.Threshold, Floor: p.Floor}
	switch p.Then {
	case "shed":
		out.Then = pool.ThenShed
	case "failover":
		out.Then = pool.ThenFailover
	default:
		out.Then = pool.ThenServe
	}
	return out
}

func retryRules(r *config.Retry) pool.RetryRules {
	rules := pool.NewRetryRules(r.Attempts, r.OnReset, r.OnStatus, r.Within)
	for _, status := range r.OnGRPC {
		rules.OnGRPC.Add(uint8(status))
	}
	rules.Hedge = pool.Hedge{After: r.Hedge.After.Time, Percent: r.Hedge.After.Percent}
	return rules
}

// specs lists a pool's backends for the core.
func specs(p *config.Pool) []pool.Spec {
	out := make([]pool.Spec, 0, len(p.Backends))
	for i := range p.Backends {
		b := &p.Backends[i]
		out = append(out, pool.Spec{ID: b.ID, URL: b.URL, Weight: b.Weight, Zone: b.Zone, Priority: b.Priority, Backup: b.Backup})
	}
	return out
}

// Detection is what `weir check` says about how fast a pool notices.
type Detection struct {
	// Within is the worst case from a backend falling silent to its leaving the
	// rotation; 0 when nothing probes.
	Within time.Duration
	// Together is how many backends may hang at once for Within to hold, because
	// at most 256 probes run at a time (S17); 0 when the pool is smaller.
	Together int
}

// DetectionOf computes it for one pool of a plan.
func DetectionOf(p *config.Pool) Detection {
	if p.Active.Off {
		return Detection{}
	}
	a := active(&p.Active)
	d := Detection{Within: a.Detection()}
	if a.Timeout > 0 {
		if n := int(probe.MaxAtOnce * float64(a.Interval) / float64(a.Timeout)); len(p.Backends) > n {
			d.Together = n
		}
	}
	return d
}

// upstreamTLS builds what all https backends of a pool share. The server name
// is set per backend.
func upstreamTLS(p *config.Pool, log *slog.Logger) (*tls.Config, error) {
	c, err := upstream.TLSOptions{
		CAFile: p.TLS.CA, ServerName: p.TLS.ServerName, CertFile: p.TLS.Cert, KeyFile: p.TLS.Key,
		InsecureSkipVerify: p.TLS.InsecureSkipVerify, MinVersion: p.TLS.MinVersion, ALPN: []string{"http/1.1"}, Logger: log,
	}.Config()
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", p.Name, err)
	}
	return c, nil
}

// backendTLS is the pool's TLS with the name of one backend.
func backendTLS(shared *tls.Config, address string) *tls.Config {
	c := shared.Clone()
	c.ClientSessionCache = tls.NewLRUClientSessionCache(8) // tickets must not wander between backends
	if c.ServerName == "" {
		c.ServerName = hostOnly(address)
	}
	return c
}

// hostOnly cuts a port off, where there is one.
func hostOnly(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
