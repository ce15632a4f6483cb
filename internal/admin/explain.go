// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Explainer is a Controller that can say what would become of a request, a session
// or a flow.
type Explainer interface {
	// Explain takes a request apart without sending it anywhere. What cannot be
	// understood is an ErrBadQuestion.
	Explain(Question) (Explanation, error)
	// Failures returns the last requests that failed, of one pool or of all
	// ("") . An unknown pool is ErrUnknownPool.
	Failures(pool string) (Failures, error)
}

// ErrBadQuestion is returned for a request that cannot be explained.
var ErrBadQuestion = errors.New("cannot be explained")

// Question is a request to explain, or a session or flow by a URL of tcp or udp.
type Question struct {
	Listener string `json:"listener,omitempty"` // empty: by the URL's port and scheme
	Method   string `json:"method,omitempty"`   // empty: GET
	URL      string `json:"url"`                // absolute, or a path; tcp://HOST:PORT, udp://HOST:PORT
	Headers  Lines  `json:"headers,omitempty"`
	Client   string `json:"client,omitempty"` // address of the TCP peer; empty: 127.0.0.1
	// SNI is the server name that the client asks for in TLS, and none where it asks
	// for none; empty: the host of the URL. Without TLS it means nothing.
	SNI string `json:"sni,omitempty"`
	// ALPN are the protocols that it offers there, of which a listener that routes by
	// name may make something; nil: h2 and http/1.1.
	ALPN []string `json:"alpn,omitempty"`
}

// Lines are field lines, "Name: value". As JSON they are a list of those, or an
// object of names with a value, or a list of values, each.
type Lines []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *Lines) UnmarshalJSON(text []byte) error {
	var list []string
	if json.Unmarshal(text, &list) == nil {
		*l = list
		return nil
	}
	var by map[string]json.RawMessage
	if err := json.Unmarshal(text, &by); err != nil {
		return errors.New(`headers are ["Name: value"] or {"Name": "value"}`)
	}
	names := make([]string, 0, len(by))
	for name := range by {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		var values []string
		var one string
		switch {
		case json.Unmarshal(by[name], &one) == nil:
			values = []string{one}
		case json.Unmarshal(by[name], &values) != nil:
			return fmt.Errorf("the value of header %s is a text or a list of texts", name)
		}
		for _, v := range values {
			*l = append(*l, name+": "+v)
		}
	}
	return nil
}

// Explanation is a request taken apart. What is absent did not come into it.
type Explanation struct {
	Source string `json:"source"` // "running", or the file it was read from
	// Protocol is what the listener takes: http is requests, tcp and sni are sessions,
	// udp is flows of datagrams.
	Protocol   string   `json:"protocol"`
	Generation uint64   `json:"generation,omitempty"`
	Request    Question `json:"request"` // with defaults filled in
	// Assumed says why the listener was chosen although the URL's port is none of its;
	// empty: it was named, or is on that port.
	Assumed   string          `json:"assumed,omitempty"`
	Client    string          `json:"client,omitempty"`
	Believed  bool            `json:"client_from_headers,omitempty"` // the peer is a trusted proxy
	Through   *ExplainedFront `json:"through,omitempty"`             // the sni listener that leads to Request.Listener; absent: clients connect there
	Answer    *OwnAnswer      `json:"answer,omitempty"`              // weir answers itself
	Routes    []RouteVerdict  `json:"routes,omitempty"`              // in the order in which they are tried
	Route     string          `json:"route,omitempty"`               // the chosen one
	Forwarded []string        `json:"forwarded,omitempty"`           // request line and fields as a backend gets them
	Pool      *ExplainedPool  `json:"pool,omitempty"`
	Failing   *ExplainedRetry `json:"on_failure,omitempty"`
	Limit     *ExplainedLimit `json:"route_limit,omitempty"`
}

// ExplainedFront is a listener whose route has another one end TLS and go on.
type ExplainedFront struct {
	Listener string         `json:"listener"`
	Routes   []RouteVerdict `json:"routes"` // in the order in which they are tried
	Route    string         `json:"route"`  // the chosen one
}

// OwnAnswer is an answer that weir gives itself.
type OwnAnswer struct {
	Status int    `json:"status,omitempty"`
	Reason string `json:"reason,omitempty"` // as in the access log
	Words  string `json:"words"`
}

