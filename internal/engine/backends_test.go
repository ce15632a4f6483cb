// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/discover"
	"github.com/weirlb/weir/internal/admin"
)

// refusedWith checks that an error is a problem of the code whose text holds all
// of want.
func refusedWith(t *testing.T, err error, status int, code string, want ...string) {
	t.Helper()
	var p *admin.Problem
	if !errors.As(err, &p) || p.Status != status || p.Code != code {
		t.Errorf("%v; want %d %s", err, status, code)
		return
	}
	for _, w := range want {
		if !strings.Contains(p.Detail, w) {
			t.Errorf("%q does not say %q", p.Detail, w)
		}
	}
}

func count32(n uint32) *uint32 { return &n }

// TestBackendAddedAndRemoved: a backend that is added takes work once it has
// proved itself, is shown with where it comes from, outlives a reload, and leaves
// without losing what it works on.
func TestBackendAddedAndRemoved(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	text := simple("    health: {active: {interval: 1s}}\n    slow_start: off\n", a)
	r := start(t, text)
	c := client(t)
	got, err := r.admin.AddBackend(t.Context(), "app", admin.NewBackend{URL: b.URL, Weight: count32(2), Zone: "eu-1a", ID: "b"})
	if err != nil || got.ID != "b" || got.Weight != 2 || got.Zone != "eu-1a" || got.Source != "api" || got.Added == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	eventually(t, "the new one serves", func() bool { return mustGet(t, c, r.front+"/").body == "b" })
	again, err := r.admin.AddBackend(t.Context(), "app", admin.NewBackend{URL: b.URL, Weight: count32(2), Zone: "eu-1a", ID: "b"})
	if err != nil || !again.Added.At.Equal(got.Added.At) {
		t.Fatalf("said again: %+v, %v", again, err)
	}
	if got, err = r.admin.AddBackend(t.Context(), "app", admin.NewBackend{URL: b.URL, ID: "b"}); err != nil || got.Weight != 1 || got.Zone != "" || got.Health != "healthy" {
		t.Fatalf("with other settings: %+v, %v", got, err)
	}
	if _, err := r.admin.Patch(t.Context(), "app", "b", admin.Patch{Weight: count32(3)}); err != nil {
		t.Fatal(err)
	}

	if _, err := r.Reload(parse(t, text), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err = r.admin.Backend(t.Context(), "app", "b"); err != nil || got.Source != "api" || got.Weight != 3 || got.Health != "healthy" {
		t.Fatalf("after a reload: %+v, %v", got, err)
	}
	if one, err := r.admin.Backend(t.Context(), "app", a.id()); err != nil || one.Source != "config" || one.Added != nil {
		t.Fatalf("%+v, %v", one, err)
	}

	// Two in flight, one of them on b: that one finishes.
	answers := make(chan answer, 4)
	for range 4 {
		go func() { got, _ := get(c, r.front+"/slow"); answers <- got }()
	}
	<-b.arrived
	left, err := r.admin.RemoveBackend(t.Context(), "app", "b", admin.Removal{Deadline: time.Minute})
	if err != nil || !left.Removed || left.InFlight == 0 || left.Drain == nil || left.Drain.DeadlineS < 50 || left.Source != "" {
		t.Fatalf("%+v, %v", left, err)
	}
	if left, err = r.admin.RemoveBackend(t.Context(), "app", "b", admin.Removal{Deadline: 2 * time.Minute}); err != nil || left.Drain.DeadlineS < 70 {
		t.Fatalf("a later deadline: %+v, %v", left, err)
	}
	for range 6 {
		if got := mustGet(t, c, r.front+"/"); got.body != "a" {
			t.Fatalf("it still gets work: %+v", got)
		}
	}
	close(a.release)
	close(b.release)
	for range 4 {
		if got := <-answers; got.status != 200 {
			t.Errorf("in flight: %+v", got)
		}
	}
	eventually(t, "it is gone", func() bool {
		_, err := r.admin.Backend(t.Context(), "app", "b")
		return err != nil
	})
	_, err = r.admin.RemoveBackend(t.Context(), "app", "b", admin.Removal{})
	refusedWith(t, err, 404, admin.CodeUnknownBackend)
	if got, err = r.admin.AddBackend(t.Context(), "app", admin.NewBackend{URL: b.URL, ID: "b"}); err != nil || got.Weight != 1 || got.Override != nil {
		t.Fatalf("the operator's word outlived the removal: %+v, %v", got, err)
	}
	for _, word := range []string{"backend added by the API", "backend changed by the API", "backend removed by the API"} {
		n := 0
		for _, ev := range r.Events(0) {
			if ev.Text == word && ev.Backend == "b" && ev.Pool == "app" && ev.Kind == "membership" {
				n++
			}
		}
		if n == 0 || !strings.Contains(r.log.String(), word) {
			t.Errorf("%q: %d events", word, n)
		}
	}
}

// TestRemovedByForce: what is in flight ends at once, and is counted as cut.
func TestRemovedByForce(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	defer close(a.release)
	defer close(b.release)
	r := start(t, simple("    slow_start: off\n", a))
	c := client(t)
	if _, err := r.admin.AddBackend(t.Context(), "app", admin.NewBackend{URL: b.URL}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new one serves", func() bool { return mustGet(t, c, r.front+"/").body == "b" })
	var ended sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	codes := make(chan int, 2)
	for range 2 {
		ended.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.front+"/slow", strings.NewReader("once"))
			res, err := c.Do(req)
			if err != nil {
				return
			}
			codes <- res.StatusCode
			_ = res.Body.Close()
		})
	}
	<-b.arrived
	<-a.arrived
	if left, err := r.admin.RemoveBackend(t.Context(), "app", b.id(), admin.Removal{Force: true}); err != nil || !left.Removed {
		t.Fatalf("%+v, %v", left, err)
	}
	select {
	case code := <-codes:
		if code < 500 {
			t.Errorf("cut with %d", code)
		}
	case <-time.After(limit):
		t.Error("it was not cut")
	}
	cancel()
	ended.Wait()
}

