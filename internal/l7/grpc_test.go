// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/message"
)

func TestGRPCContent(t *testing.T) {
	for v, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "Application/gRPC;charset=utf-8": true, "application/grpc ; a=b": true,
		"application/grpc-web": false, "application/grpc-web-text+proto": false, "application/grpcx": false, "application/grp": false,
		"application/json": false, "": false, "text/application/grpc": false, "application/connect+proto": false,
	} {
		var r message.Request
		r.Method = []byte("POST")
		if v != "" {
			r.Fields.Add(message.ContentType, "content-type", v)
		}
		if got := isGRPC(&r); got != want {
			t.Errorf("%q: %v", v, got)
		}
		if r.Method = []byte("GET"); isGRPC(&r) {
			t.Errorf("%q: a GET is a call", v)
		}
	}
}

func TestGRPCTimeout(t *testing.T) {
	for v, want := range map[string]time.Duration{
		"1H": time.Hour, "2M": 2 * time.Minute, "3S": 3 * time.Second, "4m": 4 * time.Millisecond, "5u": 5 * time.Microsecond, "6n": 6,
		"00000001S": time.Second, "0n": 0, "99999999n": 99999999, "99999999H": maxGRPCTimeout, "99999999M": maxGRPCTimeout, "99999999S": 99999999 * time.Second,
	} {
		if got, ok := parseGRPCTimeout([]byte(v)); !ok || got != want {
			t.Errorf("%q: %v %v, want %v", v, got, ok, want)
		}
	}
	for _, v := range []string{"", "S", "1", "1s", "1h", "1.5S", "-1S", "+1S", " 1S", "1S ", "1 S", "123456789m", "1ms", "0x1S", "１S", "1S\x00"} {
		if got, ok := parseGRPCTimeout([]byte(v)); ok {
			t.Errorf("%q is taken for %v", v, got)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "1n", -time.Second: "1n", 1: "1n", 99999999: "99999999n", 100 * time.Millisecond: "100000u", 100000001: "100001u",
		99*time.Second + 999999100: "100000m", time.Hour: "3600000m", 30 * time.Hour: "108000S",
	} {
		if got := string(appendGRPCTimeout(nil, d)); got != want {
			t.Errorf("%v is written as %q, want %q", d, got, want)
		}
	}
}

// TestGRPCTimeoutRoundTrip: what is written is read as no less, and as no more than
// a part in a hundred thousand later.
func TestGRPCTimeoutRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 100000 {
		d := time.Duration(rnd.Int64N(int64(maxGRPCTimeout)) >> rnd.IntN(62))
		v := appendGRPCTimeout(nil, d)
		got, ok := parseGRPCTimeout(v)
		if !ok || got < d || got > d+d/10000+1 {
			t.Fatalf("%v is written as %q and read as %v %v", d, v, got, ok)
		}
	}
}

func FuzzGRPCTimeout(f *testing.F) {
	for _, s := range []string{"1S", "100m", "99999999H", "1", "S", "1.0S"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, v string) {
		d, ok := parseGRPCTimeout([]byte(v))
		if !ok {
			return
		}
		if d < 0 || d > maxGRPCTimeout {
			t.Fatalf("%q: %v", v, d)
		}
		if again, ok := parseGRPCTimeout(appendGRPCTimeout(nil, d)); !ok || again < d {
			t.Fatalf("%q: %v is written as %v", v, d, again)
		}
	})
}

// TestGRPCMessage: what is written is printable, and a percent-decoder gives the
// text back.
func TestGRPCMessage(t *testing.T) {
	for in, want := range map[string]string{"": "", "plain (x)": "plain (x)", "a\tb\n": "a%09b%0A", "100%": "100%25", "\t\ntest ☺\x7f": "%09%0Atest %E2%98%BA%7F"} {
		if got := string(appendGRPCMessage(nil, []byte(in))); got != want {
			t.Errorf("%q is written as %q, want %q", in, got, want)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		b := make([]byte, rnd.IntN(40))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		v := string(appendGRPCMessage(nil, b))
		if back, err := url.PathUnescape(v); err != nil || back != string(b) || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q is written as %q, read as %q: %v", b, v, back, err)
		}
	}
}

func TestGRPCPushback(t *testing.T) {
	for v, want := range map[string]time.Duration{"0": 0, "100": 100 * time.Millisecond, "-1": -1, "": -1, "1s": -1, "1.5": -1, "9999999999": -1, "999999999": maxRetryDelay} {
		if got := pushback([]byte(v)); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
}

// TestReasonsAsStatuses pins what gRPC's clients are told for each reason: they act
// on it, and UNAVAILABLE invites them to call again.
func TestReasonsAsStatuses(t *testing.T) {
	others := map[message.Reason]string{
		message.OK: "OK", message.ClientAbort: "CANCELLED", message.NoRoute: "UNIMPLEMENTED", message.BadRequest: "INTERNAL",
		message.ResponseTimeout: "DEADLINE_EXCEEDED", message.RequestTimeout: "DEADLINE_EXCEEDED", message.DeadlineExceeded: "DEADLINE_EXCEEDED",
		message.BodyTimeout: "DEADLINE_EXCEEDED", message.WriteTimeout: "DEADLINE_EXCEEDED", message.HeaderTimeout: "UNKNOWN",
		message.BodyTooLarge: "RESOURCE_EXHAUSTED", message.HeaderTooLarge: "RESOURCE_EXHAUSTED", message.URITooLong: "RESOURCE_EXHAUSTED",
		message.RateLimited: "RESOURCE_EXHAUSTED", message.RetryBudgetEmpty: "UNKNOWN", message.DrainClosed: "UNKNOWN",
	}
	for r := range message.Reasons {
		want, ok := others[r]
		if !ok {
			want = "UNAVAILABLE"
		}
		if got := r.GRPC().String(); got != want {
			t.Errorf("%s is %s, want %s", r, got, want)
		}
	}
	for status, want := range map[int]string{400: "INTERNAL", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "UNIMPLEMENTED", 405: "UNKNOWN", 418: "UNKNOWN", 429: "UNAVAILABLE", 500: "UNKNOWN", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "UNAVAILABLE"} {
		if got := message.GRPCFromHTTP(status).String(); got != want {
			t.Errorf("%d is %s, want %s", status, got, want)
		}
	}
	for v, want := range map[string]string{"0": "OK", "14": "UNAVAILABLE", "016": "UNAUTHENTICATED", "17": "UNKNOWN", "": "UNKNOWN", "-1": "UNKNOWN", "99999999999999999999": "UNKNOWN", "x": "UNKNOWN"} {
		if got := message.ParseGRPCStatus([]byte(v)).String(); got != want {
			t.Errorf("%q is %s, want %s", v, got, want)
		}
	}
}
