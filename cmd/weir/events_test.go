// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// eventDay is the day of the events in tests.
var eventDay = time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)

// eventServer answers like a weir that remembers three events, and has two to come:
// it ends the feed between them, as one does that is replaced.
func eventServer(t *testing.T) string {
	t.Helper()
	list := []admin.Event{
		{Seq: 4, At: eventDay, Kind: "state_changed", Pool: "app", Backend: "a:1", Text: "unproven -> healthy: probe passed"},
		{Seq: 5, At: eventDay.Add(time.Hour), Kind: "panic_began", Pool: "shop", Text: "panic began"},
		{Seq: 6, At: eventDay.Add(2 * time.Hour), Kind: "reloaded", Text: "generation 2 serves"},
	}
	asked := 0
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/pools/{pool}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprintf(w, `{"status":404,"code":"unknown_pool","detail":"no such pool: %s"}`, r.PathValue("pool"))
	})
	mux.HandleFunc("/api/v1/events", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("follow") == "0" {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{"epoch": "e", "events": list})
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		asked++
		send := func(epoch string, e *admin.Event) {
			body, _ := json.Marshal(e)
			_, _ = fmt.Fprintf(w, "id: %s-%d\ndata: %s\n\n", epoch, e.Seq, body)
		}
		switch {
		case asked == 1:
			for i := range list {
				send("e", &list[i])
			}
		case r.Header.Get("Last-Event-ID") == "e-6":
			send("f", &admin.Event{Seq: 0, At: eventDay.Add(3 * time.Hour), Text: "took over from process 1"})
		default:
			send("f", &admin.Event{Seq: 1, Text: r.Header.Get("Last-Event-ID")})
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestEvents(t *testing.T) {
	url := eventServer(t)
	at := func(hours int) string {
		return eventDay.Add(time.Duration(hours) * time.Hour).Local().Format("2006-01-02 15:04:05.000")
	}
	app := at(0) + "  app/a:1  unproven -> healthy: probe passed\n"
	shop := at(1) + "  shop  panic began\n"
	weir := at(2) + "  weir  generation 2 serves\n"
	for _, c := range []struct {
		args, want, errs string
		code             int
	}{
		{"", app + shop + weir, "", 0},
		{"--last 2", shop + weir, "", 0},
		{"--pool app", app, "", 0},
		{"--pool app --last 5", app, "", 0},
		{"--backend a:1", app, "", 0},
		{"--since 2026-01-31T08:30:00Z", shop + weir, "", 0},
		{"--since 1ns", "", "Nothing of that kind is remembered.\n", 0},
		{"--since soon", "", "weir: --since is \"soon\": write how long ago, such as 10m, or when, such as 15:04 or 2026-01-31T08:00:00Z\nSee 'weir events --help'.\n", 2},
		{"--pool sho", "", "weir: no such pool: sho\n", 1},
		{"--last -1", "", "weir: --last is -1: use a number from 0 on\nSee 'weir events --help'.\n", 2},
		{"--json --pool app", `{"seq":4,"at":"2026-01-31T08:00:00Z","kind":"state_changed","pool":"app","backend":"a:1","text":"unproven -> healthy: probe passed"}` + "\n", "", 0},
	} {
		var out, errs bytes.Buffer
		code := run(append([]string{"events", "--admin", url}, strings.Fields(c.args)...), &out, &errs)
		if out.String() != c.want || errs.String() != c.errs || code != c.code {
			t.Errorf("%s: %d\n%s\n%s", c.args, code, out.String(), errs.String())
		}
	}
}

// stopping is a writer that is full after some lines.
type stopping struct {
	bytes.Buffer
	lines int
}

func (s *stopping) Write(p []byte) (int, error) {
	if s.lines--; s.lines < 0 {
		return 0, errSaid
	}
	return s.Buffer.Write(p)
}

// A follower goes on with the process that comes after the one it followed.
func TestEventsFollow(t *testing.T) {
	out, errs := &stopping{lines: 2}, new(bytes.Buffer)
	if code := run([]string{"events", "--follow", "--last", "1", "--admin", eventServer(t)}, out, errs); code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"  weir  generation 2 serves\n"} {
		if !strings.HasSuffix(strings.SplitAfter(out.String(), "\n")[0], want) {
			t.Errorf("first %q", out.String())
		}
	}
	if !strings.HasSuffix(out.String(), "  weir  took over from process 1\n") {
		t.Errorf("%q", out.String())
	}
	if s := errs.String(); !strings.Contains(s, "ended the feed of events: EOF; trying again until it is there\nweir: there again\n") {
		t.Errorf("%q", s)
	}
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 3, 4, 15, 30, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"":                     {},
		"10m":                  now.Add(-10 * time.Minute),
		"14:05":                time.Date(2026, 3, 4, 14, 5, 0, 0, time.UTC),
		"14:05:06":             time.Date(2026, 3, 4, 14, 5, 6, 0, time.UTC),
		"2026-01-31 08:00":     time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC),
		"2026-01-31T08:00:00Z": time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC),
	} {
		if got, err := parseSince(s, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"-1m", "yesterday", "25:00", "10"} {
		if got, err := parseSince(s, now); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// An event that another process tells again, under another number and in another
// zone, is the same one; of a thousand later ones it is forgotten.
func TestShownEvents(t *testing.T) {
	var s shownEvents
	e := admin.Event{Seq: 4, At: eventDay, Kind: "ejected", Pool: "app", Text: "ejected for 30s"}
	if s.again(e) {
		t.Error("it was never shown")
	}
	other := e
	other.Seq, other.At = 900, e.At.In(time.FixedZone("there", 3600))
	if !s.again(other) {
		t.Error("it is shown twice")
	}
	for i := range shownKept {
		if s.again(admin.Event{At: eventDay.Add(time.Duration(i+1) * time.Second)}) {
			t.Fatal("another one is not shown")
		}
	}
	if s.again(e) || len(s.set) != shownKept || len(s.order) != shownKept {
		t.Errorf("%d are kept", len(s.set))
	}
}
