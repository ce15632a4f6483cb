// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/json"
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
