// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/message"
)

// requestSeeds are heads that lie near the decisions.
var requestSeeds = []string{
	"GET / HTTP/1.1\nHost: x\n\n", "\nGET /a/b?c=d&e HTTP/1.1\nHost: x.example:8080\nUser-Agent: curl/8.5.0\nAccept: */*\n\n",
	"POST /p HTTP/1.1\nHost: x\nContent-Length: 5\n\nhello", "POST /p HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n5\nhello\n0\n\n",
	"GET http://y/?q HTTP/1.1\nHost: x\nConnection: close, x-a\n\n", "OPTIONS * HTTP/1.0\n\n", "CONNECT x:443 HTTP/1.1\nHost: x:443\n\n",
	"GET / HTTP/1.1\nHost: [::1]:1\nConnection: Upgrade\nUpgrade: websocket\n\n", "PUT / HTTP/1.1\nHost: x\nContent-Length: 007\nExpect: 100-continue\n\n",
	"GET / HTTP/1.1\nHost: x\nContent-Length: 1\nTransfer-Encoding: chunked\n\n", "GET / HTTP/1.1\nHost: x\nA: b\n c\n\n", "GET / HTTP/1.1\nHost: x\nA : b\n\n",
	"GET / HTTP/1.1\nHost: x\nTransfer_Encoding: chunked\n\n", "GET / HTTP/1.1\nHost: x\nX_Real_IP: 1\nX-Weir-A: 1\n\n", "GET / HTTP/1.2\nHost: x\n\n",
}

// FuzzParseRequest: no prefix of a good head is good or bad; what is forwarded
// reads the same; net/http reads the same request.
func FuzzParseRequest(f *testing.F) {
	for _, s := range requestSeeds {
		f.Add([]byte(crlf(s)))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var lim Limits
		r := new(message.Request)
		n, err := ParseRequest(raw, &lim, r)
		if err != nil {
			if n != 0 {
				t.Fatalf("%d bytes and %v", n, err)
			}
			var e *Error
			if !errors.As(err, &e) || e.Status() < 400 || e.Status() > 505 {
				t.Fatalf("error %v without a status", err)
			}
			return
		}
		if n == 0 {
			return
		}
		step := max(1, n/64)
		for k := 0; k < n; k += step {
			if got, err := ParseRequest(raw[:k:k], &lim, new(message.Request)); got != 0 || err != nil {
				t.Fatalf("prefix %q of %q: %d, %v", raw[:k], raw[:n], got, err)
			}
		}
		sameAsNetHTTP(t, raw, n, r)
		if len(r.Authority) == 0 {
			return // HTTP/1.0 without Host: the exchange gives it one
		}
		before := describeRequest(r)
		out := AppendRequest(nil, r)
		again := new(message.Request)
		if n, err := ParseRequest(out, &lim, again); n != len(out) || err != nil {
			t.Fatalf("%q is forwarded as %q, which is refused: %d, %v", raw, out, n, err)
		}
		if after := describeRequest(again); after != before {
			t.Fatalf("%q is forwarded as %q:\n%s\n%s", raw, out, before, after)
		}
	})
}

// describeRequest is what must survive forwarding.
func describeRequest(r *message.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q ? %q @ %q body %d %d expect %v ws %v", r.Method, r.Path, r.Query, r.Authority, r.Body, r.ContentLength, r.ExpectContinue, r.WebSocket)
	describeFields(&b, &r.Fields)
	return b.String()
}

func describeFields(b *strings.Builder, f *message.Fields) {
	for i := range f.Len() {
		switch id := f.ID(i); id {
		case message.Host, message.Connection, message.KeepAlive, message.ProxyConnection, message.Upgrade:
		case message.ContentLength: // moves when it is rewritten
		default:
			if !f.Removed(i) {
				fmt.Fprintf(b, "\n%d %q: %q", id, f.Name(i), f.Value(i))
			}
		}
	}
}

