// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/engine"
	"github.com/weirlb/weir/internal/sim"
	"github.com/weirlb/weir/pool"
)

// simConfig runs a pool of a configuration against a fleet.
func simConfig(cmd *cobra.Command, f *simFlags) error {
	if f.opt.Backends != 0 || f.opt.Requests != 0 {
		return wrongUse("--backends and --requests are for scenarios: a configuration says who serves, and a fleet how much arrives")
	}
	// The limits are those of a scenario that has everything.
	every := sim.Scenario{Name: "-c", Defaults: sim.Options{Policies: balance.Names(), Duration: 1, Load: 1}}
	if err := every.Check(f.opt); err != nil {
		return &usageError{err}
	}
	plan, err := config.Load(f.file)
	if err != nil {
		return err
	}
	described := config.DefaultFleet()
	if f.fleet != "" {
		if described, err = config.LoadFleet(f.fleet); err != nil {
			return err
		}
	}
	if f.pool != "" {
		described.Pool, described.PoolPos = f.pool, config.Position{File: "--pool"}
	}
	p, err := described.PoolOf(plan)
	if err != nil {
		return err
	}
	if err := described.Fit(p); err != nil {
		return err
	}
	if f.opt.Duration != 0 {
		described.Duration = f.opt.Duration
	}
	if f.opt.Load != 0 {
		described.Arrivals.Load, described.Arrivals.Rate = f.opt.Load, 0
	}
	if cmd.Flags().Changed("seed") {
		described.Seed = f.opt.Seed
	}
	fleet, err := fleetOf(plan, p, described, f)
	if err != nil {
		return err
	}
	report, err := fleet.Run()
	if err != nil {
		return err
	}
	return f.print(cmd.OutOrStdout(), report)
}

// fleetOf puts a description into the simulator's words.
func fleetOf(plan *config.Plan, p *config.Pool, d *config.Fleet, f *simFlags) (*sim.Fleet, error) {
	a := &d.Arrivals
	out := &sim.Fleet{
		Name: p.Name, Balancers: d.Balancers, Policies: f.policies,
		Load: a.Load, MeanSize: 1 + a.Heavy*(a.Factor-1), Duration: d.Duration,
		Seed: d.Seed, Seeds: f.opt.Seeds, Each: f.opt.Each,
		Server: func(spec pool.Spec) sim.ServerConfig { s := d.ServerOf(spec.ID); return serverConfig(&s) },
	}
	out.Balancer = func(n int) (sim.BalancerConfig, error) { return balancerConfig(plan, p, d, n) }
	out.With = func(c *sim.BalancerConfig, policy string) error {
		other := *p
		other.Balance = policy
		cfg, _, err := engine.PoolConfig(&other, c.Pool.Instance)
		c.Pool.Policy = cfg.Policy
		return err
	}
	t := &out.Traffic
	t.Name, t.Rate, t.Users, t.Burst = "clients", a.Rate, a.Users, a.Burst
	t.Keys = sim.Keys{N: a.Keys, Skew: a.Skew}
	t.Timeout, t.Retries, t.Backoff = d.Clients.Timeout, d.Clients.Retries, d.Clients.Backoff
	t.Pattern = map[string]sim.Pattern{"even": sim.Even, "bursts": sim.Bursts}[a.Pattern]
	t.Think = sim.Exponential(a.Think)
	if a.Heavy > 0 {
		t.Size = sim.Heavy(a.Heavy, a.Factor)
	}
	if a.Log != "" {
		if err := replay(t, a); err != nil {
			return nil, err
		}
		if last := t.Replay[len(t.Replay)-1].At; f.opt.Duration == 0 {
			out.Duration = last + time.Second
		}
	}
	for i := range d.Events {
		e := &d.Events[i]
		out.Events = append(out.Events, sim.FleetEvent{
			At: e.At, Do: e.Do, Backends: e.Backends, Zone: e.Zone, For: e.For,
			Speed: e.Speed, Errors: e.Errors, Rate: e.Rate, Every: e.Every, Drains: e.Drains,
		})
	}
	out.Params, out.Notes = fleetWords(p, d, f, out)
	return out, nil
}

