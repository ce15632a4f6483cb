// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/message"
)

func answer(text string) string {
	return "DATA 1 " + itoa(len(text)) + ` "` + strings.ReplaceAll(text, `"`, `\"`) + `" END`
}

func itoa(n int) string {
	if n >= 10 {
		return itoa(n/10) + string(rune('0'+n%10))
	}
	return string(rune('0' + n))
}

// TestRequests: what a backend would see of what a client sends.
func TestRequests(t *testing.T) {
	for _, c := range []struct {
		name   string
		fields []string
		body   []string // "" ends the stream with the head
		want   string
	}{
		{"plain", get("/a?b=c", "x-y: z"), nil, "GET /a?b=c a.example|Host: a.example;x-y: z;|"},
		{"no fields", get("/"), nil, "GET /? a.example|Host: a.example;|"},
		{"crumbs", get("/", "cookie: a=1", "x: y", "cookie: b=2"), nil, "GET /? a.example|Host: a.example;x: y;cookie: a=1; b=2;|"},
		{"te", get("/", "te: trailers"), nil, "GET /? a.example|Host: a.example;te: trailers;|"},
		{"host alone", []string{":method: GET", ":scheme: http", ":path: /", "host: b.example"}, nil, "GET /? b.example|host: b.example;|"},
		{"host again", get("/", "host: A.example"), nil, "GET /? a.example|Host: a.example;|"},
		{"sized", post("/", "content-length: 5"), []string{"he", "llo"}, "POST /? a.example|Host: a.example;content-length: 5;|hello"},
		{"streamed", post("/"), []string{"he", "", "llo"}, "POST /? a.example|Host: a.example;|hello"},
		{"options", []string{":method: OPTIONS", ":scheme: http", ":authority: a.example", ":path: *"}, nil, "OPTIONS *? a.example|Host: a.example;|"},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, &Server{Handler: echo}, func(p *peer) {
				p.begin()
				p.headers(1, c.body == nil, c.fields...)
				for i, b := range c.body {
					p.send(1, i == len(c.body)-1, b)
				}
				p.expect("HEADERS 1 :status=200 content-length="+itoa(len(c.want)), answer(c.want))
			})
		})
	}
}

