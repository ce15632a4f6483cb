// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
)

// world is what random configurations are made over: servers that answer with
// their own address, and an address where nobody listens.
type world struct {
	up   []string
	dead string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{}
	for range 6 {
		s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(out, r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		}))
		t.Cleanup(s.Close)
		w.up = append(w.up, s.Listener.Addr().String())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.dead = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return w
}

// configuration writes a random one.
func (w *world) configuration(rng *rand.Rand) string {
	var b strings.Builder
	b.WriteString("admin: {bind: \"127.0.0.1:0\"}\nlisteners:\n  web:\n    bind: \"127.0.0.1:0\"\n    routes:\n")
	pools := 1 + rng.IntN(3)
	for i := range 1 + rng.IntN(4) {
		fmt.Fprintf(&b, "      - {name: r%d, match: {", i)
		var match []string
		if rng.IntN(3) == 0 {
			match = append(match, fmt.Sprintf("host: %q", pick(rng, "a.org", "*.org", "b.org")))
		}
		switch rng.IntN(4) {
		case 0:
			match = append(match, "path: "+pick(rng, "/x", "/x/y", "/z"))
		case 1:
			match = append(match, "path_prefix: "+pick(rng, "/x", "/z", "/x/y"))
		}
		if rng.IntN(5) == 0 {
			match = append(match, "methods: ["+pick(rng, "GET", "POST")+"]")
		}
		if rng.IntN(5) == 0 {
			match = append(match, `headers: {X-Canary: "1"}`)
		}
		b.WriteString(strings.Join(match, ", ") + "}, ")
		if rng.IntN(8) == 0 {
			b.WriteString("respond: {code: 203}}\n")
			continue
		}
		fmt.Fprintf(&b, "pool: p%d}\n", rng.IntN(pools))
	}
	fmt.Fprintf(&b, "      - {name: last, match: {host: z.org}, pool: p0}\ncheck: {silence: [%s]}\npools:\n",
		"unused_pool, unreachable_route")
	for i := range pools {
		w.pool(&b, rng, i)
	}
	return b.String()
}

func (w *world) pool(b *strings.Builder, rng *rand.Rand, i int) {
	policy := pick(rng, "p2c", "round_robin", "random", "least_request", "peak_ewma", "ring_hash", "rendezvous", "maglev")
	fmt.Fprintf(b, "  p%d:\n    balance: %s\n    health: {active: off}\n", i, policy)
	if slices.Contains([]string{"ring_hash", "rendezvous", "maglev"}, policy) {
		fmt.Fprintf(b, "    hash: {key: [%s], bounded_load: %s}\n", pick(rng, "client_ip", `"header:X-User"`, "path"), pick(rng, "none", "1.25"))
	}
	b.WriteString("    backends:\n")
	servers := slices.Clone(w.up)
	rng.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	servers = servers[:1+rng.IntN(len(servers))]
	if rng.IntN(3) == 0 {
		servers[0] = w.dead
	}
	for _, s := range servers {
		fmt.Fprintf(b, "      - {url: \"http://%s\", weight: %d, priority: %d}\n", s, 1+rng.IntN(3), rng.IntN(2)*rng.IntN(2))
	}
}

func pick(rng *rand.Rand, of ...string) string { return of[rng.IntN(len(of))] }

