// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
)

func TestSamplingKeeps(t *testing.T) {
	for _, c := range []struct {
		name string
		r    Record
		by   string // the word that keeps it; "slow", or "" for none
	}{
		{"fine", Record{Status: 200}, ""},
		{"missing", Record{Status: 404}, ""},
		{"the backend's 500", Record{Status: 500}, "errors"},
		{"the backend's 429", Record{Status: 429}, ""},
		{"no backend", Record{Status: 503, Reason: message.NoBackend}, "errors"},
		{"cut answer", Record{Status: 200, Reason: message.ResetMidResponse}, "errors"},
		{"cut by the drain", Record{Status: 200, Reason: message.DrainCut}, "errors"},
		{"retried", Record{Status: 200, Attempts: 2}, "retried"},
		{"dispatched again", Record{Status: 200, Attempts: 1, Tried: make([]Try, 1)}, "retried"},
		{"no route", Record{Status: 404, Reason: message.NoRoute}, "refused"},
		{"rate limited", Record{Status: 429, Reason: message.RateLimited}, "refused"},
		{"bad request", Record{Status: 400, Reason: message.BadRequest}, "refused"},
		{"client gone", Record{Reason: message.ClientAbort}, "aborted"},
		{"client gone within the answer", Record{Status: 200, Reason: message.ClientAbort}, "aborted"},
		{"greatest age", Record{Status: 200, Reason: message.MaxAge}, ""},
		{"slow", Record{Status: 200, Total: time.Second}, "slow"},
		{"nearly slow", Record{Status: 200, Total: time.Second - 1}, ""},
		{"tunnel", Record{Status: 101, Total: time.Hour, Tunnel: true}, ""},
	} {
		for _, word := range append(Kept(), "slow") {
			opt := AccessLogOptions{Sample: 1e-12, Always: []string{word}}
			if word == "slow" {
				opt.Always, opt.Slow = nil, time.Second
			}
			s, err := newSampling(&opt)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := s.rate(&c.r) == 1, word == c.by; got != want {
				t.Errorf("%s is kept by %s: %v", c.name, word, got)
			}
		}
	}
}

// TestSampleSays: the sum of what lines stand for is the number of requests,
// and all that failed are there.
func TestSampleSays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l := openTestLog(t, AccessLogOptions{Path: path, Sample: 0.25, Always: []string{"errors"}})
	const good, bad = 8000, 200
	for i := range good + bad {
		r := &Record{Status: 200}
		if i%41 == 0 {
			r.Status, r.Reason = 502, message.ConnectRefused
		}
		l.Write(r)
	}
	if err := l.Close(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	var sum float64
	failed := 0
	for _, line := range lines(t, path) {
		var v struct {
			Status int
			Sample float64
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		if want := map[int]float64{200: 0.25, 502: 1}[v.Status]; v.Sample != want {
			t.Fatalf("sample is %v: %s", v.Sample, line)
		}
		sum += 1 / v.Sample
		if v.Status == 502 {
			failed++
		}
	}
	if failed != bad {
		t.Errorf("%d of %d failures are there", failed, bad)
	}
	if sum < 7200 || sum > 9200 { // 8200 +- 6.4 sigma of 155
		t.Errorf("the lines stand for %.0f requests, want about %d", sum, good+bad)
	}
}