// TestMalformed: a request that is not one is answered, and its stream reset, and
// the connection goes on (RFC 9113 section 8.1.1).
func TestMalformed(t *testing.T) {
	for _, c := range []struct {
		name   string
		fields []string
		status string
		code   string // "": the stream is ended, not reset
	}{
		{"capitals", get("/", "X-Y: z"), "400", "PROTOCOL_ERROR"},
		{"space in a name", get("/", "x y: z"), "400", "PROTOCOL_ERROR"},
		{"newline in a value", get("/", "x: a\r\nb: c"), "400", "PROTOCOL_ERROR"},
		{"nul in a value", get("/", "x: a\x00"), "400", "PROTOCOL_ERROR"},
		{"space around a value", get("/", "x:  a"), "400", "PROTOCOL_ERROR"},
		{"pseudo behind", []string{":method: GET", ":scheme: http", ":authority: a", "x: y", ":path: /"}, "400", "PROTOCOL_ERROR"},
		{"pseudo twice", get("/", ":path: /b"), "400", "PROTOCOL_ERROR"},
		{"pseudo unknown", append([]string{":what: x"}, get("/")...), "400", "PROTOCOL_ERROR"},
		{"status", append([]string{":status: 200"}, get("/")...), "400", "PROTOCOL_ERROR"},
		{"no method", []string{":scheme: http", ":authority: a", ":path: /"}, "400", "PROTOCOL_ERROR"},
		{"no path", []string{":method: GET", ":scheme: http", ":authority: a"}, "400", "PROTOCOL_ERROR"},
		{"empty path", get(""), "400", "PROTOCOL_ERROR"},
		{"path without slash", get("a"), "400", "PROTOCOL_ERROR"},
		{"space in a path", get("/a b"), "400", "PROTOCOL_ERROR"},
		{"newline in a path", get("/ HTTP/1.1\r\nx: y"), "400", "PROTOCOL_ERROR"},
		{"method with a space", []string{":method: GET /x", ":scheme: http", ":authority: a", ":path: /"}, "400", "PROTOCOL_ERROR"},
		{"no scheme", []string{":method: GET", ":authority: a", ":path: /"}, "400", "PROTOCOL_ERROR"},
		{"scheme", []string{":method: GET", ":scheme: ftp", ":authority: a", ":path: /"}, "400", "PROTOCOL_ERROR"},
		{"no authority", []string{":method: GET", ":scheme: http", ":path: /"}, "400", "PROTOCOL_ERROR"},
		{"userinfo", []string{":method: GET", ":scheme: http", ":authority: u@a", ":path: /"}, "400", "PROTOCOL_ERROR"},
		{"two hosts", get("/", "host: b.example"), "400", "PROTOCOL_ERROR"},
		{"connection", get("/", "connection: close"), "400", "PROTOCOL_ERROR"},
		{"transfer-encoding", post("/", "transfer-encoding: chunked"), "400", "PROTOCOL_ERROR"},
		{"upgrade", get("/", "upgrade: h2c"), "400", "PROTOCOL_ERROR"},
		{"te", get("/", "te: gzip"), "400", "PROTOCOL_ERROR"},
		{"lookalike", get("/", "content_length: 5"), "400", "PROTOCOL_ERROR"},
		{"two lengths", post("/", "content-length: 5", "content-length: 5"), "400", "PROTOCOL_ERROR"},
		{"bad length", post("/", "content-length: +5"), "400", "PROTOCOL_ERROR"},
		{"length of nothing", get("/", "content-length: 5"), "400", "PROTOCOL_ERROR"},
		{"protocol without connect", get("/", ":protocol: websocket"), "400", "PROTOCOL_ERROR"},
		{"connect with a path", []string{":method: CONNECT", ":scheme: http", ":authority: a:1", ":path: /"}, "400", "PROTOCOL_ERROR"},
		{"another protocol", []string{":method: CONNECT", ":protocol: tcp", ":scheme: http", ":authority: a", ":path: /"}, "501", ""},
		{"expectation", get("/", "expect: wonders"), "417", ""},
		{"long target", get("/" + strings.Repeat("a", 17<<10)), "414", ""},
		{"large head", get("/", "x: "+strings.Repeat("a", 70<<10)), "431", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, &Server{Handler: echo}, func(p *peer) {
				p.begin()
				block := p.block(c.fields...)
				first := block[:min(len(block), maxFrame)]
				p.must(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first, EndStream: true, EndHeaders: len(first) == len(block)}))
				for block = block[len(first):]; len(block) > 0; {
					n := min(len(block), maxFrame)
					p.must(p.fr.WriteContinuation(1, n == len(block), block[:n]))
					block = block[n:]
				}
				heard := p.take()
				if len(heard) < 2 || !strings.HasPrefix(heard[0], "HEADERS 1 :status="+c.status) {
					t.Fatalf("heard %q", heard)
				}
				last := heard[len(heard)-1]
				if c.code != "" && last != "RST_STREAM 1 "+c.code || c.code == "" && !strings.HasSuffix(last, " END") {
					t.Errorf("heard %q", heard)
				}
				if len(p.bad) != 1 {
					t.Errorf("told of %d bad requests", len(p.bad))
				}
				p.headers(3, true, get("/n")...) // the table of both sides agrees still
				want := "GET /n? a.example|Host: a.example;|"
				p.expect("HEADERS 3 :status=200 content-length="+itoa(len(want)), strings.Replace(answer(want), "DATA 1", "DATA 3", 1))
			})
		})
	}
}

// TestContentAgainstLength: content that is not what the head said is told to
// whoever reads it, and costs the stream.
func TestContentAgainstLength(t *testing.T) {
	for name, body := range map[string][]string{"more": {"hel", "lo!"}, "less": {"hell"}, "none": {""}} {
		t.Run(name, func(t *testing.T) {
			play(t, &Server{Handler: echo}, func(p *peer) {
				p.begin()
				p.headers(1, false, post("/", "content-length: 5")...)
				for i, b := range body {
					p.send(1, i == len(body)-1, b)
				}
				p.expect("HEADERS 1 :status=400 content-length=0 END", "RST_STREAM 1 PROTOCOL_ERROR")
			})
		})
	}
}

