// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/message"
)

func TestFailuresKeepTheLast(t *testing.T) {
	var f Failures
	note := func(pool string, i int, reason message.Reason, status int) {
		f.Note(&Record{
			Pool: pool, Method: []byte("GET"), Path: fmt.Appendf(nil, "/%d", i), Query: []byte("secret=1"),
			Reason: reason, Status: status, Start: balance.Instant(i) * balance.Instant(time.Millisecond),
		})
	}
	for i := range 200 {
		note("app", i, message.ConnectRefused, 502)
		note("app", 1000+i, message.ClientAbort, 0)
	}
	note("other", 1, message.OK, 500)
	note("", 2, message.NoRoute, 404)

	all := f.Last("")
	if len(all) != 3 || all[0].Pool != "" || all[1].Pool != "app" || all[2].Pool != "other" {
		t.Fatalf("%+v", all)
	}
	app := all[1]
	if app.Failed != 200 || app.Faults != 200 || app.Missed != 0 || len(app.Lines) != failuresKept+faultsKept {
		t.Errorf("%d failed, %d faults, %d missed, %d lines", app.Failed, app.Faults, app.Missed, len(app.Lines))
	}
	for i, line := range app.Lines {
		var l struct{ Path, Reason string }
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		want := fmt.Sprintf("/%d connect_refused", 200-failuresKept+i)
		if i >= failuresKept {
			want = fmt.Sprintf("/%d client_abort", 1200-faultsKept+i-failuresKept)
		}
		if got := l.Path + " " + l.Reason; got != want {
			t.Fatalf("line %d: %s, want %s", i, got, want)
		}
		if strings.Contains(string(line), "secret") {
			t.Errorf("a query is kept: %s", line)
		}
	}
	if got := f.Last("other"); len(got) != 1 || got[0].Failed != 1 {
		t.Errorf("a backend's own 500 is not among them: %+v", got)
	}
}

// An answer that was cut had begun with 200; who cut it tells whose failure it is.
func TestFailuresBlameWhoFailed(t *testing.T) {
	var f Failures
	for _, c := range []struct {
		reason message.Reason
		status int
	}{
		{message.ResetMidResponse, 200},
		{message.DrainCut, 200},
		{message.StreamIdleTimeout, 206},
		{message.DrainCut, 101},
		{message.ClientAbort, 200},
		{message.WriteTimeout, 200},
		{message.RateLimited, 429},
		{message.DrainClosed, 101}, // as planned: nobody's
	} {
		f.Note(&Record{Pool: "app", Reason: c.reason, Status: c.status})
	}
	if got := f.Last("app")[0]; got.Failed != 4 || got.Faults != 3 {
		t.Errorf("%d failed, %d by their clients; want 4 and 3", got.Failed, got.Faults)
	}
}

// What one process remembers goes on in the next: the last of each kind, in order,
// with what follows, counted from the first.
func TestFailuresGoAlong(t *testing.T) {
	at := func(f *Failures, from, to int, reason message.Reason) {
		for i := from; i < to; i++ {
			f.Note(&Record{
				Pool: "app", Method: []byte("GET"), Path: fmt.Appendf(nil, "/%03d<\xff", i), Reason: reason,
				Start: balance.Instant(i) * balance.Instant(time.Millisecond),
			})
		}
	}
	for _, n := range []int{0, 1, failuresKept - 1, failuresKept, failuresKept + 1, 3*failuresKept + 5} {
		for _, m := range []int{0, 1, failuresKept, failuresKept + 7} {
			var all, before, after Failures
			at(&all, 0, n+m, message.ConnectRefused)
			at(&before, 0, n, message.ConnectRefused)
			at(&all, 500, 503, message.ClientAbort)
			at(&before, 500, 503, message.ClientAbort)
			text, err := json.Marshal(before.Export(1 << 20))
			if err != nil {
				t.Fatal(err)
			}
			var kept []KeptFailures
			if err := json.Unmarshal(text, &kept); err != nil {
				t.Fatal(err)
			}
			after.Import(kept)
			at(&after, n, n+m, message.ConnectRefused)
			want, got := all.Last("app")[0], after.Last("app")[0]
			if got.Failed != want.Failed || got.Faults != want.Faults || len(got.Lines) != len(want.Lines) {
				t.Fatalf("%d and %d: %d failed, %d faults, %d lines; want %d, %d, %d", n, m, got.Failed, got.Faults, len(got.Lines), want.Failed, want.Faults, len(want.Lines))
			}
			for i := range want.Lines {
				var a, b struct{ Path, Reason string }
				if err := errors.Join(json.Unmarshal(want.Lines[i], &a), json.Unmarshal(got.Lines[i], &b)); err != nil || a != b {
					t.Fatalf("%d and %d: line %d: %v, want %v, %v", n, m, i, b, a, err)
				}
			}
		}
	}
}

// However much is remembered, what travels is bounded, and the last failures of each
// pool are in it.
func TestFailuresGoAlongBounded(t *testing.T) {
	var f Failures
	for i := range 20 * failuresKept {
		for _, reason := range []message.Reason{message.ClientAbort, message.ConnectRefused} {
			f.Note(&Record{Pool: fmt.Sprint("p", i%20), Path: []byte("/" + strings.Repeat("x", 1000)), Reason: reason, Status: 502})
		}
	}
	const most = 100 << 10
	kept, size := f.Export(most), 0
	for _, k := range kept {
		if len(k.FailedLines) == 0 || k.Failed != failuresKept || k.Faults != failuresKept {
			t.Errorf("%s: %d lines, %d failed, %d faults", k.Pool, len(k.FailedLines), k.Failed, k.Faults)
		}
		for _, l := range append(k.FailedLines, k.FaultLines...) {
			size += len(l)
		}
	}
	if len(kept) != 20 || size > most || size < most/2 {
		t.Errorf("%d pools, %d bytes", len(kept), size)
	}
}

func TestFailuresAreBounded(t *testing.T) {
	var f Failures
	for i := range 2 * maxPools {
		f.Note(&Record{Pool: fmt.Sprint("p", i), Reason: message.Unreachable})
	}
	f.Note(&Record{Pool: "p0", Reason: message.Unreachable, Path: []byte(strings.Repeat("\x01", maxFailure))})
	if n := len(f.Last("")); n > maxPools+1 {
		t.Errorf("%d pools are remembered", n)
	}
	if got := f.Last("p0")[0].Lines; len(got) != 1 {
		t.Errorf("a line of %d bytes is kept", len(got[1]))
	}
}

func BenchmarkFailuresNote(b *testing.B) {
	var f Failures
	r := &Record{Pool: "app", Method: []byte("GET"), Path: []byte("/x"), Reason: message.ConnectRefused, Status: 502}
	b.ReportAllocs()
	for b.Loop() {
		f.Note(r)
	}
}