// TestBackendRefused: each refusal says what to do instead.
func TestBackendRefused(t *testing.T) {
	a := backend(t, "a")
	r := start(t, simple("", a))
	ctx := t.Context()
	_, err := r.admin.AddBackend(ctx, "nobody", admin.NewBackend{URL: "http://10.0.0.1:80"})
	refusedWith(t, err, 404, admin.CodeUnknownPool)
	_, err = r.admin.AddBackend(ctx, "app", admin.NewBackend{URL: "10.0.0.1:80", Weight: count32(2000)})
	refusedWith(t, err, 422, admin.CodeBadBackend, "has no scheme", "weight", "1000")
	_, err = r.admin.AddBackend(ctx, "app", admin.NewBackend{URL: a.URL})
	refusedWith(t, err, 409, admin.CodeConflict, "is in the configuration", "change it there")
	_, err = r.admin.RemoveBackend(ctx, "app", a.id(), admin.Removal{})
	refusedWith(t, err, 409, admin.CodeConflict, "is in the configuration", "weir drain app/"+a.id(), "reload")
	_, err = r.admin.RemoveBackend(ctx, "app", "nobody:1", admin.Removal{})
	refusedWith(t, err, 404, admin.CodeUnknownBackend)
	if _, err = r.admin.AddBackend(ctx, "app", admin.NewBackend{URL: "http://127.0.0.1:1", ID: "x", Weight: count32(0)}); err != nil {
		t.Fatal(err)
	}
	_, err = r.admin.AddBackend(ctx, "app", admin.NewBackend{URL: "http://127.0.0.1:2", ID: "x"})
	refusedWith(t, err, 409, admin.CodeConflict, "was added as http://127.0.0.1:1", "remove it first")
	plan := parse(t, simple("", a))
	plan.Admin.Bind = "127.0.0.1:39901"
	g := *r.gen.Load()
	g.Plan = plan
	r.gen.Store(&g)
	_, err = r.admin.AddBackend(ctx, "app", admin.NewBackend{URL: "http://127.0.0.1:39901"})
	refusedWith(t, err, 422, admin.CodeBadBackend, "the admin API")
}

