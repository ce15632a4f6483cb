// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/message"
)

// crlf turns the readable form of a head into its wire form.
func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func mustParse(t *testing.T, raw string) *message.Request {
	t.Helper()
	r := new(message.Request)
	n, err := ParseRequest([]byte(raw), &Limits{}, r)
	if err != nil || n != len(raw) {
		t.Fatalf("ParseRequest(%q) = %d, %v; want %d", raw, n, err, len(raw))
	}
	return r
}

// TestRequestForwarded asserts the bytes that leave for each accepted form.
func TestRequestForwarded(t *testing.T) {
	for _, c := range []struct{ name, in, out string }{
		{"plain", "GET /a?b=c HTTP/1.1\nHost: x.example\n\n", "GET /a?b=c HTTP/1.1\nHost: x.example\n\n"},
		{"case and order kept", "GET / HTTP/1.1\nzZ: 1\nhOST: x\nAa:2\n\n", "GET / HTTP/1.1\nzZ: 1\nhOST: x\nAa:2\n\n"},
		{"leading CRLF", "\nGET / HTTP/1.1\nHost: x\n\n", "GET / HTTP/1.1\nHost: x\n\n"},
		{"HTTP/1.0 without Host", "GET / HTTP/1.0\n\n", "GET / HTTP/1.1\nHost: \n\n"},
		{"HTTP/1.0 with Host", "GET / HTTP/1.0\nHost: x\n\n", "GET / HTTP/1.1\nHost: x\n\n"},
		{"empty query", "GET /? HTTP/1.1\nHost: x\n\n", "GET /? HTTP/1.1\nHost: x\n\n"},
		{"two question marks", "GET /?a?b HTTP/1.1\nHost: x\n\n", "GET /?a?b HTTP/1.1\nHost: x\n\n"},
		{"absolute wins over Host", "GET http://right.example/p?q HTTP/1.1\nHost: wrong.example\nA: b\n\n", "GET /p?q HTTP/1.1\nA: b\nHost: right.example\n\n"},
		{"absolute, same Host", "GET HTTP://x/ HTTP/1.1\nHost: x\n\n", "GET / HTTP/1.1\nHost: x\n\n"},
		{"absolute without path", "GET https://x HTTP/1.1\nHost: x\n\n", "GET / HTTP/1.1\nHost: x\n\n"},
		{"absolute, query only", "GET http://x?q HTTP/1.1\nHost: x\n\n", "GET /?q HTTP/1.1\nHost: x\n\n"},
		{"absolute in HTTP/1.0", "GET http://x/ HTTP/1.0\n\n", "GET / HTTP/1.1\nHost: x\n\n"},
		{"OPTIONS asterisk", "OPTIONS * HTTP/1.1\nHost: x\n\n", "OPTIONS * HTTP/1.1\nHost: x\n\n"},
		{"OPTIONS absolute", "OPTIONS http://x HTTP/1.1\nHost: x\n\n", "OPTIONS * HTTP/1.1\nHost: x\n\n"},
		{"CONNECT", "CONNECT x:443 HTTP/1.1\nHost: x\n\n", "CONNECT x:443 HTTP/1.1\nHost: x\n\n"},
		{"hop fields leave", "GET / HTTP/1.1\nHost: x\nConnection: keep-alive\nKeep-Alive: timeout=5\nProxy-Connection: close\nUpgrade: h2c\nA: b\n\n", "GET / HTTP/1.1\nHost: x\nA: b\n\n"},
		{"websocket", "GET / HTTP/1.1\nHost: x\nConnection: keep-alive, Upgrade\nUpgrade: WebSocket\n\n", "GET / HTTP/1.1\nHost: x\nUpgrade: WebSocket\nConnection: Upgrade\n\n"},
		{"upgrade to two", "GET / HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: websocket, h2c\n\n", "GET / HTTP/1.1\nHost: x\n\n"},
		{"upgrade not named", "GET / HTTP/1.1\nHost: x\nUpgrade: websocket\n\n", "GET / HTTP/1.1\nHost: x\n\n"},
		{"upgrade with content", "GET / HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: websocket\nContent-Length: 3\n\n", "GET / HTTP/1.1\nHost: x\nContent-Length: 3\n\n"},
		{"length", "POST / HTTP/1.1\nHost: x\ncontent-length:  5 \n\n", "POST / HTTP/1.1\nHost: x\ncontent-length:  5 \n\n"},
		{"length zero", "POST / HTTP/1.1\nHost: x\nContent-Length: 0\n\n", "POST / HTTP/1.1\nHost: x\nContent-Length: 0\n\n"},
		{"length with leading zeros", "POST / HTTP/1.1\nHost: x\nContent-Length: 0010\n\n", "POST / HTTP/1.1\nHost: x\nContent-Length: 10\n\n"},
		{"largest length", "POST / HTTP/1.1\nHost: x\nContent-Length: 9223372036854775807\n\n", "POST / HTTP/1.1\nHost: x\nContent-Length: 9223372036854775807\n\n"},
		{"chunked", "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: Chunked\n\n", "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: Chunked\n\n"},
		{"length between tabs", "POST / HTTP/1.1\nHost: x\ncontent-length:\t5 \t\n\n", "POST / HTTP/1.1\nHost: x\ncontent-length: 5\n\n"},
		{"coding behind a tab", "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: \tchunked\nA: b\n\n", "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nA: b\n\n"},
		{"coding before a tab", "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\t\n\n", "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n"},
		{"host between tabs", "GET / HTTP/1.1\nHost:\tx\t\n\n", "GET / HTTP/1.1\nHost: x\n\n"},
		{"expect without content", "GET / HTTP/1.1\nHost: x\nExpect: 100-continue\n\n", "GET / HTTP/1.1\nHost: x\n\n"},
		{"expect in HTTP/1.0", "POST / HTTP/1.0\nHost: x\nContent-Length: 1\nExpect: 100-continue\n\n", "POST / HTTP/1.1\nHost: x\nContent-Length: 1\n\n"},
		{"expect", "POST / HTTP/1.1\nHost: x\nContent-Length: 1\nExpect: 100-Continue\n\n", "POST / HTTP/1.1\nHost: x\nContent-Length: 1\nExpect: 100-Continue\n\n"},
		{"values", "GET / HTTP/1.1\nHost: x\nA: \t b\tc\xff \t\nEmpty:\n\n", "GET / HTTP/1.1\nHost: x\nA: \t b\tc\xff \t\nEmpty:\n\n"},
		{"bytes above ASCII in a target", "GET /\xc3\xa4 HTTP/1.1\nHost: x\n\n", "GET /\xc3\xa4 HTTP/1.1\nHost: x\n\n"},
		{"IPv6 host", "GET / HTTP/1.1\nHost: [::1]:8080\n\n", "GET / HTTP/1.1\nHost: [::1]:8080\n\n"},
		{"odd method", "M-SEARCH * HTTP/1.1\nHost: x\n\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.out == "" {
				if _, err := ParseRequest([]byte(crlf(c.in)), &Limits{}, new(message.Request)); err == nil {
					t.Fatal("accepted")
				}
				return
			}
			r := mustParse(t, crlf(c.in))
			if got := string(AppendRequest(nil, r)); got != crlf(c.out) {
				t.Errorf("forwarded\n%q, want\n%q", got, crlf(c.out))
			}
			again := string(AppendRequest(nil, r))
			if again != crlf(c.out) {
				t.Errorf("a retry would send\n%q", again)
			}
		})
	}
}

