// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// failuresAt are those of a pool, one line for each time and reason.
func failuresAt(list ...[2]string) *admin.Failures {
	var lines []json.RawMessage
	for _, x := range list {
		lines = append(lines, json.RawMessage(`{"time":"2026-01-02T`+x[0]+`Z","status":503,"reason":"`+x[1]+`"}`))
	}
	return &admin.Failures{Pools: []admin.PoolFailures{{Pool: "app", Failed: uint64(len(lines)), Requests: lines}}}
}

// What fails now stands first, however often something else failed before, in the
// groups and one by one.
func TestFailuresLatestFirst(t *testing.T) {
	var b strings.Builder
	p := page{w: &b, now: time.Date(2026, 1, 2, 11, 0, 5, 0, time.UTC)}
	p.failures(failuresAt([2]string{"10:00:00", "old"}, [2]string{"10:00:01", "old"}, [2]string{"11:00:00", "now"}))
	at := 0
	for _, want := range []string{
		"1 x 503 now, last at 11:00:00\n", "2 x 503 old, last at 10:00:01, first at 10:00:00\n",
		"  11:00:00.000 503 now", "  10:00:01.000 503 old", "  10:00:00.000 503 old",
	} {
		i := strings.Index(b.String()[at:], want)
		if i < 0 {
			t.Fatalf("%q is missing, or too early:\n%s", want, b.String())
		}
		at += i
	}
}

func TestFailuresSince(t *testing.T) {
	now := time.Date(2026, 1, 3, 0, 0, 5, 0, time.UTC)
	for since, want := range map[time.Duration]string{
		2 * time.Hour: "503 b, last at 2026-01-02 23:30:00\n",
		3 * time.Hour: " remembered\n1 since 2026-01-02 21:00:05:\n",
		time.Second:   "Nothing that is remembered has failed since 00:00:04.\n",
	} {
		var b strings.Builder
		p := page{w: &b, now: now, since: now.Add(-since)}
		f := failuresAt([2]string{"10:00:00", "a"}, [2]string{"23:30:00", "b"})
		if err := youngFailures(f, p.since); err != nil {
			t.Fatal(err)
		}
		if p.failures(f); !strings.Contains(b.String(), want) || strings.Contains(b.String(), "503 a") {
			t.Errorf("%v:\n%s", since, b.String())
		}
	}
}

// A gRPC call shows its status instead of the 200 of HTTP, a session its protocol, and
// a tunnel when it ended, not when it began, with what its reason means of a tunnel.
func TestFailuresOfOtherKinds(t *testing.T) {
	f := &admin.Failures{
		Pools: []admin.PoolFailures{{Pool: "app", Failed: 4, Requests: []json.RawMessage{
			json.RawMessage(`{"time":"2026-01-02T10:00:00Z","status":200,"grpc_status":"UNAVAILABLE","reason":"connect_refused","backend":"b:1","proto":"HTTP/2","duration_ms":3,"path":"/a.B/C"}`),
			json.RawMessage(`{"time":"2026-01-02T07:59:30Z","status":101,"reason":"drain_cut","backend":"b:1","proto":"HTTP/1.1","tunnel":true,"method":"GET","sent":true,"duration_ms":10830000,"detail":"drain: cut, the client did not answer the Close frame"}`),
			json.RawMessage(`{"time":"2026-01-02T10:00:02Z","status":200,"reason":"drain_cut","backend":"b:3","proto":"HTTP/1.1","method":"GET","sent":true,"duration_ms":5,"detail":"drain: the stream was ended"}`),
			json.RawMessage(`{"time":"2026-01-02T10:00:01Z","proto":"tcp","reason":"connect_refused","backend":"b:2","duration_ms":1}`),
		}}},
		Meanings: map[string]admin.Meaning{
			"drain_cut": {What: "cut", Look: "a longer deadline"}, "drain_cut" + admin.OfTunnel: {What: "nobody answered Close", Look: "that side"},
		},
	}
	var b strings.Builder
	p := page{w: &b, now: time.Date(2026, 1, 2, 11, 0, 5, 0, time.UTC)}
	p.failures(f)
	for _, want := range []string{
		"1 x gRPC UNAVAILABLE connect_refused on b:1, last at 10:00:00\n", "10:00:00.003 gRPC UNAVAILABLE connect_refused 3ms, nothing sent\n",
		"1 x tcp connect_refused on b:2", "1 x 101 drain_cut on b:1, last at 11:00:00\n", "look at: that side\n",
		"look at: nothing: the client connects again",
		"11:00:00.000 101 drain_cut, ended after 3h, begun 07:59:30\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "longer deadline") {
		t.Errorf("a deadline is named for a Close that nobody answered:\n%s", b.String())
	}
}

// Where a pool had nobody, what keeps its backends away stands below.
func TestFailuresOfAPoolWithNobody(t *testing.T) {
	f := failuresAt([2]string{"10:00:00", "no_backend"}, [2]string{"10:00:01", "shed"})
	f.Pools[0].Away = map[string]string{"b:1": "draining by an operator, healthy, share 0"}
	var b strings.Builder
	p := page{w: &b, now: time.Date(2026, 1, 2, 11, 0, 5, 0, time.UTC)}
	p.failures(f)
	if n := strings.Count(b.String(), "      now: b:1 is draining by an operator, healthy, share 0\n"); n != 1 {
		t.Errorf("said %d times:\n%s", n, b.String())
	}
}

// Sessions and flows are told of in their own words, with who they were from, and why
// nothing was sent again stands with the request.
func TestFailuresOfSessions(t *testing.T) {
	f := &admin.Failures{
		Pools: []admin.PoolFailures{{Pool: "app", Failed: 3, Requests: []json.RawMessage{
			json.RawMessage(`{"time":"2026-01-02T10:00:00Z","proto":"sni","host":"db.example.com","listener":"db","client":"192.0.2.7","reason":"reset_before_response","backend":"b:1","sent":true,"duration_ms":3}`),
			json.RawMessage(`{"time":"2026-01-02T10:00:00Z","proto":"udp","listener":"dns","client":"192.0.2.8","reason":"response_timeout","backend":"b:2","duration_ms":30000}`),
			json.RawMessage(`{"time":"2026-01-02T10:00:00Z","proto":"HTTP/1.1","method":"POST","host":"h","path":"/p","status":502,"reason":"reset_before_response","backend":"b:1","sent":true,"duration_ms":3,"detail":"not repeated: the method may not be sent twice without an Idempotency-Key"}`),
		}}},
		Meanings: map[string]admin.Meaning{
			"reset_before_response": {What: "of a request", Look: "its log"}, "reset_before_response" + admin.OfSession: {What: "of a session", Look: "its log"},
			"response_timeout": {What: "no head", Look: "there"}, "response_timeout" + admin.OfFlow: {What: "of a flow", Look: "a firewall"},
		},
	}
	var b strings.Builder
	p := page{w: &b, now: time.Date(2026, 1, 2, 11, 0, 5, 0, time.UTC)}
	p.failures(f)
	for _, want := range []string{
		"1 x sni reset_before_response on b:1, last at 10:00:00\n      of a session\n", "1 x udp response_timeout on b:2, last at 10:00:30\n      of a flow\n",
		"1 x 502 reset_before_response on b:1, last at 10:00:00\n      of a request\n", "from 192.0.2.7 on listener db, which asked for db.example.com\n", "from 192.0.2.8 on listener dns\n",
		"10:00:30.000 udp response_timeout 30s\n", "not repeated: the method may not be", "POST h/p",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing:\n%s", want, b.String())
		}
	}
}
