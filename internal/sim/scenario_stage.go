// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/pool"
)

// policies are all policies, in the order of the rows.
var policies = []string{"p2c", "round_robin", "random", "least_request", "peak_ewma", "ring_hash", "rendezvous", "maglev"}

// DefaultPool is a pool as a configuration that says nothing but its backends
// makes it, with the policy, except that its checks are HTTP checks. It belongs to
// the process's first configuration. Unknown policies panic: the names come from
// the table above.
func DefaultPool(policy string) pool.Config {
	p, err := balance.New(policy, balance.Options{Hash: balance.HashConfig{BoundedLoad: 1.25}})
	if err != nil {
		panic(err)
	}
	return pool.Config{
		Policy: p,
		Active: health.Active{
			Enabled: true, Interval: 5 * time.Second, FastInterval: time.Second, Timeout: 2 * time.Second,
			Jitter: 0.1, Fall: 3, Rise: 2, HTTP: true,
		},
		Passive: health.Passive{
			Enabled: true, Consecutive: 5, ConsecutiveConnect: 2,
			Eject: 30 * time.Second, MaxEject: 300 * time.Second, MaxEjected: 0.5,
			SuccessRate: health.SuccessRate{Factor: 1.9, MinRequests: 100, MinBackends: 5},
			Latency:     health.Latency{Factor: 10, Above: 100 * time.Millisecond, MinRequests: 100},
		},
		Overload:      health.Overload{Enabled: true, Floor: 0.1, RetryAfter503: true, ORCA: true, GRPCExhausted: true, QueueFull: true},
		SlowStart:     pool.SlowStart{Window: 30 * time.Second, From: 0.1},
		Panic:         pool.Panic{Threshold: 0.5, Floor: 1},
		Limits:        pool.Limits{Queue: 128, QueueTimeout: 2 * time.Second},
		Retry:         pool.Budget{Share: 0.2, Window: 10 * time.Second, MinPerSecond: 3, Base: 25 * time.Millisecond, Max: 250 * time.Millisecond},
		DrainDeadline: 30 * time.Second,
		First:         true,
	}
}

// DefaultRetry are a route's rules when a configuration says nothing.
func DefaultRetry() pool.RetryRules {
	return pool.NewRetryRules(2, true, []int{502, 503, 504}, 5*time.Second)
}

// policyOnly switches off what judges backends, so that the policy alone is seen.
func policyOnly(c *BalancerConfig) {
	c.Pool.Active.Enabled, c.Pool.Passive.Enabled, c.Pool.Overload.Enabled = false, false, false
}

// setting is what a stage is built from.
type setting struct {
	seed      uint64
	policy    string
	servers   int
	server    ServerConfig                   // of each; s1, s2, ...
	each      func(i int, c *ServerConfig)   // changes one, i from 0; nil: none
	balancers int                            // 0 counts as 1
	tune      func(i int, c *BalancerConfig) // changes one; nil: none
	stale     time.Duration                  // age of shared counts; 0: each has its own
	load      float64                        // part of the servers' nominal capacity
	traffic   Traffic
	meanSize  float64 // of requests; 0 counts as 1
}

// stage is a world with its servers, balancers and clients in place.
type stage struct {
	*World
	servers   []*Server
	balancers []*Balancer
	source    *Source
	capacity  float64 // requests per second at nominal speed
}

// build puts the pieces in place.
func (s *setting) build() *stage {
	st := &stage{World: NewWorld(s.seed)}
	if s.stale > 0 {
		st.ShareCounts(s.stale)
	}
	for i := range s.servers {
		c := s.server
		c.ID = fmt.Sprintf("s%d", i+1)
		st.capacity += float64(max(c.Concurrency, 1)) / c.Service.Mean().Seconds() / or(s.meanSize, 1)
		if s.each != nil {
			s.each(i, &c)
		}
		st.servers = append(st.servers, st.AddServer(c))
	}
	for i := range max(s.balancers, 1) {
		c := BalancerConfig{Pool: DefaultPool(s.policy), Retry: DefaultRetry(), Request: time.Minute}
		if s.tune != nil {
			s.tune(i, &c)
		}
		st.balancers = append(st.balancers, st.AddBalancer(c))
	}
	t := s.traffic
	t.To = st.balancers
	if t.Rate == 0 {
		t.Rate = s.load * st.capacity
	}
	if t.Keys.N == 0 {
		t.Keys.N = 1000
	}
	st.source = st.AddTraffic(t)
	return st
}

// limit is longer than a scenario may take: what has not ended by then never will.
const limit = 10 * time.Hour

// everyRow makes one variant of each policy.
func everyRow(o *Options, run func(policy string, seed uint64) sample) []variant {
	out := make([]variant, 0, len(o.Policies))
	for _, p := range o.Policies {
		out = append(out, variant{p, func(seed uint64) sample { return run(p, seed) }})
	}
	return out
}