// TestRequestRefused names what is wrong with each refused form, and that a
// prefix of it never is accepted.
func TestRequestRefused(t *testing.T) {
	ok := "GET / HTTP/1.1\r\nHost: x\r\n"
	for _, c := range []struct {
		name, in string
		want     *Error
	}{
		{"length and coding", ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", errBoth},
		{"coding and length", ok + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", errBoth},
		{"differing lengths", ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", errLengthTwice},
		{"repeated length", ok + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", errLengthTwice},
		{"list of lengths", ok + "Content-Length: 5, 5\r\n\r\n", errLength},
		{"signed length", ok + "Content-Length: +5\r\n\r\n", errLength},
		{"negative length", ok + "Content-Length: -5\r\n\r\n", errLength},
		{"empty length", ok + "Content-Length:\r\n\r\n", errLength},
		{"hex length", ok + "Content-Length: 0x5\r\n\r\n", errLength},
		{"length with a space", ok + "Content-Length: 1 2\r\n\r\n", errLength},
		{"overflowing length", ok + "Content-Length: 9223372036854775808\r\n\r\n", errLength},
		{"overlong length", ok + "Content-Length: 00000000000000000001\r\n\r\n", errLength},
		{"coding gzip, chunked", ok + "Transfer-Encoding: gzip, chunked\r\n\r\n", errCoding},
		{"coding chunked, chunked", ok + "Transfer-Encoding: chunked, chunked\r\n\r\n", errCoding},
		{"coding chunked, gzip", ok + "Transfer-Encoding: chunked, gzip\r\n\r\n", errCoding},
		{"coding list with an empty element", ok + "Transfer-Encoding: ,chunked\r\n\r\n", errCoding},
		{"coding identity", ok + "Transfer-Encoding: identity\r\n\r\n", errCoding},
		{"coding xchunked", ok + "Transfer-Encoding: xchunked\r\n\r\n", errCoding},
		{"coding quoted", ok + "Transfer-Encoding: \"chunked\"\r\n\r\n", errCoding},
		{"coding with a parameter", ok + "Transfer-Encoding: chunked;q=1\r\n\r\n", errCoding},
		{"coding empty", ok + "Transfer-Encoding:\r\n\r\n", errCoding},
		{"coding twice", ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", errCodingTwice},
		{"coding and then another", ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", errCodingTwice},
		{"coding with VT", ok + "Transfer-Encoding: \vchunked\r\n\r\n", errValue},
		{"coding in HTTP/1.0", "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", errCodingOld},
		{"coding look-alike", ok + "Transfer_Encoding: chunked\r\n\r\n", errLookalike},
		{"length look-alike", ok + "content.length: 5\r\n\r\n", errLookalike},
		{"bare LF after request line", "GET / HTTP/1.1\nHost: x\r\n\r\n", errBareLF},
		{"bare LF after field", "GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", errBareLF},
		{"bare LF at the end", ok + "\n", errBareLF},
		{"bare LF in a name", ok + "A\nB: c\r\n\r\n", errBareLF},
		{"bare LF before", "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", errBareLF},
		{"bare CR in a value", ok + "A: b\rc\r\n\r\n", errBareCR},
		{"bare CR at the end", ok + "\rX", errBareCR},
		{"bare CR after version", "GET / HTTP/1.1\rHost: x\r\n\r\n", errBareCR},
		{"bare CR before", "\rGET / HTTP/1.1\r\nHost: x\r\n\r\n", errBareCR},
		{"two CRLF before", "\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", errMethod},
		{"obs-fold", ok + "A: b\r\n c\r\n\r\n", errFold},
		{"obs-fold with a tab", ok + "A: b\r\n\tc\r\n\r\n", errFold},
		{"fold before the first field", "GET / HTTP/1.1\r\n Host: x\r\n\r\n", errFold},
		{"space before colon", ok + "A : b\r\n\r\n", errNameSpace},
		{"tab before colon", ok + "Content-Length\t: 5\r\n\r\n", errNameSpace},
		{"empty name", ok + ": b\r\n\r\n", errNameEmpty},
		{"no colon", ok + "A\r\n\r\n", errName},
		{"name with a slash", ok + "A/B: c\r\n\r\n", errName},
		{"name with NUL", ok + "A\x00: c\r\n\r\n", errName},
		{"name above ASCII", ok + "\xc3\x84: c\r\n\r\n", errName},
		{"NUL in a value", ok + "A: b\x00c\r\n\r\n", errValue},
		{"DEL in a value", ok + "A: b\x7fc\r\n\r\n", errValue},
		{"ESC in a value", ok + "A: 0123456789\x1b\r\n\r\n", errValue},
		{"no Host", "GET / HTTP/1.1\r\n\r\n", errHostMissing},
		{"no Host with absolute", "GET http://x/ HTTP/1.1\r\n\r\n", errHostMissing},
		{"two Hosts", ok + "Host: x\r\n\r\n", errHostTwice},
		{"two Hosts in HTTP/1.0", "GET / HTTP/1.0\r\nHost: x\r\nhost: y\r\n\r\n", errHostTwice},
		{"empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", errHost},
		{"Host with a list", "GET / HTTP/1.1\r\nHost: a,b\r\n\r\n", errHost},
		{"Host with a space", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", errHost},
		{"Host with userinfo", "GET / HTTP/1.1\r\nHost: u@x\r\n\r\n", errHost},
		{"Host with a path", "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", errHost},
		{"Host with an escape", "GET / HTTP/1.1\r\nHost: x%2ey\r\n\r\n", errHost},
		{"Host with an empty port", "GET / HTTP/1.1\r\nHost: x:\r\n\r\n", errHost},
		{"Host with a word for a port", "GET / HTTP/1.1\r\nHost: x:http\r\n\r\n", errHost},
		{"Host with a large port", "GET / HTTP/1.1\r\nHost: x:65536\r\n\r\n", errHost},
		{"Host with port 0", "GET / HTTP/1.1\r\nHost: x:0\r\n\r\n", errHost},
		{"Host with an open bracket", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", errHost},
		{"Host with a zone", "GET / HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n\r\n", errHost},
		{"Host above ASCII", "GET / HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n", errHost},
		{"port alone", "GET / HTTP/1.1\r\nHost: :80\r\n\r\n", errHost},
		{"userinfo in the target", "GET http://u:p@x/ HTTP/1.1\r\nHost: x\r\n\r\n", errUserinfo},
		{"userinfo without password", "GET http://u@x/ HTTP/1.1\r\nHost: x\r\n\r\n", errUserinfo},
		{"absolute without authority", "GET http:///p HTTP/1.1\r\nHost: x\r\n\r\n", errAuthority},
		{"other scheme", "GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"target without slash", "GET index.html HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"asterisk with GET", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"CONNECT with a path", "CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n", errAuthority},
		{"CONNECT without port", "CONNECT x HTTP/1.1\r\nHost: x\r\n\r\n", errAuthority},
		{"authority with GET", "GET x:80 HTTP/1.1\r\nHost: x\r\n\r\n", errTargetForm},
		{"fragment", "GET /#f HTTP/1.1\r\nHost: x\r\n\r\n", errFragment},
		{"tab in the target", "GET /\tx HTTP/1.1\r\nHost: x\r\n\r\n", errTarget},
		{"NUL in the target", "GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", errTarget},
		{"two spaces", "GET  / HTTP/1.1\r\nHost: x\r\n\r\n", errTarget},
		{"space in the target", "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", errVersion},
		{"space at the end", "GET / HTTP/1.1 \r\nHost: x\r\n\r\n", errVersion},
		{"HTTP/0.9", "GET /\r\nHost: x\r\n\r\n", errVersionOld},
		{"HTTP/1.2", "GET / HTTP/1.2\r\nHost: x\r\n\r\n", errVersionUnk},
		{"HTTP/2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", errVersionUnk},
		{"HTTP/1.10", "GET / HTTP/1.10\r\nHost: x\r\n\r\n", errVersion},
		{"HTTP/01.1", "GET / HTTP/01.1\r\nHost: x\r\n\r\n", errVersion},
		{"lower-case version", "GET / http/1.1\r\nHost: x\r\n\r\n", errVersion},
		{"no method", " / HTTP/1.1\r\nHost: x\r\n\r\n", errMethod},
		{"method with a colon", "GE:T / HTTP/1.1\r\nHost: x\r\n\r\n", errMethod},
		{"overlong method", strings.Repeat("A", 33) + " / HTTP/1.1\r\nHost: x\r\n\r\n", errMethod},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01", errMethod},
		{"unknown expectation", ok + "Expect: 200-ok\r\n\r\n", errExpect},
		{"TRACE with content", "TRACE / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n", errTraceBody},
		{"Connection with a space", ok + "Connection: keep alive\r\n\r\n", errConnection},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n := range len(c.in) + 1 {
				got, err := ParseRequest([]byte(c.in[:n]), &Limits{}, new(message.Request))
				if got != 0 {
					t.Fatalf("%q accepted", c.in[:n])
				}
				if n == len(c.in) && err == nil {
					t.Fatalf("not refused: %q", c.in)
				}
				if err != nil && !errors.Is(err, c.want) {
					t.Fatalf("%q refused with %v, want %v", c.in[:n], err, c.want)
				}
			}
		})
	}
}

func TestRequestLimits(t *testing.T) {
	lim := &Limits{MaxHeaderBytes: 200, MaxFields: 3, MaxTarget: 20}
	for _, c := range []struct {
		name, in string
		want     *Error
		status   int
	}{
		{"target", "GET /" + strings.Repeat("a", 20) + " HTTP/1.1\r\nHost: x\r\n\r\n", errTargetLong, 414},
		{"target without end", "GET /" + strings.Repeat("a", 20), errTargetLong, 414},
		{"fields", "GET / HTTP/1.1\r\nHost: x\r\na:\r\nb:\r\nc:\r\n\r\n", errTooMany, 431},
		{"head", "GET / HTTP/1.1\r\nHost: x\r\na: " + strings.Repeat("a", 200) + "\r\n\r\n", errTooLarge, 431},
		{"head without end", "GET / HTTP/1.1\r\nHost: x\r\na: " + strings.Repeat("a", 200), errTooLarge, 431},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseRequest([]byte(c.in), lim, new(message.Request))
			var e *Error
			if !errors.As(err, &e) || e != c.want || e.Status() != c.status {
				t.Errorf("got %v, want %v with %d", err, c.want, c.status)
			}
		})
	}
	// Exactly at the limit is fine, one byte more is not.
	head := "GET / HTTP/1.1\r\nHost: x\r\na: "
	fit := head + strings.Repeat("a", 200-len(head)-4) + "\r\n\r\n"
	if n, err := ParseRequest([]byte(fit), lim, new(message.Request)); n != 200 || err != nil {
		t.Errorf("200 bytes: %d, %v", n, err)
	}
	if _, err := ParseRequest([]byte(fit[:len(fit)-4]+"a\r\n\r\n"), lim, new(message.Request)); !errors.Is(err, errTooLarge) {
		t.Errorf("201 bytes: %v", err)
	}
}

// TestRequestMeaning covers what the head says beside its text.
func TestRequestMeaning(t *testing.T) {
	for _, c := range []struct {
		in   string
		want string
	}{
		{"GET / HTTP/1.1\nHost: x\n\n", ""},
		{"GET / HTTP/1.1\nHost: x\nConnection: close\n\n", "close"},
		{"GET / HTTP/1.1\nHost: x\nConnection: Keep-Alive , CLOSE,\n\n", "close"},
		{"GET / HTTP/1.1\nHost: x\nConnection: a\nConnection: close\n\n", "close named"},
		{"GET / HTTP/1.1\nHost: x\nConnection: TE\nTE: trailers\n\n", "named"},
		{"GET / HTTP/1.0\n\n", "close"},
		{"GET / HTTP/1.0\nConnection: keep-alive\n\n", "asked"},
		{"GET / HTTP/1.0\nConnection: keep-alive, close\n\n", "close"},
		{"POST / HTTP/1.1\nHost: x\nContent-Length: 7\nExpect: 100-continue\n\n", "sized 7 expect"},
		{"POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n", "chunked"},
		{"GET / HTTP/1.1\nHost: x\nUpgrade: websocket\nConnection: upgrade\n\n", "websocket"},
		{"POST / HTTP/1.1\nHost: x\nUpgrade: websocket\nConnection: upgrade\n\n", ""},
		{"GET / HTTP/1.0\nUpgrade: websocket\nConnection: upgrade\n\n", "close"},
	} {
		r := mustParse(t, crlf(c.in))
		var got []string
		for _, f := range []struct {
			on   bool
			name string
		}{
			{r.Close, "close"}, {r.ConnectionNamed, "named"}, {r.KeepAliveAsked, "asked"},
			{r.Body == message.Sized, fmt.Sprintf("sized %d", r.ContentLength)},
			{r.Body == message.Chunked, "chunked"}, {r.ExpectContinue, "expect"}, {r.WebSocket, "websocket"},
		} {
			if f.on {
				got = append(got, f.name)
			}
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%q: %q, want %q", c.in, g, c.want)
		}
	}
}

// TestFieldIDs checks every known name, in two cases, and that neighbours of it
// are not taken for it.
func TestFieldIDs(t *testing.T) {
	names := map[string]message.FieldID{
		"Host": message.Host, "Content-Length": message.ContentLength, "Transfer-Encoding": message.TransferEncoding,
		"Connection": message.Connection, "Keep-Alive": message.KeepAlive, "Proxy-Connection": message.ProxyConnection,
		"TE": message.TE, "Trailer": message.Trailer, "Upgrade": message.Upgrade, "Expect": message.Expect, "Via": message.Via,
		"X-Forwarded-For": message.XForwardedFor, "X-Forwarded-Proto": message.XForwardedProto,
		"X-Forwarded-Host": message.XForwardedHost, "X-Forwarded-Port": message.XForwardedPort, "X-Real-IP": message.XRealIP,
		"Forwarded": message.Forwarded, "X-Request-Id": message.XRequestID, "Traceparent": message.Traceparent,
		"Tracestate": message.Tracestate, "Authorization": message.Authorization,
		"Proxy-Authorization": message.ProxyAuthorization, "Proxy-Authenticate": message.ProxyAuthenticate,
		"Cookie": message.Cookie, "Set-Cookie": message.SetCookie, "Retry-After": message.RetryAfter, "Date": message.Date,
		"Server": message.Server, "Content-Type": message.ContentType, "Idempotency-Key": message.IdempotencyKey,
		"HTTP2-Settings": message.HTTP2Settings, "X-Weir-Attempt": message.WeirAny, "X-Weir-A": message.WeirAny,
		"User-Agent": message.UserAgent, "Referer": message.Referer, "Max-Forwards": message.MaxForwards,
		"Endpoint-Load-Metrics": message.LoadReport, "Endpoint-Load-Metrics-Bin": message.LoadReportBin,
		"X-Forwarded-Client-Cert": message.ClientCert, "Client-Cert": message.ClientCert, "Client-Cert-Chain": message.ClientCert,
		"X-Weir-": message.Other, "Accept": message.Other, "X": message.Other, "Content-Encoding": message.Other,
	}
	seen := map[message.FieldID]bool{}
	for name, want := range names {
		seen[want] = true
		for _, n := range []string{name, strings.ToLower(name), strings.ToUpper(name)} {
			if got := FieldID([]byte(n)); got != want {
				t.Errorf("%s: %d, want %d", n, got, want)
			}
		}
		if want == message.WeirAny || want == message.Other {
			continue
		}
		for i := range name {
			for _, c := range "az-_0~^" {
				n := name[:i] + string(c) + name[i+1:]
				if !strings.EqualFold(n, name) && FieldID([]byte(n)) == want {
					t.Errorf("%s taken for %s", n, name)
				}
			}
		}
	}
	for id := message.Other; id < message.Lookalike; id++ {
		if !seen[id] {
			t.Errorf("field id %d is never recognised here", id)
		}
	}
	for name, want := range map[string]message.FieldID{
		"X_Forwarded_For": message.Lookalike, "x.real~ip": message.Lookalike, "X_Weir_Attempt": message.Lookalike,
		"Proxy_Authorization": message.Lookalike, "X_Request-ID": message.Lookalike, "User_Agent": message.Other,
		"X_Weir_" + strings.Repeat("a", 40): message.Lookalike, "a_b": message.Other, strings.Repeat("_", 50): message.Other,
	} {
		r := mustParse(t, "GET / HTTP/1.1\r\nHost: x\r\n"+name+": v\r\n\r\n")
		if got := r.Fields.ID(1); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

func TestFirstControl(t *testing.T) {
	for n := range 40 {
		b := []byte(strings.Repeat("\xffA ~\x80", 8)[:n])
		if got := firstControl(b, 0); got != n {
			t.Fatalf("%q: %d", b, got)
		}
		for i := range n {
			for _, c := range []byte{0, 9, 10, 13, 31, 127} {
				d := append([]byte(nil), b...)
				d[i] = c
				if got := firstControl(d, 0); got != i {
					t.Fatalf("%q: %d, want %d", d, got, i)
				}
				if got := firstControl(d, i+1); got != n {
					t.Fatalf("%q after %d: %d, want %d", d, i, got, n)
				}
			}
		}
	}
}

// A standard method in other letters has two readings; any other token is a
// method of its own.
func TestMethodCase(t *testing.T) {
	lim := Limits{}
	for m, ok := range map[string]bool{"GET": true, "gET": false, "get": false, "Post": false, "pAtCh": false, "M-Search": true, "purge": true, "gets": true} {
		var r message.Request
		_, err := ParseRequest([]byte(m+" / HTTP/1.1\r\nHost: a\r\n\r\n"), &lim, &r)
		if (err == nil) != ok {
			t.Errorf("%s: %v, want accepted %t", m, err, ok)
		}
	}
}
