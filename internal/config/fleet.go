// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Fleet describes what a simulation puts around a pool: who asks, who answers,
// and what happens meanwhile. Like a Plan it is immutable, and every `auto` and
// default is decided.
type Fleet struct {
	File      string
	Pool      string // which pool of the configuration; empty: the only one
	PoolPos   Position
	Seed      uint64
	Duration  time.Duration // of virtual time, in which requests arrive
	Balancers int           // weirs side by side, each with its own counts
	Arrivals  FleetArrivals
	Server    FleetServer   // what servers does not say otherwise
	Servers   []FleetServer // sorted by ID
	Checks    FleetChecks
	Clients   FleetClients
	Events    []FleetEvent // in the order of their times; those of one time as written
}

// FleetArrivals says when requests arrive.
type FleetArrivals struct {
	Rate    float64 // per second; 0: Load decides
	Load    float64 // part of what the backends can do at nominal speed
	Pattern string  // poisson, even or bursts
	Burst   int     // requests of one burst, at once
	Users   int     // closed loop: so many users, each with Think between its requests; 0: open
	Think   time.Duration
	Log     string  // access log to replay; empty: none
	Speed   float64 // of the replay; 1: as it was
	Keys    int     // distinct keys for hash policies
	Skew    float64 // exponent of their Zipf distribution; 0: all alike
	Heavy   float64 // part of the requests that are larger
	Factor  float64 // by so much
}

// FleetServer is how one backend behaves.
type FleetServer struct {
	ID          string // empty: the default
	Pos         Position
	Service     time.Duration // mean time of one request at full speed
	Spread      string        // fixed, exponential, lognormal or pareto
	Concurrency int           // requests it works on at once; more wait in it
	Queue       int           // requests that wait in it; more are answered 503
	Speed       float64       // 1: nominal
	Errors      float64       // part of the answers that are 500
	Cold        time.Duration // after a start it warms up so long
	ColdSpeed   float64       // beginning at this speed
	Boot        time.Duration // from start until it is ready
}

// FleetChecks is what the network does to probes.
type FleetChecks struct {
	Latency time.Duration
	Loss    float64 // part of the probes that get no answer
}

// FleetClients is what those who ask do.
type FleetClients struct {
	Timeout time.Duration // after which a client gives up; 0: never
	Retries int           // after a failed request
	Backoff time.Duration // before the first one, doubling, with full jitter
}

// FleetEvent is something that happens.
type FleetEvent struct {
	Pos      Position
	At       time.Duration
	Do       string   // one of FleetVerbs
	Backends []string // whom it happens to
	Zone     string   // or to all of a zone
	For      time.Duration
	Speed    float64
	Errors   float64
	Rate     float64
	Every    time.Duration // between two servers of a deploy
	Drains   bool          // whether they drain first
}

// FleetVerbs are the things that can happen, in the order of the documentation.
var FleetVerbs = []string{
	"kill", "start", "pause", "slow", "fail", "black_hole", "unready", "ready", "drain", "enable", "add", "remove", "deploy", "rate",
}

// LoadFleet reads and parses the description of a fleet. The error is an
// *Errors when the file could be read.
func LoadFleet(path string) (*Fleet, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the fleet: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	text, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the fleet %s: %w", path, err)
	}
	return ParseFleet(path, text, os.LookupEnv)
}

// DefaultFleet is what an empty description means.
func DefaultFleet() *Fleet {
	f := defaultsOf(fleetFields)
	return &f
}

// ParseFleet turns a text into a Fleet, as Parse does with a configuration: the
// error is an *Errors with every fault. An empty text is the default fleet.
func ParseFleet(name string, text []byte, env func(string) (string, bool)) (*Fleet, error) {
	if len(text) > maxText {
		return nil, &Errors{Faults: []Fault{{
			Pos: Position{File: name, Line: 1, Col: 1}, Len: 1,
			What: "the text is larger than " + showBytes(maxText), Fix: "check that this describes a fleet",
		}}}
	}
	body := strings.TrimPrefix(string(text), "\ufeff")
	fleet := DefaultFleet()
	fleet.File = name
	if blank(body) {
		return fleet, nil
	}
	f := &faults{src: newSource(name, body)}
	root := (&builder{faults: f, env: env}).parse(body)
	if root == nil {
		return nil, f.err()
	}
	d := &decoder{faults: f, fleet: fleet, known: fleetSchema}
	readBlock(d, root, "the fleet", fleetFields, fleet)
	fleet.PoolPos = root.at("pool").pos
	if err := f.err(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(fleet.Events, func(a, b FleetEvent) int { return int(max(min(a.At-b.At, 1), -1)) })
	return fleet, nil
}

// blank reports that a text holds nothing but comments.
func blank(body string) bool {
	for line := range strings.Lines(body) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return false
		}
	}
	return true
}

// PoolOf finds the pool that the fleet is for. The error is an *Errors.
func (f *Fleet) PoolOf(p *Plan) (*Pool, error) {
	names := make([]string, len(p.Pools))
	for i := range p.Pools {
		names[i] = p.Pools[i].Name
	}
	out := &faults{}
	switch pool := p.Pool(f.Pool); {
	case pool != nil:
		return pool, nil
	case f.Pool != "":
		out.add(f.PoolPos, len(f.Pool), "pool "+quote(f.Pool)+" is not in "+p.File, useOne(f.Pool, names))
	case len(names) == 1:
		return &p.Pools[0], nil
	default:
		out.add(Position{File: p.File}, 1, "there are several pools", "say which with --pool, or with pool in the fleet: "+oneOf(names))
	}
	return nil, out.err()
}

// Fit holds a fleet against the pool that it is for: every backend and zone it
// names must be there. The error is an *Errors.
func (f *Fleet) Fit(p *Pool) error {
	var ids, zones []string
	for i := range p.Backends {
		ids = append(ids, p.Backends[i].ID)
		if z := p.Backends[i].Zone; z != "" && !slices.Contains(zones, z) {
			zones = append(zones, z)
		}
	}
	out := &faults{}
	miss := func(pos Position, what, word string, known []string) {
		fix := useOne(word, known)
		if len(known) > 12 {
			fix = "weir check and weir status list them"
			if near := nearest(word, known); near != "" {
				fix = "did you mean " + near + "?"
			}
		}
		out.add(pos, 1, what+" "+quote(word)+" is not in pool "+p.Name, fix)
	}
	for i := range f.Servers {
		if s := &f.Servers[i]; !slices.Contains(ids, s.ID) && !f.adds(s.ID) {
			miss(s.Pos, "backend", s.ID, ids)
		}
	}
	for i := range f.Events {
		e := &f.Events[i]
		for _, id := range e.Backends {
			if !slices.Contains(ids, id) && !f.adds(id) {
				miss(e.Pos, "backend", id, ids)
			}
		}
		if e.Zone != "" && !slices.Contains(zones, e.Zone) {
			miss(e.Pos, "zone", e.Zone, zones)
		}
	}
	return out.err()
}

// adds reports that an event of the fleet adds a backend.
func (f *Fleet) adds(id string) bool {
	return slices.ContainsFunc(f.Events, func(e FleetEvent) bool { return e.Do == "add" && slices.Contains(e.Backends, id) })
}

// ServerOf is how the backend with the id behaves.
func (f *Fleet) ServerOf(id string) FleetServer {
	for i := range f.Servers {
		if f.Servers[i].ID == id {
			return f.Servers[i]
		}
	}
	out := f.Server
	out.ID = id
	return out
}
