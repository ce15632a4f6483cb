// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"strings"
	"testing"
)

// readChunks feeds raw in pieces of the given size (0: whole) and returns the
// content, how many bytes were consumed, and whether the body ended.
func readChunks(c *ChunkReader, raw string, piece int) (content string, consumed int, done bool, err error) {
	if piece == 0 {
		piece = len(raw)
	}
	var out strings.Builder
	for consumed < len(raw) && !c.Done() {
		buf := []byte(raw[consumed:min(consumed+piece, len(raw))])
		data, n, err := c.Next(buf)
		out.Write(data)
		consumed += n
		if err != nil {
			return out.String(), consumed, false, err
		}
		if n == 0 {
			return out.String(), consumed, c.Done(), errors.New("no progress")
		}
	}
	return out.String(), consumed, c.Done(), nil
}

func TestChunksAccepted(t *testing.T) {
	for _, c := range []struct{ name, in, want, rest, trailers string }{
		{"one", "5\r\nhello\r\n0\r\n\r\n", "hello", "", ""},
		{"two, and what follows", "3\r\nfoo\r\nA\r\n0123456789\r\n0\r\n\r\nGET /", "foo0123456789", "GET /", ""},
		{"hex in both cases", "a\r\n0123456789\r\nB\r\n0123456789a\r\n0\r\n\r\n", "01234567890123456789a", "", ""},
		{"leading zeros", "0005\r\nhello\r\n000\r\n\r\n", "hello", "", ""},
		{"CRLF in content", "4\r\n\r\n\r\n\r\n0\r\n\r\n", "\r\n\r\n", "", ""},
		{"extensions", "5;a\r\nhello\r\n3;a=b;c=\"d \\\" ;\te\";f\r\nfoo\r\n0;x=\"\"\r\n\r\n", "hellofoo", "", ""},
		{"trailers", "0\r\nX-Sum: 5\r\nServer-Timing:\t a, b \r\n\r\nrest", "", "rest", "X-Sum: 5\r\nServer-Timing:\t a, b \r\n"},
		{"forbidden trailers", "0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: y\r\nConnection: x\r\nX-Forwarded-For: 1\r\nX_Forwarded_For: 1\r\n" +
			"Authorization: a\r\nCookie: a\r\nSet-Cookie: a\r\nX-Weir-A: b\r\nForwarded: a\r\nX-Real-Ip: 1\r\nX-Request-Id: 1\r\nTraceparent: a\r\nContent-Type: a\r\n" +
			"Content-Encoding: a\r\nContent-Range: a\r\nRange: a\r\nCache-Control: a\r\nWWW-Authenticate: a\r\nGood: 1\r\n\r\n", "", "", "Good: 1\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r ChunkReader
			for piece := range len(c.in) + 1 {
				r.Reset()
				content, n, done, err := readChunks(&r, c.in, piece)
				if err != nil || !done || content != c.want || c.in[n:] != c.rest {
					t.Fatalf("pieces of %d: %q, rest %q, done %v, %v", piece, content, c.in[n:], done, err)
				}
				if got := string(r.Trailers().AppendWire(nil)); got != c.trailers {
					t.Fatalf("pieces of %d: trailers %q, want %q", piece, got, c.trailers)
				}
			}
		})
	}
}

