// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/discover"
	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/weirtest"
)

// another builds a process for a plan that one has already; it is not started.
func another(t *testing.T, plan *config.Plan) *running {
	t.Helper()
	r := &running{log: &logBuffer{}}
	var err error
	r.Engine, err = New(plan, Options{Version: "next", Logger: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			t.Log(r.log)
		}
	})
	return r
}

func (r *running) member(t *testing.T, id string) admin.Backend {
	t.Helper()
	for _, b := range r.pools["app"].view().Members {
		if b.ID == id {
			return b
		}
	}
	t.Fatalf("no backend %s", id)
	return admin.Backend{}
}

func travels(t *testing.T, s State) State {
	t.Helper()
	got, err := DecodeState(s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestStateGoesAlong: the next process knows what this one knew, and serves the
// configuration after this one's.
func TestStateGoesAlong(t *testing.T) {
	a, b, c := backend(t, "a"), backend(t, "b"), backend(t, "c")
	r := start(t, simple("", a, b, c))
	eventually(t, "all proven", func() bool {
		return r.member(t, a.id()).Health == "healthy" && r.member(t, b.id()).Health == "healthy" && r.member(t, c.id()).Health == "healthy"
	})
	if _, err := r.Patch("app", a.id(), admin.Patch{Admin: "draining"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Patch("app", b.id(), admin.Patch{Weight: count32(7)}); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		mustGet(t, client(t), r.front+"/")
	}
	plan := r.gen.Load().Plan
	for range 2 {
		if _, err := r.Reload(plan, ReloadOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	state := travels(t, r.ExportState())
	state.Taken = state.Taken.Add(-2 * time.Second)

	next := another(t, plan)
	report := next.RestoreState(state)
	if report.Pools != 1 || report.Backends != 3 || report.Overrides != 2 || report.Unknown != 0 || report.Stale || len(report.Refused) > 0 || report.Generation != 4 {
		t.Errorf("%+v", report)
	}
	if s := next.Status(); s.Generation != 4 || !s.Ready && s.NotReady == nil {
		t.Errorf("generation %d", s.Generation)
	}
	if !next.pools["app"].pool.Ready() {
		t.Error("not ready at once, though all is known")
	}
	for _, id := range []string{a.id(), b.id(), c.id()} {
		was, is := r.member(t, id), next.member(t, id)
		if is.Health != was.Health || is.Admin != was.Admin || is.Weight != was.Weight || is.Flips != was.Flips ||
			is.Requests != was.Requests || is.LastCheck == nil || len(is.History) != len(was.History) || is.SlowStartLeftS != 0 {
			t.Errorf("was %+v\nis  %+v", was, is)
		}
		if (was.Override == nil) != (is.Override == nil) || was.Override != nil && is.Override.AgeS < was.Override.AgeS+1 {
			t.Errorf("override was %+v, is %+v", was.Override, is.Override)
		}
	}
	next.Start()
	if s := next.RestoreState(state); len(s.Refused) != 1 || s.Backends != 0 {
		t.Errorf("restored after the start: %+v", s)
	}
}

// TestStateTellsOfNewcomersOnly: the next process remembers what failed and what
// happened, and does not tell again of backends that were there before.
func TestStateTellsOfNewcomersOnly(t *testing.T) {
	a, b, c := backend(t, "a"), backend(t, "b"), backend(t, "c")
	r := start(t, strings.Replace(simple("", a, b), "pool: app}", "routes: [{match: {path: /}, pool: app}]}", 1))
	mustGet(t, client(t), r.front+"/nowhere")
	eventually(t, "it is remembered, and so are the backends", func() bool {
		return len(r.failures.Last("")) == 1 && strings.Contains(toldOf(r, "added"), b.id())
	})
	state := r.handedState()
	if disk := state.forDisk(); disk.Failures != nil || bytes.Contains(r.ExportState().forDisk().Encode(), []byte("nowhere")) {
		t.Error("what failed for whom goes to a disk")
	}
	next := another(t, parse(t, simple("", a, b, c)))
	next.RestoreState(travels(t, state))
	next.Start()
	eventually(t, "the newcomer is told of", func() bool { return strings.Contains(toldOf(next, "added"), c.id()) })
	eventually(t, "the newcomer is proven", func() bool { return next.member(t, c.id()).Health == "healthy" })
	for _, s := range []*server{a, b, c} {
		if n := strings.Count(toldOf(next, "added"), s.id()); n != 1 {
			t.Errorf("%s is told of as added %d times", s.name, n)
		}
	}
	for _, s := range []*server{a, b} {
		if n := strings.Count(toldOf(next, "state_changed"), s.id()); n > 1 {
			t.Errorf("%s became healthy %d times", s.name, n)
		}
	}
	if f := next.failures.Last(""); len(f) != 1 || f[0].Faults != 1 || !bytes.Contains(f[0].Lines[0], []byte("/nowhere")) {
		t.Errorf("what failed before: %+v", f)
	}
	// One that leaves and comes back was added.
	for _, text := range []string{simple("", b, c), simple("", a, b, c)} {
		if err := next.Apply(parse(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "its return is told of", func() bool { return strings.Count(toldOf(next, "added"), a.id()) == 2 })
}

// toldOf is what events of a kind say, and of whom.
func toldOf(r *running, kind string) string {
	var b strings.Builder
	for _, e := range r.events.since(0) {
		if e.Kind == kind {
			b.WriteString(e.Backend + ": " + e.Text + "\n")
		}
	}
	return b.String()
}

// TestStateTooOld: after five minutes the operator's word alone counts. What a
// clock that was wrong says of the age is not believed.
func TestStateTooOld(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a, b))
	eventually(t, "proven", func() bool { return r.member(t, a.id()).Health == "healthy" })
	if _, err := r.Patch("app", a.id(), admin.Patch{Admin: "disabled"}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		age   time.Duration
		stale bool
	}{
		"young": {4 * time.Minute, false}, "old": {6 * time.Minute, true}, "years": {9 * 365 * 24 * time.Hour, true},
		"set back": {-time.Minute, false}, "of the future": {-24 * time.Hour, true},
	} {
		state := travels(t, r.ExportState())
		state.Taken = state.Taken.Add(-c.age)
		next := another(t, r.gen.Load().Plan)
		report := next.RestoreState(state)
		if report.Stale != c.stale || report.Overrides != 1 || (report.Backends == 0) != c.stale {
			t.Errorf("%s: %+v", name, report)
		}
		if m := next.member(t, a.id()); m.Admin != "disabled" || m.Override == nil || (m.Health == "unproven") != c.stale {
			t.Errorf("%s: %+v", name, m)
		} else if (name == "young" || name == "old") && m.Override.AgeS < c.age.Seconds() { // older than this process
			t.Errorf("%s: the operator's word of %v ago is %gs old", name, c.age, m.Override.AgeS)
		}
	}
}

// TestStateOfAnotherConfiguration applies to what it names, and no more.
func TestStateOfAnotherConfiguration(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("", a, b))
	state := travels(t, r.ExportState())
	state.Pools = append(state.Pools, PoolState{Name: "other"})
	next := another(t, parse(t, simple("", a)))
	if report := next.RestoreState(state); report.Backends != 1 || report.Unknown != 2 || len(report.Refused) != 0 {
		t.Errorf("%+v", report)
	}
}

// TestStateTickets: TLS sessions of one process go on in the next.
func TestStateTickets(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	cert, key := ca.Write(dir, "a", ca.Issue("a.test"))
	r := start(t, fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", tls: {certificates: [{cert: %q, key: %q}]}, pool: app}}
pools: {app: {backends: ["%s"]}}
`, cert, key, backend(t, "a").URL))
	c := &tls.Config{RootCAs: ca.Pool(), ServerName: "a.test", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	hello := func(r *running) bool {
		t.Helper()
		conn, err := tls.Dial("tcp", r.Bound().Listeners[0].Addrs[0], c)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(conn); err != nil {
			t.Fatal(err)
		}
		return conn.ConnectionState().DidResume
	}
	hello(r)
	state := r.ExportState()
	if len(state.Tickets) != 1 || len(state.forDisk().Tickets) != 0 || bytes.Contains(state.forDisk().Encode(), []byte("tickets")) {
		t.Error("ticket keys belong into the handover, and nowhere else")
	}
	next := another(t, r.gen.Load().Plan)
	next.RestoreState(travels(t, state))
	next.Start()
	if !hello(next) {
		t.Error("does not resume")
	}
}

// TestFoundGoesAlong: whom discovery has found is there from the beginning; an old
// answer only where the source does not answer.
func TestFoundGoesAlong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backends.yaml")
	text := `{discover: {file: "` + file + `"}}`
	r, p := finderRig(t, text)
	p.found(discover.Finding{Endpoints: []discover.Endpoint{
		{ID: "one", URL: "http://10.0.0.1:80", Weight: 3, Zone: "z"}, {ID: "two", URL: "http://10.0.0.2:80", Weight: 1, Backup: true},
	}})
	want := membersOf(p)
	state := travels(t, r.ExportState())

	next, q := finderRig(t, text)
	if report := next.RestoreState(state); membersOf(q) != want || q.undiscovered() || report.Backends != 2 {
		t.Errorf("%s, want %s; %+v", membersOf(q), want, report)
	}
	if b := q.view().Members[0]; b.Source != admin.SourceDiscovery || b.Zone != "z" {
		t.Errorf("%+v", b)
	}
	if got := q.discovery(); got.Found != 2 || got.LastAnswer == nil || time.Since(*got.LastAnswer) > time.Minute {
		t.Errorf("%+v", got)
	}

	other, q := finderRig(t, `{discover: {file: "`+file+`.other"}}`)
	if other.RestoreState(state); membersOf(q) != "" {
		t.Errorf("of another source: %s", membersOf(q))
	}

	state.Taken = state.Taken.Add(-time.Hour)
	for name, c := range map[string]struct {
		first discover.Finding
		want  string
	}{
		"fails":   {discover.Finding{Err: errors.New("no answer")}, want},
		"empty":   {discover.Finding{Err: discover.ErrEmpty}, want},
		"answers": {discover.Finding{Endpoints: []discover.Endpoint{{ID: "new", URL: "http://10.0.0.9:80", Weight: 1}}}, "new=1"}, // the first that it has
	} {
		late, q := finderRig(t, text)
		if late.RestoreState(state); membersOf(q) != "" {
			t.Errorf("an hour later: %s", membersOf(q))
		}
		if q.found(c.first); membersOf(q) != c.want {
			t.Errorf("%s: %s, want %s", name, membersOf(q), c.want)
		}
		q.found(discover.Finding{Endpoints: []discover.Endpoint{{ID: "new", URL: "http://10.0.0.9:80", Weight: 1}}})
		q.found(discover.Finding{Endpoints: []discover.Endpoint{{ID: "new", URL: "http://10.0.0.9:80", Weight: 1}}})
		if !strings.HasPrefix(membersOf(q), "new=") || strings.Contains(membersOf(q), " ") {
			t.Errorf("%s: then %s", name, membersOf(q))
		}
	}
	state.Taken = state.Taken.Add(-24 * time.Hour)
	late, q := finderRig(t, text)
	late.RestoreState(state)
	if q.found(discover.Finding{Err: errors.New("no answer")}); membersOf(q) != "" {
		t.Errorf("a day later: %s", membersOf(q))
	}
}

// TestDecodeState: fields of later versions are ignored, another form is refused.
func TestDecodeState(t *testing.T) {
	s := State{Version: stateVersion, Weir: "1", Taken: time.Now().Round(0), Generation: 3, Pools: []PoolState{{Name: "app"}},
		Tickets: []TicketState{{"web", []listen.TicketKey{{Key: []byte("k"), Age: 1}}}}}
	got := travels(t, s)
	if !got.Taken.Equal(s.Taken) {
		t.Error(got.Taken)
	}
	got.Taken = s.Taken
	if !reflect.DeepEqual(got, s) {
		t.Errorf("%+v", got)
	}
	if !bytes.HasPrefix(s.Encode(), stateMark) {
		t.Error("a state file would not be known again")
	}
	if _, err := DecodeState([]byte(`{"version":1,"later":{"x":1},"pools":[{"name":"app","core":{"later":[]}}]}`)); err != nil {
		t.Error(err)
	}
	if _, err := DecodeState([]byte(`{"version":2}`)); !errors.Is(err, ErrStateVersion) {
		t.Error(err)
	}
	for _, text := range []string{"", "x", "[]", `{"version":1`, `{"version":1,"pools":3}`, `{"version":1,"taken":"yesterday"}`} {
		if _, err := DecodeState([]byte(text)); err == nil || errors.Is(err, ErrStateVersion) && text != "" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzState gives a process whatever bytes it may be handed.
func FuzzState(f *testing.F) {
	plan, err := config.Parse("test.yaml", []byte(`{admin: off, log: {access: off}, listeners: {web: {bind: "127.0.0.1:0", pool: app}},
pools: {app: {backends: ["http://10.0.0.1:80"]}, far: {discover: {file: "/none"}}}}`), func(string) (string, bool) { return "", false })
	if err != nil {
		f.Fatal(err)
	}
	e, err := New(plan, Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = e.Close() })
	seed := e.ExportState()
	seed.Pools[0].Added = []AddedState{{ID: "x", URL: "http://10.0.0.2:80", Weight: 1}}
	seed.Pools[1].Found = &FoundState{Source: plan.Pools[1].Discover.String(), Members: []AddedState{{ID: "y", URL: "http://10.0.0.3:80"}}}
	seed.Tickets = []TicketState{{"web", []listen.TicketKey{{Key: make([]byte, 32)}}}}
	f.Add(seed.Encode())
	f.Add([]byte(`{"version":1,"taken":"9999-01-01T00:00:00Z","generation":18446744073709551615}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := DecodeState(text)
		if err != nil {
			return
		}
		e.RestoreState(s)
		again := e.ExportState()
		if _, err := DecodeState(again.Encode()); err != nil {
			t.Fatal(err)
		}
		if n := e.gen.Load().Number; n == 0 {
			t.Fatal("generation 0")
		}
	})
}
