// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/health"
)

// Saved is what a pool knows, for the process that comes after this one. Times in
// it are ages at the export. It is a plain value without pointers into the pool
// and encodes to JSON without loss; fields that are added later are zero in what
// an older version wrote, which means that nothing is known.
//
// It holds all that decides how the pool goes on but what is in flight: requests
// and probes under way belong to the process that began them.
type Saved struct {
	// Overrides is the operator's word, sorted by id, those about backends that are
	// away included.
	Overrides []SavedOverride `json:"overrides,omitempty"`
	Backends  []SavedBackend  `json:"backends,omitempty"` // members, in their order
	Tiers     []SavedTier     `json:"tiers,omitempty"`
	Budget    SavedBudget     `json:"budget,omitzero"`
	Stats     SavedStats      `json:"stats,omitzero"`
	Ramp      SavedRamp       `json:"ramp,omitzero"` // of the whole pool
	Adaptive  SavedAdaptive   `json:"adaptive,omitzero"`
	Ready     bool            `json:"ready,omitempty"`
	Lit       bool            `json:"lit,omitempty"`
	Dark      bool            `json:"dark,omitempty"`
	Served    bool            `json:"served,omitempty"`
}

// SavedOverride is the operator's word about one id.
type SavedOverride struct {
	ID          string     `json:"id"`
	Admin       string     `json:"admin,omitempty"` // draining, disabled; empty: not overridden
	AdminSince  health.Age `json:"admin_since,omitempty"`
	DeadlineNS  int64      `json:"deadline_ns,omitempty"` // of the drain; 0: the pool's
	Weight      *uint32    `json:"weight,omitempty"`
	WeightSince health.Age `json:"weight_since,omitempty"`
}

// SavedBackend is one member.
type SavedBackend struct {
	ID       string               `json:"id"`
	URL      string               `json:"url"`
	Health   health.Saved         `json:"health"`
	Pressure health.SavedPressure `json:"pressure,omitzero"`
	Check    *SavedCheck          `json:"check,omitempty"` // the last probe
	Probe    SavedProbe           `json:"probe,omitzero"`
	Facts    SavedFacts           `json:"facts,omitzero"`
	Ramp     SavedRamp            `json:"ramp,omitzero"`
	Count    SavedCount           `json:"count,omitzero"`
	Windows  SavedWindows         `json:"windows,omitzero"`
	Signs    SavedSigns           `json:"signs,omitzero"`
	Slow     SavedSlow            `json:"slow,omitzero"`
	Learned  balance.Learned      `json:"learned,omitzero"` // by the policy
	Added    health.Age           `json:"added"`
	Changed  health.Age           `json:"changed,omitempty"`   // attempts begun before say nothing
	LastGood health.Age           `json:"last_good,omitempty"` // when the latest attempt that succeeded began
	NotReady health.Age           `json:"not_ready,omitempty"` // when it turned so, while that is news
	Idle     health.Age           `json:"idle,omitempty"`      // since when it takes no work
	Took     bool                 `json:"took,omitempty"`      // it takes work
	BadRun   uint32               `json:"bad_run,omitempty"`
	ConnRun  uint32               `json:"conn_run,omitempty"`
	GoodRun  uint32               `json:"good_run,omitempty"`
	ByShare  bool                 `json:"by_share,omitempty"` // why it was ejected
	BySlow   bool                 `json:"by_slow,omitempty"`
}

// SavedCheck is a Check.
type SavedCheck struct {
	At      health.Age `json:"at"`
	OK      bool       `json:"ok,omitempty"`
	Outcome string     `json:"outcome"`
	Cause   string     `json:"cause,omitempty"`
	Status  int        `json:"status,omitempty"`
	Error   string     `json:"error,omitempty"`
}

// SavedProbe is where a member's probing stands.
type SavedProbe struct {
	Started health.Age `json:"started,omitempty"` // the last one
	Next    health.Age `json:"next,omitempty"`    // 0: one is under way, or none is wanted
	Count   uint64     `json:"count,omitempty"`
	Again   bool       `json:"again,omitempty"`
	First   bool       `json:"first,omitempty"`   // the first one has not ended
	Passed  bool       `json:"passed,omitempty"`  // some probe has
	Failed  int        `json:"failed,omitempty"`  // in a row
	Failing health.Age `json:"failing,omitempty"` // since when

	OwnFails  int `json:"own_fails,omitempty"` // of those before
	OwnPasses int `json:"own_passes,omitempty"`
}