// TestTrailers: both ways, and those that no trailer may say are not heard.
func TestTrailers(t *testing.T) {
	play(t, &Server{Handler: answers{"/t": func(s *ServerStream) {
		if _, err := readAll(s); err != nil {
			t.Error(err)
		}
		if got := string(s.Trailers().AppendWire(nil)); got != "x-sum: 1\r\n" {
			t.Errorf("trailers %q", got)
		}
		var out message.Fields
		out.Add(message.Other, "Grpc-Status", "0")
		_ = s.WriteHead(&message.Response{Status: 200, Body: message.Chunked}, []byte("hi"), false)
		_ = s.WriteTrailers(&out)
	}}.serve}, func(p *peer) {
		p.begin()
		p.headers(1, false, post("/t")...)
		p.send(1, false, "x")
		p.headers(1, true, "x-sum: 1", "content-length: 7", "authorization: me")
		p.expect("HEADERS 1 :status=200", `DATA 1 2 "hi"`, "HEADERS 1 grpc-status=0 END")

		p.headers(3, false, post("/")...)
		p.headers(3, true, ":path: /x")
		p.expect("HEADERS 3 :status=400 content-length=0 END", "RST_STREAM 3 PROTOCOL_ERROR")
		p.headers(5, false, post("/")...)
		p.headers(5, false, "x: y")
		p.expect("RST_STREAM 5 PROTOCOL_ERROR")
	})
}

// TestInterimAnswers: 103 passes, 100 comes when the content is read, and not at
// all when the client does not wait.
func TestInterimAnswers(t *testing.T) {
	play(t, &Server{Handler: answers{"/hint": func(s *ServerStream) {
		h := &message.Response{Status: 103}
		h.Fields.Add(message.Other, "Link", "</a>")
		_ = s.WriteInterim(h)
		_ = s.WriteInterim(&message.Response{Status: 100})
		ok(s)
	}, "/refuse": ok}.serve}, func(p *peer) {
		p.begin()
		p.headers(1, true, get("/hint")...)
		p.expect("HEADERS 1 :status=103 link=</a>", "HEADERS 1 :status=204 END")
		p.headers(3, false, post("/", "expect: 100-continue")...)
		p.expect("HEADERS 3 :status=100")
		p.send(3, true, "x")
		p.take()
		p.headers(5, false, post("/refuse", "expect: 100-continue")...)
		p.expect("HEADERS 5 :status=204 END", "RST_STREAM 5 NO_ERROR")
		p.headers(7, false, post("/", "expect: 100-continue")...)
		p.send(7, true, "x")
		if got := p.take(); len(got) > 3 {
			t.Errorf("heard %q", got)
		}
	})
}

// TestAnswers: lengths, HEAD, and what ends a stream.
func TestAnswers(t *testing.T) {
	sized := func(n int64, body string, end bool) func(*ServerStream) {
		return func(s *ServerStream) {
			h := &message.Response{Status: 200, Body: message.Sized, ContentLength: n}
			_ = s.WriteHead(h, []byte(body), end)
		}
	}
	play(t, &Server{Handler: answers{
		"/sized": sized(2, "hi", false), "/short": sized(3, "hi", false), "/long": sized(1, "hi", true), "/none": func(*ServerStream) {},
		"/pieces": func(s *ServerStream) {
			_ = s.WriteHead(&message.Response{Status: 200, Body: message.UntilClose}, nil, false)
			_ = s.WriteBody([]byte("a"), false)
			_ = s.WriteBody(nil, true)
		},
		"/304": func(s *ServerStream) {
			_ = s.WriteHead(&message.Response{Status: 304, Body: message.Sized, ContentLength: 9}, []byte("x"), true)
		},
		"/abort": func(s *ServerStream) {
			_ = s.WriteHead(&message.Response{Status: 200, Body: message.Chunked}, []byte("a"), false)
			s.Abort()
		},
		"/panic": func(*ServerStream) { panic("x") },
	}.serve}, func(p *peer) {
		p.begin()
		id := uint32(1)
		ask := func(method, path string, want ...string) {
			t.Helper()
			p.headers(id, true, ":method: "+method, ":scheme: http", ":authority: a", ":path: "+path)
			for i := range want {
				want[i] = strings.Replace(want[i], "#", itoa(int(id)), 1)
			}
			p.expect(want...)
			id += 2
		}
		ask("GET", "/sized", "HEADERS # :status=200 content-length=2", `DATA # 2 "hi" END`)
		ask("HEAD", "/sized", "HEADERS # :status=200 content-length=2 END")
		ask("GET", "/short", "HEADERS # :status=200 content-length=3", `DATA # 2 "hi"`, "RST_STREAM # INTERNAL_ERROR")
		ask("GET", "/long", "RST_STREAM # INTERNAL_ERROR")
		ask("GET", "/none", "RST_STREAM # INTERNAL_ERROR")
		ask("GET", "/pieces", "HEADERS # :status=200", `DATA # 1 "a"`, `DATA # 0 "" END`)
		ask("GET", "/304", "HEADERS # :status=304 content-length=9 END")
		ask("GET", "/abort", "HEADERS # :status=200", `DATA # 1 "a"`, "RST_STREAM # INTERNAL_ERROR")
		ask("GET", "/panic", "RST_STREAM # INTERNAL_ERROR")
		ask("GET", "/sized", "HEADERS # :status=200 content-length=2", `DATA # 2 "hi" END`)
		if p.panics != 1 {
			t.Errorf("%d panics", p.panics)
		}
	})
}