func TestChunksRefused(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     *Error
	}{
		{"no size", "\r\nhello\r\n", errChunkSize},
		{"only an extension", ";a\r\n", errChunkSize},
		{"signed", "+5\r\nhello\r\n", errChunkSize},
		{"negative", "-5\r\nhello\r\n", errChunkSize},
		{"0x", "0x5\r\nhello\r\n", errChunkSize},
		{"leading space", " 5\r\nhello\r\n", errChunkSize},
		{"trailing space", "5 \r\nhello\r\n", errChunkSize},
		{"trailing tab", "5\t;a\r\nhello\r\n", errChunkSize},
		{"no hex", "g\r\n", errChunkSize},
		{"overflow", "8000000000000000\r\n", errChunkSize},
		{"overflow to small", "10000000000000005\r\n", errChunkSize},
		{"too many digits", "00000000000000005\r\n", errChunkSize},
		{"underscore", "1_0\r\n", errChunkSize},
		{"bare LF after size", "5\nhello\r\n", errBareLF},
		{"bare CR after size", "5\rhello\r\n", errBareCR},
		{"bare LF after extension", "5;a\nhello\r\n", errBareLF},
		{"bare LF in a quoted value", "5;a=\"\n\"\r\nhello", errBareLF},
		{"CR in a quoted value", "5;a=\"\r\n\"\r\nhello", errChunkExt},
		{"space in an extension", "5; a\r\nhello\r\n", errChunkExt},
		{"extension without name", "5;=b\r\n", errChunkExt},
		{"empty extension", "5;\r\nhello\r\n", errChunkExt},
		{"extension without value", "5;a=\r\n", errChunkExt},
		{"text after a quoted value", "5;a=\"b\"c\r\n", errChunkExt},
		{"NUL in an extension", "5;a\x00\r\n", errChunkExt},
		{"NUL in a quoted value", "5;a=\"\x00\"\r\n", errChunkExt},
		{"long extension", "5;" + strings.Repeat("a", maxChunkLine) + "\r\n", errChunkLong},
		{"many extensions", strings.Repeat("1;"+strings.Repeat("a", 200)+"\r\nx\r\n", 100), errChunkLong},
		{"content longer than its size", "3\r\nhello\r\n", errChunkEnd},
		{"content shorter than its size", "5\r\nhell\r\n0\r\n\r\n", errChunkEnd},
		{"LF after content", "3\r\nfoo\n0\r\n\r\n", errChunkEnd},
		{"CR alone after content", "3\r\nfoo\r0\r\n\r\n", errChunkEnd},
		{"bare LF at the end", "0\r\n\n", errBareLF},
		{"bare CR at the end", "0\r\n\rX", errBareCR},
		{"bare LF in trailers", "0\r\nA: b\n\r\n", errBareLF},
		{"bare CR in trailers", "0\r\nA: b\rc\r\n\r\n", errBareCR},
		{"fold in trailers", "0\r\nA: b\r\n c\r\n\r\n", errFold},
		{"space before a trailer's colon", "0\r\nA : b\r\n\r\n", errNameSpace},
		{"look-alike trailer", "0\r\nContent_Length: b\r\n\r\n", errLookalike},
		{"NUL in a trailer", "0\r\nA: \x00\r\n\r\n", errValue},
		{"large trailers", "0\r\nA: " + strings.Repeat("a", maxTrailers) + "\r\n\r\n", errTooLarge},
		{"many trailers", "0\r\n" + strings.Repeat("a:\r\n", 300) + "\r\n", errTooMany},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, piece := range []int{0, 1, 2, 3, 7} {
				var r ChunkReader
				_, n, done, err := readChunks(&r, c.in, piece)
				if done || !errors.Is(err, c.want) {
					t.Fatalf("pieces of %d: done %v after %q, %v, want %v", piece, done, c.in[:n], err, c.want)
				}
			}
		})
	}
}

// TestChunkFramed writes pieces and reads them back.
func TestChunkFramed(t *testing.T) {
	for _, n := range []int{1, 15, 16, 17, 255, 256, 4095, 4096, 32768, 65537, 1 << 20} {
		p := strings.Repeat("x", n)
		raw := string(append(appendChunk(nil, []byte(p)), lastChunk...))
		var r ChunkReader
		if got, _, done, err := readChunks(&r, raw, 0); got != p || !done || err != nil {
			t.Errorf("%d bytes: %d, %v, %v", n, len(got), done, err)
		}
	}
	if got := appendChunk(nil, nil); len(got) != 0 {
		t.Errorf("an empty piece became %q", got)
	}
}