// SavedFacts is what connections have shown.
type SavedFacts struct {
	Failed   health.Age `json:"failed,omitempty"` // the fact that holds
	LastConn health.Age `json:"last_conn,omitempty"`
	Accused  health.Age `json:"accused,omitempty"` // by real traffic, not yet settled
	Ends     health.Age `json:"ends,omitempty"`    // of fact or suspicion
	Cause    string     `json:"cause,omitempty"`
	Out      bool       `json:"out,omitempty"` // what keeps it out is that it could not be reached
}

// SavedRamp is a slow start under way; the zero value is none.
type SavedRamp struct {
	Start    health.Age `json:"start,omitempty"`
	WindowNS int64      `json:"window_ns,omitempty"`
	From     float64    `json:"from,omitempty"`
}

// SavedCount is what requests have counted since the backend was added.
type SavedCount struct {
	Answers      uint64 `json:"answers,omitempty"`
	LatencyNS    uint64 `json:"latency_ns,omitempty"`
	Failed       uint64 `json:"failed,omitempty"`
	Faults       uint64 `json:"faults,omitempty"`
	Others       uint64 `json:"others,omitempty"`
	ServerErrors uint64 `json:"server_errors,omitempty"`
	Failings     uint64 `json:"failings,omitempty"`
	Untimed      uint64 `json:"untimed,omitempty"`
	BadTimed     uint64 `json:"bad_timed,omitempty"`
	BadLatencyNS uint64 `json:"bad_latency_ns,omitempty"`
}

// SavedTally is a count at the beginning of a window.
type SavedTally struct {
	Answers  uint64 `json:"answers,omitempty"`
	Bad      uint64 `json:"bad,omitempty"`
	Faults   uint64 `json:"faults,omitempty"`
	Failures uint64 `json:"failures,omitempty"`
}

// SavedAddresses notes whether two clients were seen. First is the hash of the
// first one's address, which is not written to a disk: see WithoutClients.
type SavedAddresses struct {
	First uint64 `json:"first,omitempty"`
	Two   bool   `json:"two,omitempty"`
}

// SavedWindows is what is counted per window.
type SavedWindows struct {
	Base      [2]SavedTally  `json:"base,omitzero"`
	Errors    SavedAddresses `json:"errors,omitzero"`
	ErrorsTwo bool           `json:"errors_two,omitempty"` // of the window before
	Fails     SavedAddresses `json:"fails,omitzero"`
	FailsTwo  bool           `json:"fails_two,omitempty"`
	Watched   bool           `json:"watched,omitempty"`
	Asked     bool           `json:"asked,omitempty"`
	EWMA      float64        `json:"ewma,omitempty"` // nanoseconds

	SeenAnswers   uint64 `json:"seen_answers,omitempty"`
	SeenLatencyNS uint64 `json:"seen_latency_ns,omitempty"`
	SeenBad       uint64 `json:"seen_bad,omitempty"`
	SeenBadNS     uint64 `json:"seen_bad_ns,omitempty"`

	// Hist holds the buckets of the latencies of the window that are not empty, as
	// pairs of number and count; HistBefore those of them that the next window
	// leaves out. Turned says that there was a window before.
	Hist       [][2]uint32 `json:"hist,omitempty"`
	HistBefore [][2]uint32 `json:"hist_before,omitempty"`
	Turned     bool        `json:"turned,omitempty"`
}

// SavedSigns is what has been seen of overload.
type SavedSigns struct {
	Count   uint64         `json:"count,omitempty"`
	Base    [2][2]uint64   `json:"base,omitzero"` // answers and signs at the beginning of the windows
	Two     bool           `json:"two,omitempty"` // of the window before
	Who     SavedAddresses `json:"who,omitzero"`
	Since   health.Age     `json:"since,omitempty"`
	AskedNS int64          `json:"asked_ns,omitempty"` // the longest Retry-After
	Listed  bool           `json:"listed,omitempty"`
	Asked   bool           `json:"asked,omitempty"`
}