// inMillis is a time as a figure.
func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile is that of the latencies in milliseconds; NaN of none.
func quantile(h *Histogram, q float64) float64 {
	if h.N() == 0 {
		return math.NaN()
	}
	return inMillis(h.Quantile(q))
}

// failures is the part of the requests that failed; NaN of none.
func (c *Counts) failures() float64 { return ratio(float64(c.Failed()), float64(c.Requests)) }

// ratio is a / b; NaN when b is nothing.
func ratio(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}

// latencies are the columns that most comparisons have.
func latencies(more ...Column) []Column {
	return append(more,
		Column{Name: "errors", Title: "errors", Unit: Part},
		Column{Name: "p50", Title: "p50", Unit: Millis},
		Column{Name: "p95", Title: "p95", Unit: Millis},
		Column{Name: "p99", Title: "p99", Unit: Millis, Chart: true, Log: true},
	)
}

// latencyFigures are those of the columns of latencies.
func latencyFigures(c *Counts, more ...float64) []float64 {
	return append(more, c.failures(), quantile(&c.Latency, 0.5), quantile(&c.Latency, 0.95), quantile(&c.Latency, 0.99))
}

// witness writes down what the pools of a world say.
type witness struct {
	moments []Moment
	flips   int // changes between serving and not
	out     int // of them, to not serving
	panics  int
}

// watch makes a witness of the first balancer's notices, and counts those of all.
func watch(w *World) *witness {
	out := &witness{}
	w.OnNotice = func(b *Balancer, n pool.Notice) { out.hear(w, b, n) }
	return out
}

func (v *witness) hear(w *World, b *Balancer, n pool.Notice) {
	who := "pool"
	if n.Backend != nil {
		who = n.Backend.ID()
	}
	said := ""
	switch n.Kind {
	case pool.StateChanged:
		gone := n.To == health.StateBroken || n.To == health.StateNotReady
		was := n.From == health.StateBroken || n.From == health.StateNotReady
		if gone && !was {
			v.out++
		}
		if gone != was {
			v.flips++
		}
		if n.From == health.StateUnproven && n.To == health.StateHealthy {
			return // the good news that everybody expected
		}
		said = n.From.String() + " to " + n.To.String()
	case pool.EjectedNow:
		said = "ejected"
	case pool.PanicBegan:
		v.panics++
		said = "panic began"
	case pool.PanicEnded:
		said = "panic ended"
	case pool.SharedDependency:
		said = "a shared dependency"
	case pool.SharedOver:
		said = "the shared dependency is over"
	case pool.BrokenCheck:
		said = "a broken check"
	case pool.BrokenCheckOver:
		said = "the check is no longer broken"
	case pool.DrainBegan, pool.DrainOver, pool.DrainEmpty, pool.Overridden:
		said = n.Kind.String()
	default:
		return
	}
	if n.Why != "" {
		said += ": " + n.Why
	}
	if n.For > 0 && n.Kind != pool.DrainBegan {
		said += " (" + n.For.String() + ")"
	}
	if len(w.Balancers()) > 0 && b == w.Balancers()[0] {
		v.moments = append(v.moments, Moment{At: w.Now(), Who: who, What: said})
	}
}

// say writes down what the scenario itself does.
func (v *witness) say(w *World, who, what string) {
	v.moments = append(v.moments, Moment{At: w.Now(), Who: who, What: what})
}

// serving counts, second by second, how many servers were given requests.
func serving(st *stage, from, until time.Duration) *[]int {
	out := &[]int{}
	before := make([]uint64, len(st.servers))
	look := func() int {
		n := 0
		for i, s := range st.servers {
			if a := s.Figures().Arrived; a > before[i] {
				n++
				before[i] = a
			}
		}
		return n
	}
	for at := from; at <= until; at += time.Second {
		st.At(at, func() {
			if n := look(); st.Now() > from {
				*out = append(*out, n)
			}
		})
	}
	return out
}

// least is the smallest of them, 0 of none.
func least(counts []int) int {
	if len(counts) == 0 {
		return 0
	}
	out := counts[0]
	for _, n := range counts {
		out = min(out, n)
	}
	return out
}

// perSecond makes a line of the buckets of a world.
func perSecond(st *stage, name, title string, u Unit, of func(*Counts) float64) Series {
	s := Series{Name: name, Title: title, Unit: u, Step: st.Stats().Step}
	for i := range st.Stats().Buckets {
		s.Points = append(s.Points, of(&st.Stats().Buckets[i]))
	}
	return s
}

// okRate and p99Of are what lines are made of.
func okRate(c *Counts) float64  { return float64(c.OK) }
func badRate(c *Counts) float64 { return float64(c.Failed()) }
func p99Of(c *Counts) float64   { return quantile(&c.Latency, 0.99) }