// Explain and reality agree: over random configurations, states and requests what
// is explained is what a client then gets.
func TestExplainAgreesWithReality(t *testing.T) {
	w := newWorld(t)
	rng := rand.New(rand.NewPCG(6, 4))
	n := explainedConfigurations
	if raceEnabled {
		n = 60
	}
	seen := map[string]int{}
	for range n {
		text := w.configuration(rng)
		e, err := New(parse(t, text), Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		e.Start()
		client := &http.Client{Transport: &http.Transport{}}
		for range 4 {
			disturb(t, rng, e)
			ask(t, rng, e, client, w, text, seen)
		}
		client.CloseIdleConnections()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%v", seen)
	if most := 2 + n/100; seen["changed meanwhile"] > most {
		t.Errorf("too much changed meanwhile to say anything: %d, at most %d", seen["changed meanwhile"], most)
	}
	for _, what := range []string{"no route", "own answer", "named", "by chance", "redispatched", "refused"} {
		if seen[what] == 0 {
			t.Errorf("never happened: %s", what)
		}
	}
}

// disturb lets the operator say something about a backend.
func disturb(t *testing.T, rng *rand.Rand, e *Engine) {
	t.Helper()
	all := e.Pools()
	p := all[rng.IntN(len(all))]
	b := p.Members[rng.IntN(len(p.Members))]
	patch := admin.Patch{Admin: pick(rng, "enabled", "draining", "disabled")}
	if rng.IntN(3) == 0 {
		weight := uint32(rng.IntN(4))
		patch = admin.Patch{Weight: &weight}
	}
	if _, err := e.Patch(p.Name, b.ID, patch); err != nil {
		t.Fatal(err)
	}
}

// ask explains a request and then makes it.
func ask(t *testing.T, rng *rand.Rand, e *Engine, client *http.Client, w *world, text string, seen map[string]int) {
	t.Helper()
	front := e.Bound().Listeners[0].Addrs[0]
	q := admin.Question{
		URL: "http://" + front + pick(rng, "/", "/x", "/x/y", "/z", "/z/q?a=1", "/x//y"), Method: pick(rng, "GET", "GET", "POST"),
		Headers: admin.Lines{"Host: " + pick(rng, "a.org", "b.org", "c.net", "q.org"), "X-User: " + fmt.Sprint(rng.IntN(50))},
	}
	if rng.IntN(2) == 0 {
		q.Headers = append(q.Headers, "X-Canary: 1")
	}
	published := publications(e)
	x, err := e.Explain(q)
	if err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	r, err := http.NewRequestWithContext(context.Background(), q.Method, q.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range q.Headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		}
		r.Header.Set(name, value)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	switch what, wrong := compare(&x, resp.StatusCode, string(body), w.dead); {
	case wrong && publications(e) != published:
		seen["changed meanwhile"]++ // a new weight is published up to 100 ms later
	case wrong:
		t.Errorf("%s\n%+v\nanswered %d %q, explained %+v\npool %+v\n%s", what, q, resp.StatusCode, body, x, x.Pool, text)
	default:
		seen[what]++
	}
}

// publications counts how often pools have put a new membership into force.
func publications(e *Engine) (n uint64) {
	for _, p := range e.livePools() {
		n += p.pool.Snapshot().Publications
	}
	return n
}

// compare says what was seen, or what is wrong.
func compare(x *admin.Explanation, status int, served, dead string) (what string, wrong bool) {
	if a := x.Answer; a != nil {
		if a.Status != status {
			return "weir's own answer", true
		}
		if x.Route == "" {
			return "no route", false
		}
		return "own answer", false
	}
	if x.Pool == nil {
		return "neither an answer nor a pool", true
	}
	deadTried := slices.ContainsFunc(x.Pool.Candidates, func(c admin.ExplainedCandidate) bool { return c.ID == dead && c.Candidate })
	if status != http.StatusOK {
		switch {
		case len(x.Pool.Refused) == 1 && x.Pool.Refused[0].Part == 1 && status == http.StatusServiceUnavailable:
			return "refused", false
		case deadTried && status == http.StatusBadGateway:
			return "nobody but the dead one", false
		}
		return "an answer that was not explained", true
	}
	at := slices.IndexFunc(x.Pool.Candidates, func(c admin.ExplainedCandidate) bool { return c.ID == served })
	next := slices.ContainsFunc(x.Pool.Next, func(n admin.ExplainedChance) bool { return n.ID == served })
	elsewhere := next || slices.Contains(x.Pool.Kept, served)
	redispatched := deadTried && elsewhere
	switch {
	case at < 0 || !x.Pool.Candidates[at].Candidate && !redispatched:
		return "served by who is no candidate", true
	case x.Pool.Choice == served:
		return "named", false
	case x.Pool.Choice == "" && !redispatched:
		return "by chance", false
	case x.Pool.Choice == "" || x.Pool.Choice == dead && elsewhere:
		return "redispatched", false
	}
	return "named another", true
}

// TestExplainHidesSecrets: what a route sets is not told to whoever asks.
func TestExplainHidesSecrets(t *testing.T) {
	text := `listeners: {web: {bind: "127.0.0.1:0", routes: [{pool: app, request_headers: {set: {X-Api-Key: hunter, Authorization: "Bearer hunter", X-From: "${DB_PASSWORD}", X-Plain: seen}}}]}}
pools: {app: {backends: ["http://10.0.0.1:80"]}}
`
	plan, err := config.Parse("t.yaml", []byte(text), func(string) (string, bool) { return "hunter-2", true })
	if err != nil {
		t.Fatal(err)
	}
	x, err := ExplainPlan(plan, admin.Question{URL: "/"})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(x.Forwarded, "\n")
	if strings.Contains(got, "hunter") || strings.Count(got, ": ***") != 3 || !strings.Contains(got, "X-Plain: seen") || !strings.HasPrefix(got, "GET / HTTP/1.1\nHost: ") {
		t.Error(got)
	}
}

// A path alone is enough while there is one listener; of two it cannot tell.
func TestExplainPathOfTwoListeners(t *testing.T) {
	text := `listeners: {web: {bind: "127.0.0.1:8081", pool: app}, shop: {bind: "127.0.0.1:8082", pool: app}}
pools: {app: {backends: ["http://10.0.0.1:80"]}}
`
	plan, err := config.Parse("t.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{"/img/a.png": "a path alone says no port", "http://x:9/": "none is on that port"} {
		if _, err := ExplainPlan(plan, admin.Question{URL: url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}

// Where no listener is on the port, and one is answered for all the same, that is said.
func TestExplainAssumed(t *testing.T) {
	text := `listeners:
  web: {bind: "127.0.0.1:8081", pool: app}
  db: {bind: "127.0.0.1:5432", protocol: tcp, pool: db}
pools: {app: {backends: ["http://10.0.0.1:80"]}, db: {backends: ["tcp://10.0.0.2:5432"]}}
`
	plan, err := config.Parse("t.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		url, listener, on, want string
	}{
		{"http://shop.example/", "", "web", ""},
		{"http://shop.example:8081/", "", "web", ""},
		{"http://shop.example:81/", "", "web", "no listener that takes http:// is on port 81; this is the only one"},
		{"http://shop.example:5432/", "", "web", "no listener that takes http:// is on port 5432; this is the only one"},
		{"http://shop.example:81/", "web", "web", ""},
		{"tcp://db.example:5432", "", "db", ""},
		{"tcp://db.example:6380", "", "db", "no listener that takes tcp:// is on port 6380; this is the only one"},
	} {
		x, err := ExplainPlan(plan, admin.Question{URL: c.url, Listener: c.listener})
		if err != nil || x.Request.Listener != c.on || x.Assumed != c.want {
			t.Errorf("%s: listener %q, assumed %q, error %v", c.url, x.Request.Listener, x.Assumed, err)
		}
	}
}
