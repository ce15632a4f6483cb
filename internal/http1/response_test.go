// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/message"
)

func TestResponseForwarded(t *testing.T) {
	for _, c := range []struct{ name, in, out string }{
		{"sized", "HTTP/1.1 200 OK\nServer: s\ncontent-length: 3\n\n", "HTTP/1.1 200 OK\nServer: s\ncontent-length: 3\n\n"},
		{"own phrase", "HTTP/1.1 200 Fine, \xe4\tthanks\nContent-Length: 0\n\n", "HTTP/1.1 200 Fine, \xe4\tthanks\nContent-Length: 0\n\n"},
		{"empty phrase", "HTTP/1.1 200 \nContent-Length: 0\n\n", "HTTP/1.1 200 OK\nContent-Length: 0\n\n"},
		{"no phrase", "HTTP/1.1 299\nContent-Length: 0\n\n", "HTTP/1.1 299 \nContent-Length: 0\n\n"},
		{"chunked", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n"},
		{"length between tabs", "HTTP/1.1 200 OK\nContent-Length:\t3\t\n\n", "HTTP/1.1 200 OK\nContent-Length: 3\n\n"},
		{"coding between tabs", "HTTP/1.1 200 OK\nTransfer-Encoding:\tchunked\t\n\n", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n"},
		{"hop fields leave", "HTTP/1.1 200 OK\nConnection: keep-alive\nKeep-Alive: timeout=5\nProxy-Connection: x\nContent-Length: 1\n\n", "HTTP/1.1 200 OK\nContent-Length: 1\n\n"},
		{"close is said anew", "HTTP/1.1 200 OK\nconnection: Close\nContent-Length: 1\n\n", "HTTP/1.1 200 OK\nContent-Length: 1\nConnection: close\n\n"},
		{"204 with length 0", "HTTP/1.1 204 No Content\nContent-Length: 0\nA: b\n\n", "HTTP/1.1 204 No Content\nA: b\n\n"},
		{"304 keeps its length", "HTTP/1.1 304 Not Modified\nContent-Length: 9\n\n", "HTTP/1.1 304 Not Modified\nContent-Length: 9\n\n"},
		{"304 with a coding", "HTTP/1.1 304 Not Modified\nTransfer-Encoding: chunked\n\n", "HTTP/1.1 304 Not Modified\n\n"},
		{"101", "HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: upgrade\nA: b\n\n", "HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nA: b\nConnection: Upgrade\n\n"},
		{"103", "HTTP/1.1 103 Early Hints\nLink: </a>\n\n", "HTTP/1.1 103 Early Hints\nLink: </a>\n\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := crlf(c.in)
			r := new(message.Response)
			n, err := ParseResponse([]byte(raw), &Limits{}, r, false)
			if err != nil || n != len(raw) {
				t.Fatalf("ParseResponse = %d, %v", n, err)
			}
			if got := string(AppendResponse(nil, r)); got != crlf(c.out) {
				t.Errorf("forwarded\n%q, want\n%q", got, crlf(c.out))
			}
		})
	}
}

func TestResponseRefused(t *testing.T) {
	ok := "HTTP/1.1 200 OK\r\n"
	for _, c := range []struct {
		name, in string
		want     *Error
	}{
		{"length and coding", ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", errBoth},
		{"length and coding, no content", "HTTP/1.1 304 x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", errBoth},
		{"repeated length", ok + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", errLengthTwice},
		{"list of lengths", ok + "Content-Length: 5,5\r\n\r\n", errLength},
		{"negative length", ok + "Content-Length: -1\r\n\r\n", errLength},
		{"coding gzip", ok + "Transfer-Encoding: gzip\r\n\r\n", errCoding},
		{"coding in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", errCodingOld},
		{"coding look-alike", ok + "Transfer_Encoding: chunked\r\n\r\n", errLookalike},
		{"bare LF", "HTTP/1.1 200 OK\nA: b\r\n\r\n", errBareLF},
		{"bare LF after status", "HTTP/1.1 200\nA: b\r\n\r\n", errBareLF},
		{"bare CR", "HTTP/1.1 200 OK\rA: b\r\n\r\n", errBareCR},
		{"obs-fold", ok + "A: b\r\n c\r\n\r\n", errFold},
		{"space before colon", ok + "A : b\r\n\r\n", errNameSpace},
		{"NUL in a value", ok + "A: \x00\r\n\r\n", errValue},
		{"control in the phrase", "HTTP/1.1 200 O\x01K\r\n\r\n", errStatusLine},
		{"leading CRLF", "\r\nHTTP/1.1 200 OK\r\n\r\n", errStatusLine},
		{"two spaces", "HTTP/1.1  200 OK\r\n\r\n", errStatusLine},
		{"two digits", "HTTP/1.1 20 OK\r\n\r\n", errStatusLine},
		{"four digits", "HTTP/1.1 2000 OK\r\n\r\n", errStatusLine},
		{"status below 100", "HTTP/1.1 099 OK\r\n\r\n", errStatusLine},
		{"signed status", "HTTP/1.1 +20 OK\r\n\r\n", errStatusLine},
		{"tab after status", "HTTP/1.1 200\tOK\r\n\r\n", errStatusLine},
		{"HTTP/2.0", "HTTP/2.0 200 OK\r\n\r\n", errStatusLine},
		{"ICY", "ICY 200 OK\r\nContent-Length: 1\r\n\r\n", errStatusLine},
		{"a request", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", errStatusLine},
		{"101 without Upgrade", "HTTP/1.1 101 Switching Protocols\r\n\r\n", errSwitch},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n := range len(c.in) + 1 {
				got, err := ParseResponse([]byte(c.in[:n]), &Limits{}, new(message.Response), false)
				if got != 0 {
					t.Fatalf("%q accepted", c.in[:n])
				}
				if n == len(c.in) && err == nil {
					t.Fatal("not refused")
				}
				var e *Error
				if err != nil && (!errors.As(err, &e) || e.Detail != c.want.Detail || e.Reason != message.BadResponse || e.Status() != 502) {
					t.Fatalf("%q refused with %v, want %v", c.in[:n], err, c.want)
				}
			}
		})
	}
}

func TestResponseMeaning(t *testing.T) {
	for _, c := range []struct {
		in   string
		head bool
		want string
	}{
		{"HTTP/1.1 200 OK\nContent-Length: 3\n\n", false, "1 3"},
		{"HTTP/1.1 200 OK\nContent-Length: 003\n\n", false, "1 3"},
		{"HTTP/1.1 200 OK\nContent-Length: 3\n\n", true, "0 3"},
		{"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", false, "2 -1"},
		{"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", true, "0 -1"},
		{"HTTP/1.1 200 OK\n\n", false, "3 -1 close"},
		{"HTTP/1.1 200 OK\n\n", true, "0 -1"},
		{"HTTP/1.0 200 OK\nContent-Length: 3\n\n", false, "1 3 close"},
		{"HTTP/1.0 200 OK\nConnection: keep-alive\nContent-Length: 3\n\n", false, "1 3"},
		{"HTTP/1.0 200 OK\nConnection: keep-alive\n\n", false, "3 -1 close"},
		{"HTTP/1.1 304 x\nContent-Length: 3\n\n", false, "0 3"},
		{"HTTP/1.1 204 x\n\n", false, "0 -1"},
		{"HTTP/1.1 204 x\nContent-Length: 0\n\n", false, "0 -1"},
		{"HTTP/1.1 204 x\nContent-Length: 3\n\n", false, "0 -1 close"},
		{"HTTP/1.1 204 x\nTransfer-Encoding: chunked\n\n", false, "0 -1 close"},
		{"HTTP/1.1 103 x\n\n", false, "0 -1"},
		{"HTTP/1.1 101 x\nUpgrade: WebSocket\nConnection: Upgrade\n\n", false, "0 -1 websocket"},
		{"HTTP/1.1 101 x\nUpgrade: h2c\nConnection: Upgrade\n\n", false, "0 -1"},
		{"HTTP/1.1 204 x\nConnection: close\n\n", false, "0 -1 close"},
		{"HTTP/1.1 204 x\nKeep-Alive: timeout=5, max=100\n\n", false, "0 -1 5s"},
		{"HTTP/1.1 204 x\nKeep-Alive: max=9,  TimeOut = 15\n\n", false, "0 -1 15s"},
		{"HTTP/1.1 204 x\nKeep-Alive: timeout=-5\n\n", false, "0 -1"},
		{"HTTP/1.1 204 x\nKeep-Alive: timeout=99999999999\n\n", false, "0 -1"},
		{"HTTP/1.1 204 x\nConnection: X-A\n\n", false, "0 -1 named"},
	} {
		r := new(message.Response)
		if n, err := ParseResponse([]byte(crlf(c.in)), &Limits{}, r, c.head); n == 0 || err != nil {
			t.Errorf("%q: %d, %v", c.in, n, err)
			continue
		}
		got := fmt.Sprint(r.Body, " ", r.ContentLength)
		if r.Close {
			got += " close"
		}
		if r.WebSocket {
			got += " websocket"
		}
		if r.KeepAlive > 0 {
			got += fmt.Sprintf(" %ds", r.KeepAlive)
		}
		if r.ConnectionNamed {
			got += " named"
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

func TestResponseLimits(t *testing.T) {
	lim := &Limits{MaxHeaderBytes: 100}
	for _, in := range []string{
		"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 100),
		"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 100) + "\r\n\r\n",
		"HTTP/1.1 200 " + strings.Repeat("a", 100),
	} {
		var e *Error
		if _, err := ParseResponse([]byte(in), lim, new(message.Response), false); !errors.As(err, &e) || e.Reason != message.BadResponse {
			t.Errorf("%q: %v", in, err)
		}
	}
}