// TestAddedYieldsToTheFile: an id that the file lists is the file's from then on,
// and one of a pool that has left does not come back with it.
func TestAddedYieldsToTheFile(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := start(t, simple("    slow_start: off\n", a))
	add := func() {
		t.Helper()
		if _, err := r.admin.AddBackend(t.Context(), "app", admin.NewBackend{URL: b.URL}); err != nil {
			t.Fatal(err)
		}
	}
	reload := func(text string) {
		t.Helper()
		if _, err := r.Reload(parse(t, text), ReloadOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	size := func(want int) {
		t.Helper()
		if p, err := r.admin.Pool(t.Context(), "app"); err != nil || p.Backends != want {
			t.Fatalf("%d backends, %v; want %d", p.Backends, err, want)
		}
	}
	add()
	size(2)
	reload(simple("    slow_start: off\n", a, b))
	size(2)
	if got, err := r.admin.Backend(t.Context(), "app", b.id()); err != nil || got.Source != "config" || !strings.Contains(r.log.String(), "is in the configuration now") {
		t.Fatalf("%+v, %v", got, err)
	}
	reload(simple("    slow_start: off\n", a))
	size(1)
	add()
	reload(strings.ReplaceAll(simple("", a), "app", "other"))
	if _, err := r.admin.Pool(t.Context(), "app"); err == nil {
		t.Fatal("the pool is still there")
	}
	reload(simple("", a))
	size(1)
}

// TestAddedBesideFound: of an id that both name the added one counts, and it may
// not be added while it is found.
func TestAddedBesideFound(t *testing.T) {
	e, p := finderRig(t, "{discover: {dns: {name: app.test, port: 80}}}")
	add := func(id string) error {
		_, _, err := e.AddBackend("app", []byte(fmt.Sprintf(`{"url":"http://%s"}`, id)))
		return err
	}
	if err := add("10.0.0.9:80"); err != nil || membersOf(p) != "10.0.0.9:80=1" {
		t.Fatal(err, membersOf(p)) // the first ones of its first configuration
	}
	p.found(discover.Finding{Endpoints: endpoints("10.0.0.1:80", "10.0.0.2:80", "10.0.0.9:80")})
	if got := membersOf(p); got != "10.0.0.1:80=0 10.0.0.2:80=0 10.0.0.9:80=1" || !strings.Contains(p.discovery().NotUsed, "added by the API") {
		t.Fatal(got, p.discovery().NotUsed)
	}
	if err := add("10.0.0.1:80"); !errors.Is(err, admin.ErrConflict) || !strings.Contains(err.Error(), "found by dns a+aaaa app.test port 80") {
		t.Fatal(err)
	}
	_, err := e.RemoveBackend("app", "10.0.0.1:80", admin.Removal{})
	if !errors.Is(err, admin.ErrConflict) || !strings.Contains(err.Error(), "remove it where it is found") {
		t.Fatal(err)
	}
	b, err := e.RemoveBackend("app", "10.0.0.9:80", admin.Removal{})
	if err != nil || !b.Removed || !b.Drain.Done || b.URL != "http://10.0.0.9:80" {
		t.Fatalf("%+v, %v", b, err)
	}
	p.found(discover.Finding{Endpoints: endpoints("10.0.0.1:80", "10.0.0.2:80", "10.0.0.9:80")})
	if got := membersOf(p); got != "10.0.0.1:80=0 10.0.0.2:80=0 10.0.0.9:80=0" {
		t.Fatal(got)
	}
	from := map[string]string{}
	for _, b := range p.view().Members {
		from[b.ID] = b.Source
	}
	if from["10.0.0.9:80"] != "discovery" {
		t.Error(from)
	}
}

// TestOperatorsWordOutsideTheSubset: what is said of a backend that only other
// balancers use is kept, and the answer says so.
func TestOperatorsWordOutsideTheSubset(t *testing.T) {
	e, p := finderRig(t, `{backends: ["http://10.0.0.1:80", "http://10.0.0.2:80", "http://10.0.0.3:80", "http://10.0.0.4:80"], subset: {size: 2, index: 0, count: 2}}`)
	in := membersOf(p)
	out := ""
	for _, id := range []string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"} {
		if !strings.Contains(in, id) {
			out = id
		}
	}
	b, err := e.Patch("app", out, admin.Patch{Admin: "draining", Weight: count32(5)})
	if err != nil || !b.OutsideSubset || b.Admin != "draining" || b.Weight != 5 || b.Override == nil || b.Override.ConfiguredWeight != 1 ||
		b.URL != "http://"+out || !strings.Contains(b.Why, "kept") || b.Source != "config" {
		t.Fatalf("%+v, %v", b, err)
	}
	if b, err = e.Patch("app", out, admin.Patch{Admin: "enabled", ResetWeight: true}); err != nil || b.Override != nil || b.Admin != "enabled" || b.Weight != 1 {
		t.Fatalf("%+v, %v", b, err)
	}
	if got := membersOf(p); got != in {
		t.Errorf("%s became %s", in, got)
	}
}

// TestAddedGoesAlong: what was added is there in the next process, with its age;
// what a state holds is believed no more than what a client sends.
func TestAddedGoesAlong(t *testing.T) {
	e, _ := finderRig(t, `{backends: ["http://10.0.0.1:80"]}`)
	if _, _, err := e.AddBackend("app", []byte(`{"url":"http://10.0.0.9:80","weight":4,"zone":"z","id":"nine","priority":3}`)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.AddBackend("app", []byte(`{"url":"https://10.0.0.8","backup":true}`)); err != nil {
		t.Fatal(err)
	}
	s, err := DecodeState(e.ExportState().Encode())
	if err != nil {
		t.Fatal(err)
	}
	s.Taken = s.Taken.Add(-time.Hour)
	s.Pools[0].Added = append(s.Pools[0].Added,
		AddedState{ID: "10.0.0.1:80", URL: "http://10.6.6.6:80", Weight: 1}, // is listed: the file decides
		AddedState{ID: "admin", URL: "http://127.0.0.1:39901", Weight: 1},
		AddedState{ID: "bad", URL: "ftp://10.0.0.7", Weight: 1},
		AddedState{ID: "nine", URL: "http://10.6.6.6:80", Weight: 1}, // a second one
	)
	next, p := finderRig(t, `{backends: ["http://10.0.0.1:80"]}`)
	next.gen.Load().Plan.Status.Bind = "127.0.0.1:39901" // as if it were bound
	report := next.RestoreState(s)
	if len(report.Refused) != 2 {
		t.Errorf("%q", report.Refused)
	}
	if got := membersOf(p); got != "10.0.0.1:80=1 10.0.0.8:443=0 nine=0" {
		t.Fatal(got)
	}
	for _, b := range p.view().Members {
		switch b.ID {
		case "nine":
			if b.URL != "http://10.0.0.9:80" || b.Weight != 4 || b.Zone != "z" || b.Source != "api" || b.Added.AgeS < 3599 || b.Added.AgeS > 3660 {
				t.Errorf("%+v %+v", b, b.Added)
			}
		case "10.0.0.8:443":
			if !b.Backup || b.URL != "https://10.0.0.8:443" {
				t.Errorf("%+v", b)
			}
		case "10.0.0.1:80":
			if b.Source != "config" || b.URL != "http://10.0.0.1:80" {
				t.Errorf("%+v", b)
			}
		}
	}
	if report := next.RestoreState(s); membersOf(p) != "10.0.0.1:80=1 10.0.0.8:443=0 nine=0" || len(report.Refused) != 2 {
		t.Errorf("again: %s", membersOf(p))
	}
}

// TestLearnedIdleIsTold: the operator hears once when a backend closes idle
// connections, it is shown, and the next process knows it, too.
func TestLearnedIdleIsTold(t *testing.T) {
	r := build(t, simple("", backend(t, "a")))
	p := r.pools["app"]
	s := p.pool.Snapshot()
	b := targetOf(s.Backends[0].Backend)
	b.up.Teach(4990*time.Millisecond, 0)
	b.learned(4990 * time.Millisecond)
	if got := p.view().Members[0].LearnedIdleS; got != 4.99 {
		t.Error(got)
	}
	want := "backend closes idle connections after about 5s; weir's keepalive is 55s: weir now closes its own before that"
	if !strings.Contains(r.log.String(), want) || !strings.Contains(r.Events(0)[len(r.Events(0))-1].Text, want) {
		t.Error("it is not told")
	}
	state, err := DecodeState(r.ExportState().Encode())
	if err != nil {
		t.Fatal(err)
	}
	next := build(t, simple("", backend(t, "b"))) // another address: another backend
	next.RestoreState(state)
	if got := next.pools["app"].view().Members[0].LearnedIdleS; got != 0 {
		t.Error(got)
	}
	plan := r.gen.Load().Plan
	again, err := New(plan, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	again.RestoreState(state)
	if got := again.pools["app"].view().Members[0].LearnedIdleS; got != 4.99 {
		t.Error(got)
	}
	state.Taken = state.Taken.Add(-2 * time.Hour)
	old, err := New(plan, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()
	old.RestoreState(state)
	if got := old.pools["app"].view().Members[0].LearnedIdleS; got != 0 {
		t.Error(got)
	}
}

// TestNobodyIsAddedDuringAnUpgrade: what a successor would not know of is refused.
func TestNobodyIsAddedDuringAnUpgrade(t *testing.T) {
	a := backend(t, "a")
	r := start(t, simple("", a))
	if _, err := r.admin.AddBackend(t.Context(), "app", admin.NewBackend{URL: "http://127.0.0.1:1", ID: "x"}); err != nil {
		t.Fatal(err)
	}
	r.upgrade.freeze.Lock()
	r.upgrade.frozen = fmt.Errorf("%w: test", admin.ErrUpgrading)
	r.upgrade.freeze.Unlock()
	_, err := r.admin.AddBackend(t.Context(), "app", admin.NewBackend{URL: "http://127.0.0.1:2"})
	refusedWith(t, err, 409, admin.CodeUpgrading)
	_, err = r.admin.RemoveBackend(t.Context(), "app", "x", admin.Removal{})
	refusedWith(t, err, 409, admin.CodeUpgrading)
}

// TestAddedWaitsForTheFirstAnswer: after a restart, what was added does not come
// before the backends that the pool's source finds first, which would then be
// newcomers beside it; a source that fails does not keep it out.
func TestAddedWaitsForTheFirstAnswer(t *testing.T) {
	state := State{Version: stateVersion, Taken: time.Now().Add(-time.Hour), Pools: []PoolState{{
		Name: "app", Added: []AddedState{{ID: "nine", URL: "http://10.0.0.9:80", Weight: 1}},
	}}}
	for _, c := range []struct {
		first discover.Finding
		want  string
	}{
		{discover.Finding{Endpoints: endpoints("10.0.0.1:80", "10.0.0.2:80")}, "10.0.0.1:80=1 10.0.0.2:80=1 nine=1"},
		{discover.Finding{Err: errors.New("SERVFAIL")}, "nine=1"},
	} {
		e, p := finderRig(t, "{discover: {dns: {name: app.test, port: 80}}}")
		if report := e.RestoreState(state); len(report.Refused) > 0 {
			t.Error(report.Refused)
		}
		if got := membersOf(p); got != "" || !p.undiscovered() {
			t.Errorf("before the first answer: %s", got)
		}
		p.found(c.first)
		if got := membersOf(p); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}