// replay reads an access log.
func replay(t *sim.Traffic, a *config.FleetArrivals) error {
	file, err := os.Open(a.Log)
	if err != nil {
		return fmt.Errorf("cannot read the access log: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	log, err := sim.ReadLog(file)
	if err != nil {
		return fmt.Errorf("cannot read the access log %s: %w", a.Log, err)
	}
	if len(log.Arrivals) == 0 {
		return errors.New("the access log " + a.Log + " has no request")
	}
	t.Replay = log.Arrivals
	for i := range t.Replay {
		t.Replay[i].At = time.Duration(float64(t.Replay[i].At) / a.Speed)
	}
	return nil
}

// balancerConfig is one weir that runs the pool, as the configuration says.
func balancerConfig(plan *config.Plan, p *config.Pool, d *config.Fleet, n int) (sim.BalancerConfig, error) {
	if p.Discover != nil && len(p.Backends) == 0 {
		return sim.BalancerConfig{}, fmt.Errorf("the backends of pool %s are found while weir runs (%s): for a simulation list some under backends", p.Name, p.Discover)
	}
	cfg, specs, err := engine.PoolConfig(p, uint64(n)+1) //nolint:gosec // n counts balancers
	if err != nil {
		return sim.BalancerConfig{}, err
	}
	cfg.First = true
	retry, request := routeTo(plan, p)
	return sim.BalancerConfig{
		Name: "weir-" + strconv.Itoa(n+1), Pool: cfg, Specs: specs,
		Retry:   pool.NewRetryRules(retry.Attempts, retry.OnReset, retry.OnStatus, retry.Within),
		Request: request, Connect: p.Timeouts.Connect, Response: p.Timeouts.ResponseHeader,
		ProbeNetwork: sim.Fixed(d.Checks.Latency), ProbeLoss: d.Checks.Loss,
	}, nil
}

// routeTo finds the rules of the first route to the pool; without one those that
// a route would start from.
func routeTo(plan *config.Plan, p *config.Pool) (config.Retry, time.Duration) {
	for i := range plan.Listeners {
		for j := range plan.Listeners[i].Routes {
			if r := &plan.Listeners[i].Routes[j]; r.Pool == p.Name {
				return r.Retry, r.Timeouts.Request
			}
		}
	}
	return p.Retry, time.Minute
}

func serverConfig(s *config.FleetServer) sim.ServerConfig {
	spread := map[string]func(time.Duration) sim.Dist{
		"fixed": sim.Fixed, "exponential": sim.Exponential,
		"lognormal": func(d time.Duration) sim.Dist { return sim.Lognormal(d, 1) },
		"pareto":    func(d time.Duration) sim.Dist { return sim.Pareto(d, 2.5) },
	}
	queue := s.Queue
	if queue == 0 {
		queue = -1 // none wait
	}
	return sim.ServerConfig{
		Service: spread[s.Spread](s.Service), Concurrency: s.Concurrency, Queue: queue, Speed: s.Speed,
		Errors: s.Errors, Cold: s.Cold, ColdSpeed: s.ColdSpeed, Boot: s.Boot, RetryAfter: time.Second,
	}
}

// fleetWords says what was run and what was assumed.
func fleetWords(p *config.Pool, d *config.Fleet, f *simFlags, out *sim.Fleet) (params []sim.Param, notes []string) {
	add := func(name, value string) { params = append(params, sim.Param{Name: name, Value: value}) }
	add("config", f.file)
	if f.fleet != "" {
		add("fleet", f.fleet)
	}
	if len(f.policies) == 0 {
		add("policy", p.Balance)
	}
	add("backends", strconv.Itoa(len(p.Backends)))
	if d.Balancers > 1 {
		add("balancers", strconv.Itoa(d.Balancers))
	}
	switch a := &d.Arrivals; {
	case a.Log != "":
		add("log", a.Log)
	case a.Users > 0:
		add("users", strconv.Itoa(a.Users))
	case a.Rate > 0:
		add("rate", sim.Show(a.Rate, sim.PerSec))
	default:
		add("load", sim.Show(a.Load, sim.Part))
	}
	add("duration", out.Duration.String())
	s := &d.Server
	notes = append(notes, fmt.Sprintf("Assumed: each backend works on %d requests at once, for %v each (%s).", s.Concurrency, s.Service, s.Spread))
	if f.fleet == "" {
		notes = append(notes, "Nothing happens to this fleet; describe your own with --fleet: docs/simulator.md has its keys.")
	}
	return params, notes
}
