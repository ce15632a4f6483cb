// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/pool"
)

const sampleLog = `
{"time":"2026-01-02T03:04:05.500000Z","pool":"app","status":200,"client":"192.0.2.7","duration_ms":12.5}
{"time":"2026-01-02T03:04:05.250000Z","pool":"app","status":200,"client":"192.0.2.8","duration_ms":7}
not a record
{"time":"yesterday"}
192.0.2.9 - - [02/Jan/2026:03:04:06 +0000] "GET / HTTP/1.1" 200 612
192.0.2.9 - bob [02/Jan/2026:04:04:06 +0100] "GET /b HTTP/1.1" 200 612 "-" "curl 8" 0.045
192.0.2.9 - bob [02/Jan/2026:03:04:06 +0000] "GET /b HTTP/1.1" 200 612 rt=1.5
192.0.2.9 - bob [02/Jan/2026:03:04:06 +0000] "GET /b HTTP/1.1" 200 612 "-" "curl 8"
`

func TestReadLog(t *testing.T) {
	log, err := ReadLog(strings.NewReader(sampleLog))
	if err != nil {
		t.Fatal(err)
	}
	ms := time.Millisecond
	want := []Arrival{
		{At: 0, Work: 7 * ms}, {At: 250 * ms, Work: 12500 * time.Microsecond},
		{At: 750 * ms}, {At: 1000 * ms, Work: 45 * ms}, {At: 1250 * ms, Work: 1500 * ms}, {At: 1500 * ms},
	}
	if len(log.Arrivals) != len(want) || log.Lines != 8 || log.Skipped != 2 {
		t.Fatalf("%+v", log)
	}
	for i, a := range log.Arrivals {
		if a.At != want[i].At || a.Work != want[i].Work || !a.HasKey {
			t.Errorf("arrival %d: %+v, want %+v", i, a, want[i])
		}
	}
	if log.Arrivals[2].Key != log.Arrivals[5].Key || log.Arrivals[0].Key == log.Arrivals[1].Key {
		t.Error("equal clients have equal keys, others others")
	}
	if _, err := ReadLog(strings.NewReader("x\n")); !errors.Is(err, ErrNoRequests) {
		t.Errorf("a log without requests: %v", err)
	}
}

// TestReplayIsWhatWasRecorded: with idle servers each request takes the time that
// the log says.
func TestReplayIsWhatWasRecorded(t *testing.T) {
	log, err := ReadLog(strings.NewReader(sampleLog))
	if err != nil {
		t.Fatal(err)
	}
	w := NewWorld(1)
	w.AddServer(ServerConfig{ID: "a", Concurrency: 10})
	lb := w.AddBalancer(BalancerConfig{Pool: pool.Config{First: true}})
	w.AddTraffic(Traffic{To: []*Balancer{lb}, Replay: log.Arrivals, From: time.Second})
	i := 0
	seen := map[time.Duration]time.Duration{}
	w.OnRecord = func(r *Record) { seen[r.Arrived] = r.Latency(); i++ }
	if !w.Finish(time.Hour) || i != len(log.Arrivals) {
		t.Fatalf("%d requests ended, %d open", i, w.Open())
	}
	for _, a := range log.Arrivals {
		if got := seen[time.Second+a.At]; got != a.Work {
			t.Errorf("the request at %v took %v, not %v", a.At, got, a.Work)
		}
	}
}

// FuzzReadLog: no text makes it fail otherwise than by error, and arrivals are in
// order, not negative and of bounded work.
func FuzzReadLog(f *testing.F) {
	f.Add(sampleLog)
	f.Add(`{"time":"2026-01-02T03:04:05Z","duration_ms":1e300}`)
	f.Add(`[`)
	f.Fuzz(func(t *testing.T, text string) {
		log, err := ReadLog(strings.NewReader(text))
		if err != nil {
			return
		}
		if len(log.Arrivals)+log.Skipped != log.Lines || log.Arrivals[0].At != 0 {
			t.Fatalf("%+v", log)
		}
		last := time.Duration(0)
		for _, a := range log.Arrivals {
			if a.At < last || a.Work < 0 || a.Work > 24*time.Hour {
				t.Fatalf("%+v after %v", a, last)
			}
			last = a.At
		}
	})
}
