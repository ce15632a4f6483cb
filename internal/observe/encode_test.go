// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
)

var golden = weirtest.Golden

// at is the instant of a fixed wall-clock time.
func at(wall time.Time) balance.Instant { return balance.Instant(wall.Sub(clock.Time(0))) }

var whole = Record{
	Start:    at(time.Date(2026, 1, 2, 3, 4, 5, 67890_000, time.UTC)),
	Listener: "web", Route: "api", Pool: "app", Backend: "10.0.1.21:8080",
	Method: []byte("GET"), Host: []byte("api.example.com"), Path: []byte("/v1/users"), Query: []byte("token=secret"),
	UserAgent: []byte(`curl/8 "quoted"`), RequestID: []byte("0af7651916cd43dd"),
	ClientIP: netip.MustParseAddr("::ffff:192.0.2.7"), Major: 1, Minor: 1, TLS: true,
	Status: 502, Reason: message.ResetBeforeResponse, Sent: true, Reused: true,
	Attempts: 3, Retries: 1, Redispatches: 1,
	Tried: []Try{{Backend: "10.0.1.22:8080", Reason: message.ConnectRefused}, {Backend: "10.0.1.23:8080", Reason: message.BackendOverloaded, Status: 503}},
	Queue: 1500 * time.Microsecond, Connect: 20 * time.Microsecond, FirstByte: 7 * time.Millisecond, Total: 12345678 * time.Microsecond,
	BytesIn: 10, BytesOut: 1 << 40, Detail: "connection reset",
}

func TestRecordGolden(t *testing.T) {
	var b []byte
	b = appendRecord(b, &whole, false)
	b = appendRecord(b, &whole, true)
	b = appendRecord(b, &Record{Start: whole.Start, Listener: "web", Reason: message.HeaderTimeout, Major: 1}, false)
	b = appendRecord(b, &Record{Start: whole.Start, Major: 2, Status: 101, Tunnel: true, ClientIP: netip.MustParseAddr("fe80::1%eth0"), Attempts: 1}, false)
	golden(t, "testdata/access.jsonl", b)
	for line := range bytes.Lines(b) {
		var v map[string]any
		if err := json.Unmarshal(line, &v); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
}

func TestRecordIsBounded(t *testing.T) {
	r := whole
	evil := bytes.Repeat([]byte{0}, 1<<20) // each becomes six bytes
	r.Method, r.Host, r.Path, r.Query, r.UserAgent, r.RequestID, r.Detail = evil, evil, evil, evil, evil, evil, string(evil)
	line := appendRecord(nil, &r, true)
	if len(line) > 80<<10 {
		t.Errorf("a line has %d bytes", len(line))
	}
	var v struct{ Truncated bool }
	if err := json.Unmarshal(line, &v); err != nil || !v.Truncated {
		t.Errorf("truncated line: %v, %v", v, err)
	}
}

// checkEscaped compares with encoding/json: what a reader gets out is the same.
func checkEscaped(t *testing.T, s string) {
	t.Helper()
	got := append(appendEscaped([]byte{'"'}, s), '"')
	if string(got) != string(append(appendEscaped([]byte{'"'}, []byte(s)), '"')) {
		t.Errorf("%q: string and bytes differ", s)
	}
	ref, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var a, b string
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatalf("%q became %s: %v", s, got, err)
	}
	if err := json.Unmarshal(ref, &b); err != nil {
		t.Fatal(err)
	}
	if a != b {
		t.Errorf("%q reads as %q, by encoding/json as %q", s, a, b)
	}
	if !utf8.Valid(got) {
		t.Errorf("%q became invalid UTF-8: %q", s, got)
	}
	for _, r := range string(got) {
		if unicode.IsControl(r) || r == 0x2028 || r == 0x2029 {
			t.Errorf("%q: %U stands in the line", s, r)
		}
	}
}

func TestEscaped(t *testing.T) {
	for _, s := range []string{
		"", "plain", `"\`, "\x00\x1f\x7f\n\r\t\b\f", "\u0080\u009f\u00a0", "é漢😀", "\u2028\u2029",
		"\xff", "a\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\ufffd", "</script>", "\x1b[31m", "\xc3\x28",
	} {
		checkEscaped(t, s)
		checkEscaped(t, "x"+s+"y"+s)
	}
}

func FuzzEscaped(f *testing.F) {
	for _, s := range []string{"a", "\x00\"\\", "\xff\xfe", "\u2028", "\xe2\x80", "\xf0\x9f\x98\x80"} {
		f.Add(s)
	}
	f.Fuzz(checkEscaped)
}

// FuzzRecord: whatever a client sends, a line is one valid JSON object with the
// fields that the record has.
func FuzzRecord(f *testing.F) {
	f.Add([]byte("GET"), []byte("host"), []byte("/path"), []byte("agent"), "detail", 200, int64(5))
	f.Add([]byte("\"}\n{\""), []byte("\\"), []byte("\xff\n"), []byte("\u2028"), "\x00", -1, int64(-5))
	f.Fuzz(func(t *testing.T, method, host, path, agent []byte, detail string, status int, d int64) {
		r := Record{Method: method, Host: host, Path: path, UserAgent: agent, Detail: detail, Status: status, Total: time.Duration(d), FirstByte: time.Duration(d), Attempts: 1}
		line := appendRecord(nil, &r, true)
		if bytes.Count(line, []byte{'\n'}) != 1 || line[len(line)-1] != '\n' {
			t.Fatalf("not one line: %q", line)
		}
		var v struct {
			Method, Path string
			Status       int
			DurationMS   float64 `json:"duration_ms"`
		}
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if len(path) <= maxLogPath && v.Path != strings.ToValidUTF8(string(path), "\ufffd") && utf8.Valid(path) {
			t.Errorf("path %q reads as %q", path, v.Path)
		}
		if status != 0 && v.Status != status {
			t.Errorf("status %d reads as %d", status, v.Status)
		}
		if want := float64(max(d, 0)/1000) / 1000; v.DurationMS != want {
			t.Errorf("duration %v reads as %v ms", time.Duration(d), v.DurationMS)
		}
	})
}

func BenchmarkAppendRecord(b *testing.B) {
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = appendRecord(buf[:0], &whole, false)
	}
}