// RouteVerdict is what became of one route.
type RouteVerdict struct {
	Name   string `json:"name"`
	Match  string `json:"match"` // in words
	Chosen bool   `json:"chosen"`
	// Why says why it was not chosen: host, path, method, "header NAME", or
	// "earlier" when it would match and another comes first.
	Why string `json:"why,omitempty"`
}

// ExplainedLimit is a route's bulkhead.
type ExplainedLimit struct {
	InFlight int64 `json:"in_flight"`
	Most     int64 `json:"most"`
}

// ExplainedPool says who would get the request, and why.
type ExplainedPool struct {
	Name      string   `json:"name"`
	Balance   string   `json:"balance"`
	Panic     bool     `json:"panic"`
	PanicWhy  string   `json:"panic_why,omitempty"`
	Key       string   `json:"key,omitempty"`      // what the key is made of, when the policy divides by keys
	KeyHash   string   `json:"key_hash,omitempty"` // absent: the request has no key
	Reasoning []string `json:"reasoning"`          // the policy's, one sentence each
	// Tiers are those that take work, in the order in which they are asked; absent
	// when there is one, without zones.
	Tiers      []ExplainedTier      `json:"tiers,omitempty"`
	Order      []ExplainedStep      `json:"key_order,omitempty"` // the key's own order as far as it is followed
	Candidates []ExplainedCandidate `json:"backends"`
	Refused    []ExplainedRefusal   `json:"refused,omitempty"`
	// Choice is the backend that gets the request when no chance is in it.
	Choice string `json:"choice,omitempty"`
	// Draws is how many picks the chances were counted over; 1: no chance is in it.
	Draws int               `json:"draws"`
	After string            `json:"after,omitempty"` // the backend whose failure next is about
	Next  []ExplainedChance `json:"next,omitempty"`
	// Kept are the other candidates to which a connection is open and idle. A request
	// without a key of which nothing was sent goes to one of them rather than to a
	// next backend without.
	Kept []string `json:"kept,omitempty"`
}

// ExplainedTier is one tier.
type ExplainedTier struct {
	Name   string          `json:"name"`
	Chance float64         `json:"chance"` // that it is asked first
	Panic  bool            `json:"panic"`
	Zones  []ExplainedZone `json:"zones,omitempty"`
}

// ExplainedZone is one zone of a tier.
type ExplainedZone struct {
	Name   string  `json:"name"`
	Chance float64 `json:"chance"` // that it is asked first, of the tier's requests
}

// ExplainedStep is one place where a key looks.
type ExplainedStep struct {
	Backend string `json:"backend"`
	Place   string `json:"place"`
	Verdict string `json:"verdict"` // taken, compared, or why the key goes on
	Why     string `json:"why,omitempty"`
}

// ExplainedCandidate is one backend of the pool.
type ExplainedCandidate struct {
	ID        string  `json:"id"`
	Candidate bool    `json:"candidate"`     // it may get the request
	Why       string  `json:"why,omitempty"` // what keeps it from it, or stands against it, in a word
	Chance    float64 `json:"chance"`        // of getting it
	Tier      string  `json:"tier,omitempty"`
	Zone      string  `json:"zone,omitempty"`
	Source    string  `json:"source,omitempty"` // config, api, discovery
	Weight    uint32  `json:"weight"`
	Admin     string  `json:"admin"`
	Health    string  `json:"health"`
	Share     float64 `json:"share"`
	Reason    string  `json:"reason,omitempty"` // what binds the share
	Cause     string  `json:"cause,omitempty"`  // of the state, in words
	Load      float64 `json:"load"`             // in flight, and what failed attempts still count
	InFlight  int64   `json:"in_flight"`
	Tunnels   int64   `json:"tunnels,omitempty"` // of InFlight, open tunnels
	Limit     int64   `json:"limit,omitempty"`
	LatencyMS float64 `json:"latency_ms,omitempty"` // what peak_ewma knows
	Factor    float64 `json:"factor,omitempty"`     // how many times as slow as the mean that counts
}

// ExplainedRefusal is the part of such requests that is refused.
type ExplainedRefusal struct {
	Reason string  `json:"reason"`
	Part   float64 `json:"part"`
	Words  string  `json:"words"`
}

// ExplainedChance is a backend and its chance.
type ExplainedChance struct {
	ID     string  `json:"id"`
	Chance float64 `json:"chance"`
}