// sameAsNetHTTP: what is accepted here is accepted there and means the same.
func sameAsNetHTTP(t *testing.T, raw []byte, n int, r *message.Request) {
	if _, err := url.ParseRequestURI(string(r.Target)); err != nil && r.Path != nil {
		return // it checks escapes, which is route's business here
	}
	if r.Fields.Has(message.Trailer) {
		return // it refuses names there that are dropped here
	}
	if raw[0] == '\r' {
		raw, n = raw[2:], n-2
	}
	body := raw[n:]
	switch r.Body {
	case message.Sized:
		if int64(len(body)) > r.ContentLength {
			body = body[:r.ContentLength]
		}
	case message.NoBody:
		body = nil
	}
	h, err := http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(raw[:n]), bytes.NewReader(body))))
	if err != nil {
		if strings.Contains(err.Error(), "invalid URI") || strings.Contains(err.Error(), "parse ") {
			return
		}
		t.Fatalf("net/http refuses %q: %v", raw[:n], err)
	}
	if h.Method != string(r.Method) || h.RequestURI != string(r.Target) {
		t.Fatalf("net/http reads %q as %s %s", raw[:n], h.Method, h.RequestURI)
	}
	if h.Host != string(r.Authority) {
		t.Fatalf("net/http reads %q as for %q, not %q", raw[:n], h.Host, r.Authority)
	}
	if (r.Body == message.Chunked) != (len(h.TransferEncoding) == 1) || r.Body == message.Sized && h.ContentLength != r.ContentLength {
		t.Fatalf("net/http frames %q by %v, %d", raw[:n], h.TransferEncoding, h.ContentLength)
	}
	if r.Body != message.Chunked {
		return
	}
	var c ChunkReader
	want, _, done, err := readChunks(&c, string(body), 0)
	if !done || err != nil {
		return
	}
	got, err := io.ReadAll(h.Body)
	if err != nil && !strings.Contains(err.Error(), "too much non-data") || err == nil && string(got) != want {
		t.Fatalf("net/http reads the content of %q as %q, %v, not %q", raw, got, err, want)
	}
}

// FuzzParseResponse: the same for responses.
func FuzzParseResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", "HTTP/1.0 301 \nLocation: /\n\n", "HTTP/1.1 204\nKeep-Alive: timeout=5, max=3\n\n",
		"HTTP/1.1 101 x\nUpgrade: websocket\nConnection: upgrade\n\n", "HTTP/1.1 103 Early Hints\nLink: </a>\n\n", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n0\n\n",
		"HTTP/1.1 304 x\nContent-Length: 09\nTransfer-Encoding: chunked\n\n", "HTTP/1.1 200 \xff\tx\nSet-Cookie: a=b\n\n",
	} {
		f.Add([]byte(crlf(s)), false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, toHEAD bool) {
		var lim Limits
		r := new(message.Response)
		n, err := ParseResponse(raw, &lim, r, toHEAD)
		if err != nil {
			var e *Error
			if n != 0 || !errors.As(err, &e) || e.Reason != message.BadResponse {
				t.Fatalf("%d bytes and %v", n, err)
			}
			return
		}
		if n == 0 {
			return
		}
		step := max(1, n/64)
		for k := 0; k < n; k += step {
			if got, err := ParseResponse(raw[:k:k], &lim, new(message.Response), toHEAD); got != 0 || err != nil {
				t.Fatalf("prefix %q of %q: %d, %v", raw[:k], raw[:n], got, err)
			}
		}
		if toHEAD {
			return
		}
		describe := func(r *message.Response) string {
			var b strings.Builder
			fmt.Fprintf(&b, "%d body %d %d", r.Status, r.Body, r.ContentLength)
			describeFields(&b, &r.Fields)
			return b.String()
		}
		before := describe(r)
		out := AppendResponse(nil, r)
		again := new(message.Response)
		if n, err := ParseResponse(out, &lim, again, toHEAD); n != len(out) || err != nil {
			t.Fatalf("%q is forwarded as %q, which is refused: %d, %v", raw, out, n, err)
		}
		if after := describe(again); after != before {
			t.Fatalf("%q is forwarded as %q:\n%s\n%s", raw, out, before, after)
		}
	})
}

// FuzzChunk: any split gives the same content, trailers, end and error; content
// framed anew reads the same.
func FuzzChunk(f *testing.F) {
	for _, s := range []string{"5\nhello\n0\n\n", "1;a=\"b\"\nx\n00\nA: b\n\nrest", "a\n0123456789\n0;x\n\n", "8000000000000000\n", "0\nHost: x\nA:\n\n", "5 \nhello\n"} {
		f.Add([]byte(crlf(s)), uint8(3))
	}
	f.Fuzz(func(t *testing.T, raw []byte, piece uint8) {
		var whole, split ChunkReader
		want, n, done, err := readChunks(&whole, string(raw), 0)
		got, m, done2, err2 := readChunks(&split, string(raw), int(piece)%16+1)
		if got != want || done != done2 || !errors.Is(err, err2) || err == nil && n != m {
			t.Fatalf("%q: %q %d %v %v whole, %q %d %v %v split", raw, want, n, done, err, got, m, done2, err2)
		}
		if a, b := whole.Trailers().AppendWire(nil), split.Trailers().AppendWire(nil); done && !bytes.Equal(a, b) {
			t.Fatalf("%q: trailers %q and %q", raw, a, b)
		}
		if !done {
			return
		}
		again := appendChunk(nil, []byte(want))
		again = append(append(again, "0\r\n"...), whole.Trailers().AppendWire(nil)...)
		again = append(again, '\r', '\n')
		var c ChunkReader
		back, k, done, err := readChunks(&c, string(again), 0)
		if back != want || k != len(again) || !done || err != nil {
			t.Fatalf("%q framed anew is %q: %q %d %v %v", raw, again, back, k, done, err)
		}
	})
}