// TestEarlyAnswer: what is still on its way for a stream that was answered is
// let pass, and counts against no window.
func TestEarlyAnswer(t *testing.T) {
	play(t, &Server{Handler: answers{"/early": ok}.serve}, func(p *peer) {
		p.begin()
		p.headers(1, false, post("/early")...)
		p.expect("HEADERS 1 :status=204 END", "RST_STREAM 1 NO_ERROR")
		for range 40 {
			p.send(1, false, strings.Repeat("x", maxFrame))
		}
		p.send(1, true, "")
		p.expect()
		p.headers(3, true, get("/early")...)
		p.expect("HEADERS 3 :status=204 END")
	})
}

// TestTimes: who takes too long is told so, or cut.
func TestTimes(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(p *peer)
		after time.Duration
		want  string // the last frame
	}{
		{"silence", func(*peer) {}, 10 * time.Second, "GOAWAY 0 last 0 NO_ERROR a frame took too long"},
		{"no settings", func(p *peer) { p.raw(preface) }, 10 * time.Second, "GOAWAY 0 last 0 NO_ERROR a frame took too long"},
		{"settings not acknowledged", func(p *peer) { p.raw(preface); p.must(p.fr.WriteSettings()) }, 10 * time.Second, "GOAWAY 0 last 0 SETTINGS_TIMEOUT SETTINGS were not acknowledged"},
		{"idle", func(p *peer) { p.begin() }, 75 * time.Second, "GOAWAY 0 last 0 NO_ERROR idle"},
		{"idle but for pings", func(p *peer) {
			p.begin()
			for range 7 {
				time.Sleep(10 * time.Second)
				p.must(p.fr.WritePing(false, [8]byte{}))
			}
			p.take()
		}, 5 * time.Second, "GOAWAY 0 last 0 NO_ERROR idle"},
		{"idle after a request", func(p *peer) {
			p.begin()
			time.Sleep(70 * time.Second)
			p.headers(1, true, get("/")...)
			p.take()
		}, 75 * time.Second, "GOAWAY 0 last 1 NO_ERROR idle"},
		{"half a frame", func(p *peer) { p.begin(); p.raw("\x00\x00\x08\x06") }, 10 * time.Second, "GOAWAY 0 last 0 NO_ERROR a frame took too long"},
		{"half a block", func(p *peer) {
			p.begin()
			p.must(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get("/")...)}))
		}, 10 * time.Second, "GOAWAY 0 last 0 NO_ERROR a frame took too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, &Server{Handler: echo}, func(p *peer) {
				c.do(p)
				time.Sleep(c.after - time.Millisecond)
				if p.ended() {
					t.Fatalf("too early: %q", p.take())
				}
				time.Sleep(2 * time.Millisecond)
				heard := p.take()
				if !p.ended() || len(heard) == 0 || heard[len(heard)-1] != c.want {
					t.Errorf("ended %v, heard %q", p.ended(), heard)
				}
			})
		})
	}
}

// TestSlowContent: content has a least rate, and the streams beside it do not
// notice. Within a frame, too, what has come counts.
func TestSlowContent(t *testing.T) {
	play(t, &Server{Handler: echo}, func(p *peer) {
		p.begin()
		p.headers(1, false, post("/")...)
		p.headers(3, false, post("/")...)
		for range 30 { // 300 B/s, in one frame
			if !strings.Contains(strings.Join(p.take(), " "), "RST") {
				break
			}
		}
		time.Sleep(9 * time.Second)
		p.send(3, false, strings.Repeat("x", 3000))
		p.expect()
		time.Sleep(1001 * time.Millisecond)
		p.expect("HEADERS 1 :status=408 content-length=0 END", "RST_STREAM 1 NO_ERROR")
		p.raw("\x00\x20\x00\x00\x01" + u32(3))
		for range 32 {
			p.raw(strings.Repeat("x", 256))
			time.Sleep(time.Second)
		}
		heard := p.take()
		if len(heard) < 2 || !strings.HasPrefix(heard[0], "HEADERS 3 :status=200") {
			t.Errorf("heard %q", heard)
		}
	})
}