// SavedSlow is what has been seen of dead slowness.
type SavedSlow struct {
	LimitNS   int64          `json:"limit_ns,omitempty"`
	Count     uint32         `json:"count,omitempty"`
	Run       uint32         `json:"run,omitempty"`
	Who       SavedAddresses `json:"who,omitzero"`
	Suspected health.Age     `json:"suspected,omitempty"` // 0: it is not
	Asked     bool           `json:"asked,omitempty"`
}

// SavedTier is what has been concluded about a tier and does not follow from its
// members alone.
type SavedTier struct {
	Level  int      `json:"level"`
	Shared bool     `json:"shared,omitempty"`
	Spent  bool     `json:"spent,omitempty"`
	Zones  []string `json:"zones,omitempty"` // that are spent

	Correlated string     `json:"correlated,omitempty"` // what its probes fail together for
	Why        string     `json:"why,omitempty"`
	Calm       health.Age `json:"calm,omitempty"`  // since when too few do
	Named      int        `json:"named,omitempty"` // how often they did of late
	Over       health.Age `json:"over,omitempty"`  // when they last ceased to
}

// SavedAdaptive is what an adaptive limit has found; the zero value is nothing. A
// judgement under way is not part of it: what is in flight here says nothing about
// there.
type SavedAdaptive struct {
	Limit float64    `json:"limit,omitempty"`
	Base  float64    `json:"base,omitempty"` // nanoseconds, latency without load
	Sure  bool       `json:"sure,omitempty"` // measured by a descent
	Next  health.Age `json:"next,omitempty"` // no descent before
	Shed  health.Age `json:"shed,omitempty"` // when something was refused last; 0: not lately
}

// SavedBudget is what the retry budget has counted.
type SavedBudget struct {
	WindowNS int64             `json:"window_ns,omitempty"`
	Requests uint64            `json:"requests,omitempty"` // since the start
	Retries  uint64            `json:"retries,omitempty"`
	Parts    []SavedBudgetPart `json:"parts,omitempty"` // of the window, those that are not empty
}

// SavedBudgetPart is one part of its window.
type SavedBudgetPart struct {
	Ago      int64 `json:"ago,omitempty"` // in parts
	Requests int64 `json:"requests,omitempty"`
	Retries  int64 `json:"retries,omitempty"`
}

// SavedStats is what has been derived from all members.
type SavedStats struct {
	Last     health.Age     `json:"last,omitempty"` // 0: never
	Next     health.Age     `json:"next,omitempty"`
	Turned   health.Age     `json:"turned,omitempty"`
	Compared health.Age     `json:"compared,omitempty"` // when members are compared next
	Mean     float64        `json:"mean,omitempty"`     // nanoseconds
	MeanNS   int64          `json:"mean_ns,omitempty"`  // by which failures are charged
	MeanAt   health.Age     `json:"mean_at,omitempty"`  // when a first one is looked for again, as failures wait for it
	HistAt   int            `json:"hist_at,omitempty"`
	Refused  uint64         `json:"refused,omitempty"` // requests for which everyone was full, since the last look
	Clients  SavedAddresses `json:"clients,omitzero"`
	Two      bool           `json:"two,omitempty"`
	Sums     []SavedSum     `json:"sums,omitempty"`
	Dark     SavedSum       `json:"dark,omitzero"` // when the last member that served went out
}

// SavedSum is the pool's traffic up to an instant.
type SavedSum struct {
	At   health.Age `json:"at,omitempty"`
	Good uint64     `json:"good,omitempty"`
	Bad  uint64     `json:"bad,omitempty"`
}

// Restored says what became of a Saved.
type Restored struct {
	Backends  int      // that know what they knew
	Unknown   int      // that the pool does not have
	Overrides int      // in force, or waiting for their backend to come back
	Refused   []string // what cannot be true, one line each; nothing of it was used
}

// WithoutClients returns a copy that holds nothing about clients.
func (s Saved) WithoutClients() Saved {
	s.Stats.Clients.First = 0
	list := make([]SavedBackend, len(s.Backends))
	for i, b := range s.Backends {
		b.Windows.Errors.First, b.Windows.Fails.First, b.Signs.Who.First, b.Slow.Who.First = 0, 0, 0, 0
		list[i] = b
	}
	s.Backends = list
	return s
}

// OnlyOverrides returns the part that does not grow old.
func (s Saved) OnlyOverrides() Saved { return Saved{Overrides: s.Overrides} }
