// SPDX-License-Identifier: Apache-2.0

package observe

import "time"

// PoolGauges is the state of one pool at the moment of a scrape.
type PoolGauges struct {
	Name            string
	Panic           bool
	Correlated      string       // what probes fail together for while traffic succeeds: one of correlatedKinds; empty: they do not
	Limit           *LimitGauges // nil: the pool has no adaptive limit
	QueueLength     int          // requests waiting for a slot
	BudgetRemaining float64      // retries that would be granted now
	Saturation      float64      // 0..1 and above: load against capacity
	Connections     int64        // open upstream connections
	Backends        []BackendGauges
	Discovery       *DiscoveryGauges // nil: backends are listed only
}

// LimitGauges is a pool's adaptive limit at the moment of a scrape.
type LimitGauges struct {
	Limit int64    // requests in flight; 0: nothing is bounded so far
	Shed  []uint64 // requests refused by it; index as in Priorities
}

// Priorities are the values of the label priority.
var Priorities = [...]string{"normal", "low", "high"}

// DiscoveryGauges is what finds a pool's backends, at the moment of a scrape.
type DiscoveryGauges struct {
	Backends   int       // in the pool that were found
	Held       int       // of them, those that the last answer lacked and that wait for another one
	LastAnswer time.Time // the last one with backends; zero: none
	Answers    []DiscoveryAnswers
}

// DiscoveryAnswers counts looks of one outcome: ok, partial, empty, failed.
type DiscoveryAnswers struct {
	Outcome string
	Count   uint64
}

// BackendGauges is the state of one backend at the moment of a scrape.
type BackendGauges struct {
	ID       string
	Address  string // host:port as dialed, for ephemeral ports; may be empty
	State    string // as in the API: unproven, healthy, overloaded, not_ready, broken
	Share    float64
	InFlight int64
	Tunnels  int64  // open, of those in flight
	Flips    uint64 // changes between serving and not serving
}

// ListenerGauges is the state of one listener at the moment of a scrape.
type ListenerGauges struct {
	Name             string
	Connections      int64 // open client connections
	Streams          int64 // open on those that speak HTTP/2
	HTTP2            bool  // they may: Streams is exposed
	AcceptQueue      int64 // connections waiting to be accepted
	AcceptQueueLimit int64 // 0: unknown, neither is exposed
	Certificates     []CertificateGauge
	Handshakes       []HandshakeCount // of TLS; nil: it is plain
	Handshaking      int64            // under way
	Headers          []HeaderCount    // of the PROXY protocol; nil: none is expected, and none came
	Datagrams        *DatagramGauges  // of UDP; nil: it takes connections
}

// HeaderCount is how many connections had one outcome of their PROXY header.
type HeaderCount struct {
	Outcome string
	N       uint64
}

// HandshakeCount is how many TLS handshakes have ended one way.
type HandshakeCount struct {
	Outcome string
	N       uint64
}

// CertificateGauge is a certificate that a listener serves. Of two with one
// name the one that ends first is exposed.
type CertificateGauge struct {
	Name     string    // its first DNS name, else its subject
	NotAfter time.Time // zero: there is none yet; then it is not exposed
	Issued   bool      // obtained by ACME
	Err      string    // why the last attempt to obtain it failed; empty: it did not
}

// RegisterPools sets the function that returns every pool's state. It is
// called from scraping goroutines, concurrently; the result is not kept.
func (m *Metrics) RegisterPools(f func() []PoolGauges) { m.pools.Store(&f) }

// RegisterListeners sets the function that returns every listener's state,
// under the same rules.
func (m *Metrics) RegisterListeners(f func() []ListenerGauges) { m.listeners.Store(&f) }

// RegisterLogDropped adds a source to weir_log_dropped_total: the access log's
// Dropped, for one.
func (m *Metrics) RegisterLogDropped(f func() uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logDropped = append(m.logDropped, f)
}

func (m *Metrics) poolGauges() []PoolGauges {
	f := m.pools.Load()
	if f == nil {
		return nil
	}
	all := (*f)()
	seen := make(map[string]bool, len(all))
	out := all[:0:0]
	for _, p := range all {
		// While a reload drains, two generations may hold one name: the first wins.
		if !seen[p.Name] {
			seen[p.Name] = true
			out = append(out, p)
		}
	}
	return out
}

func (m *Metrics) listenerGauges() []ListenerGauges {
	f := m.listeners.Load()
	if f == nil {
		return nil
	}
	all := (*f)()
	at := make(map[string]int, len(all))
	out := all[:0:0]
	for _, l := range all {
		if i, ok := at[l.Name]; ok {
			out[i].Connections += l.Connections
			out[i].Streams += l.Streams
			out[i].HTTP2 = out[i].HTTP2 || l.HTTP2
			continue
		}
		at[l.Name] = len(out)
		out = append(out, l)
	}
	return out
}