// ExplainedRetry is what the route does about failed attempts.
type ExplainedRetry struct {
	Attempts int     `json:"attempts"` // every try, the first included
	WithinS  float64 `json:"within_s,omitempty"`
	// LeastS is what must be left of the request's time: the fastest tenth of the
	// pool's answers takes that long. 0: unknown, or the request has all time.
	LeastS     float64         `json:"least_s,omitempty"`
	Replayable bool            `json:"replayable"`                // method and fields allow a retry after bytes were sent
	KeyField   string          `json:"idempotency_key,omitempty"` // the request field that allows it for any method
	BudgetLeft float64         `json:"budget_left"`               // part of the retry budget
	Cases      []ExplainedCase `json:"cases"`
	Hedge      *ExplainedHedge `json:"hedge,omitempty"` // nil: off
}

// ExplainedHedge is the second attempt beside one without an answer.
type ExplainedHedge struct {
	AfterS  float64 `json:"after_s,omitempty"` // 0: the pool's latency is not known yet
	Percent int     `json:"percent,omitempty"` // of the pool's answers; 0: AfterS is configured
	May     bool    `json:"may"`               // the method allows it
}

// ExplainedCase is one way to fail.
type ExplainedCase struct {
	Failure string `json:"failure"` // as in the access log, or "answer 502"
	Then    string `json:"then"`    // redispatch, retry, or why not: attempts, budget, not_replayable, not_listed, none_better
}

// Failures are the last requests that failed.
type Failures struct {
	Pools    []PoolFailures     `json:"pools"`
	Meanings map[string]Meaning `json:"meanings"` // of the reasons among them; see OfTunnel and those beside it
}

// PoolFailures are those of one pool.
type PoolFailures struct {
	Pool     string            `json:"pool"`                   // empty: no route matched
	Failed   uint64            `json:"failed"`                 // by weir or a backend (5xx, or cut after its status), since the start; upgrades go on counting
	Faults   uint64            `json:"client_faults"`          // by their client (4xx, 499, answers not taken), since the start
	Missed   uint64            `json:"not_remembered"`         // because others were noted at the same moment
	Requests []json.RawMessage `json:"requests"`               // the last, oldest first, as in the access log
	Backends map[string]string `json:"backends_now,omitempty"` // health and share of those that failed
	Away     map[string]string `json:"away_now,omitempty"`     // of those that take nothing now, where requests found nobody
}

// What stands behind a reason in Failures.Meanings where a tunnel, a session, or a
// flow of datagrams that ended with it has another meaning than a request.
const (
	OfTunnel  = " of a tunnel"
	OfSession = " of a session"
	OfFlow    = " of a flow"
)

// Meaning says what a reason means.
type Meaning struct {
	What string `json:"what"`
	Look string `json:"look"`
}

func (a api) registerExplain(mux *http.ServeMux) {
	x, ok := a.ctl.(Explainer)
	if !ok {
		return
	}
	mux.Handle("/api/v1/explain", only(func(w http.ResponseWriter, r *http.Request) { explain(x, w, r) }, http.MethodPost))
	mux.Handle("/api/v1/failures", only(func(w http.ResponseWriter, r *http.Request) {
		f, err := x.Failures(r.URL.Query().Get("pool"))
		if err != nil {
			refused(w, err)
			return
		}
		writeJSON(w, f)
	}, http.MethodGet))
}

func explain(x Explainer, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		problem(w, http.StatusRequestEntityTooLarge, CodeBadBody, "the body could not be read: "+err.Error())
		return
	}
	var q Question
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		problem(w, http.StatusBadRequest, CodeBadBody, "the body is not the expected JSON object: "+err.Error())
		return
	}
	e, err := x.Explain(q)
	switch {
	case errors.Is(err, ErrBadQuestion):
		problem(w, http.StatusUnprocessableEntity, CodeBadQuestion, strings.TrimPrefix(err.Error(), ErrBadQuestion.Error()+": "))
	case err != nil:
		refused(w, err)
	default:
		writeJSON(w, e)
	}
}

// Explain asks what would become of a request.
func (c *Client) Explain(ctx context.Context, q Question) (e Explanation, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return e, err
	}
	err = c.do(ctx, http.MethodPost, "/api/v1/explain", body, &e)
	return e, err
}

// Failures asks for the last requests that failed; pool "" means all.
func (c *Client) Failures(ctx context.Context, pool string) (f Failures, err error) {
	path := "/api/v1/failures"
	if pool != "" {
		path += "?pool=" + url.QueryEscape(pool)
	}
	err = c.do(ctx, http.MethodGet, path, nil, &f)
	return f, err
}
