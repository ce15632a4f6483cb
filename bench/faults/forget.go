// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"
)

// knowledge is what weir says that it knows, as far as it must outlast a change
// of weir itself.
type knowledge struct {
	at       time.Time
	PID      int                `json:"pid"`
	Budget   float64            `json:"retry_budget_remaining"`
	Backends []backendKnowledge `json:"backends"`
}

type backendKnowledge struct {
	ID       string    `json:"id"`
	Weight   int       `json:"weight"`
	Admin    string    `json:"admin"`
	Health   string    `json:"health"`
	Share    float64   `json:"share"`
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since"`
	Flips    int       `json:"flips"`
	Requests int       `json:"requests"`
	Learned  float64   `json:"learned_idle_s"`
	Latency  struct {
		EWMA float64 `json:"ewma"`
	} `json:"latency_ms"`
	Override *struct {
		Weight *int      `json:"weight"`
		Since  time.Time `json:"since"`
	} `json:"override"`
	History []struct {
		At time.Time `json:"at"`
	} `json:"history"`
}

// know asks weir.
func (e *run) know() (k knowledge, err error) {
	k.at = time.Now()
	for _, path := range []string{"/api/v1/status", "/api/v1/pools/app"} {
		c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := c.Get("http://" + e.subject.admin + path)
		if err != nil {
			return k, err
		}
		err = json.NewDecoder(resp.Body).Decode(&k)
		_ = resp.Body.Close()
		if err != nil {
			return k, fmt.Errorf("%s: %w", path, err)
		}
	}
	return k, nil
}

// override has the operator say something that changes nothing else: the weight
// that the last backend has anyway.
func (e *run) override() error {
	id := e.fleet[len(e.fleet)-1].name
	req, err := http.NewRequest(http.MethodPatch, "http://"+e.subject.admin+"/api/v1/pools/app/backends/"+id, strings.NewReader(`{"weight":1}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("weight of %s: %s", id, resp.Status)
	}
	return nil
}

// forgotten holds what weir knows after the change against what it knew before.
func (e *run) forgotten(before knowledge) error {
	var after knowledge
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var err error
		after, err = e.know()
		if err == nil && (e.change == "reload" || after.PID != before.PID) {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("nobody else serves 20 s after the %s: %w", e.change, err)
		}
	}
	lost := before.missing(&after)
	got := "nothing"
	if len(lost) > 0 {
		got = strings.Join(lost, "; ")
	}
	e.outcome.Checks = append(e.outcome.Checks, check{"forgotten in the " + e.change, "nothing", got, len(lost) == 0})
	return nil
}

// missing lists what after lacks.
func (k *knowledge) missing(after *knowledge) (lost []string) {
	say := func(format string, args ...any) { lost = append(lost, fmt.Sprintf(format, args...)) }
	if k.Budget > 60 && after.Budget < k.Budget/2 { // a budget that begins has 30
		say("retry budget: %.0f, then %.0f", k.Budget, after.Budget)
	}
	now := map[string]*backendKnowledge{}
	for i := range after.Backends {
		now[after.Backends[i].ID] = &after.Backends[i]
	}
	for _, b := range k.Backends {
		a := now[b.ID]
		if a == nil {
			say("%s as a whole", b.ID)
			continue
		}
		for _, what := range b.missing(a, k.at) {
			say("%s %s", b.ID, what)
		}
	}
	return lost
}

// missing lists what is not known of a backend any more. What changed since the
// first look, and says so in its history, is no loss.
func (b *backendKnowledge) missing(a *backendKnowledge, since time.Time) (lost []string) {
	say := func(format string, args ...any) { lost = append(lost, fmt.Sprintf(format, args...)) }
	if a.Weight != b.Weight || a.Admin != b.Admin {
		say("operator's word: %d %s, then %d %s", b.Weight, b.Admin, a.Weight, a.Admin)
	}
	switch {
	case b.Override != nil && (a.Override == nil || a.Override.Weight == nil):
		say("override")
	case b.Override != nil && apart(a.Override.Since, b.Override.Since) > time.Second:
		say("age of the override: since %s, then %s", b.Override.Since, a.Override.Since)
	}
	if a.Flips < b.Flips || a.Requests < b.Requests {
		say("counts: %d flips, %d requests, then %d, %d", b.Flips, b.Requests, a.Flips, a.Requests)
	}
	if b.Latency.EWMA > 0 && (a.Latency.EWMA > 4*b.Latency.EWMA || a.Latency.EWMA < b.Latency.EWMA/4) {
		say("latency: %.2f ms, then %.2f ms", b.Latency.EWMA, a.Latency.EWMA)
	}
	if b.Learned > 0 && a.Learned == 0 {
		say("idle time of %.1f s", b.Learned)
	}
	if n := len(a.History); n > 0 && a.History[n-1].At.After(since) {
		return lost
	}
	if a.Health != b.Health || a.Reason != b.Reason || math.Abs(a.Share-b.Share) > .35 {
		say("state: %s %q %.2f, then %s %q %.2f", b.Health, b.Reason, b.Share, a.Health, a.Reason, a.Share)
	}
	if apart(a.Since, b.Since) > time.Second || len(a.History) < len(b.History) {
		say("age: since %s with %d changes, then %s with %d", b.Since, len(b.History), a.Since, len(a.History))
	}
	return lost
}

func apart(a, b time.Time) time.Duration { return a.Sub(b).Abs() }
