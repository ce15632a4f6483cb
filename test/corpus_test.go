// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// vector is one line of a public corpus.
type vector struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Expect string `json:"expect"`
	Mode   string `json:"parser_mode"`
	Raw    []byte `json:"-"`
	B64    string `json:"raw"`
}

// corpus reads the public vectors of the kinds, where they are present.
func corpus(t *testing.T, kinds ...string) (vs []vector) {
	t.Helper()
	files, _ := filepath.Glob("../../shared/vectors/http1/*.jsonl")
	if len(files) == 0 {
		t.Skip("the public vectors are not on this machine (expected in ../../shared/vectors)")
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var v vector
			if err := json.Unmarshal(line, &v); err != nil {
				t.Fatal(err)
			}
			for _, k := range kinds {
				if v.Kind == k {
					v.Raw, err = base64.StdEncoding.DecodeString(v.B64)
					if err != nil {
						continue // a few large rows are gzipped; their content adds nothing here
					}
					vs = append(vs, v)
				}
			}
		}
	}
	return vs
}

// exchange sends bytes and returns all that comes back until the peer closes
// or nothing more comes.
func exchange(t *testing.T, addr string, send []byte) []byte {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(send)
	var got []byte
	buf := make([]byte, 64<<10)
	for {
		_ = c.SetReadDeadline(time.Now().Add(400 * time.Millisecond))
		n, err := c.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			return got
		}
	}
}

// withHost gives a vector what a proxy needs, without touching what the vector
// is about: a Host field, and the empty line that the corpora leave out at the
// very end.
func withHost(raw []byte) []byte {
	if !bytes.Contains(raw, []byte("\r\n\r\n")) && bytes.HasSuffix(raw, []byte("\r\n")) || bytes.HasSuffix(raw, []byte("\r\n0\r\n")) {
		raw = append(bytes.Clone(raw), "\r\n"...)
	}
	if bytes.Contains(bytes.ToLower(raw), []byte("\nhost")) {
		return raw
	}
	eol := bytes.Index(raw, []byte("\r\n"))
	if eol < 0 || !bytes.Contains(raw[:eol], []byte(" HTTP/1.1")) {
		return raw
	}
	return append(append(append([]byte{}, raw[:eol+2]...), "Host: vector\r\n"...), raw[eol+2:]...)
}

// Every request of the public corpora is refused, or forwarded in the only
// reading that the strictest receiver has. What the corpora call wrong in
// strict mode never reaches a backend.
func TestRequestCorpus(t *testing.T) {
	vs := corpus(t, "request", "request-pipeline")
	var mu sync.Mutex
	accepted, refused := 0, 0
	var unforwarded []string
	inLanes(t, vs, func(t *testing.T, w *weir, rec *recorder, v vector) {
		back := exchange(t, w.addr, withHost(v.Raw))
		got := rec.take()
		reached := 0
		for _, wire := range got {
			n, unsafe := judge(wire, true, false, false)
			reached += n
			if unsafe != "" {
				t.Errorf("%s: forwarded unsafely: %s\nin:  %q\nout: %q", v.ID, unsafe, v.Raw, wire)
			}
		}
		if _, unsafe := judge(back, false, bytes.HasPrefix(v.Raw, []byte("HEAD ")), false); unsafe != "" {
			t.Errorf("%s: answered badly: %s: %q", v.ID, unsafe, back)
		}
		strict := v.Expect == "reject" && (v.Mode == "" || v.Mode == "request")
		mu.Lock()
		defer mu.Unlock()
		if strict {
			refused++
			if v.Kind == "request-pipeline" {
				if reached > 0 {
					t.Errorf("%s: a request behind a bad one was forwarded: %q", v.ID, got)
				}
			} else if len(got) > 0 && completesBad(got) && !knownTolerance(v.ID) {
				t.Errorf("%s: must be refused, was forwarded: %q as %q", v.ID, v.Raw, got)
			}
		}
		if reached > 0 {
			accepted++
		} else if v.Expect == "accept" && (v.Mode == "" || v.Mode == "request") {
			unforwarded = append(unforwarded, fmt.Sprintf("%s: %.60q", v.ID, back))
		}
	})
	t.Logf("%d vectors: %d that must be refused, %d forwarded; not forwarded though another parser accepts them:\n%s",
		len(vs), refused, accepted, strings.Join(unforwarded, "\n"))
	if accepted < 60 {
		t.Errorf("only %d vectors were forwarded: something refuses everything", accepted)
	}
}

// completesBad reports whether a whole message reached the backend (a broken
// chunk in mid-body can only be noticed after the head has gone).
func completesBad(got [][]byte) bool {
	for _, wire := range got {
		if n, _ := judge(wire, true, false, false); n > 0 {
			return true
		}
	}
	return false
}

// knownTolerance names vectors whose first message is whole and has one
// reading; what another parser rejects is what comes behind it.
func knownTolerance(id string) bool {
	for part, why := range map[string]string{
		"HTTP protocol and ANNOUNCE method":       "any token is a method (RFC 9110 9.1)",
		"/ Invalid method":                        "any token is a method (RFC 9110 9.1)",
		"No restart when keep-alive is off (1.0)": "what follows the last request of a connection is dropped, unread",
		"CRLF between requests, implicit":         "the first request is whole; the text behind it is refused",
		"HTTP/1.1 with keep-alive disabled":       "bytes behind the announced length of a last answer are dropped",
	} {
		if why != "" && strings.Contains(id, part) {
			return true
		}
	}
	return false
}

// Every response of the public corpora becomes a 502, a connection cut in the
// middle, or a message with one reading.
func TestResponseCorpus(t *testing.T) {
	vs := corpus(t, "response")
	inLanes(t, vs, func(t *testing.T, w *weir, rec *recorder, v vector) {
		rec.mu.Lock()
		rec.answer = v.Raw
		rec.mu.Unlock()
		back := exchange(t, w.addr, []byte("GET / HTTP/1.1\r\nHost: vector\r\n\r\n"))
		rec.take()
		if _, unsafe := judge(back, false, false, false); unsafe != "" {
			t.Errorf("%s: passed on unsafely: %s\nin:  %q\nout: %q", v.ID, unsafe, v.Raw, back)
		}
		strict := v.Expect == "reject" && (v.Mode == "" || v.Mode == "response")
		if n, _ := judge(back, false, false, false); strict && n > 0 && bytes.HasPrefix(back, []byte("HTTP/1.1 200")) && !knownTolerance(v.ID) {
			t.Errorf("%s: must be refused, was passed on: %q as %q", v.ID, v.Raw, back)
		}
	})
}

// inLanes spreads vectors over several balancers, each with a recorder of its
// own, so that waiting does not add up.
func inLanes(t *testing.T, vs []vector, f func(*testing.T, *weir, *recorder, vector)) {
	const lanes = 12
	var wg sync.WaitGroup
	for lane := range lanes {
		rec := startRecorder(t)
		w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools:
  app: {backends: ["http://%s"], health: {passive: off, active: {interval: 60s, timeout: 2s}}, retry: {attempts: 1}}
`, rec.addr))
		wg.Go(func() {
			for i := lane; i < len(vs); i += lanes {
				f(t, w, rec, vs[i])
			}
		})
	}
	wg.Wait()
}

// The project's own list: what two receivers could read differently, with the
// bytes that must (or must never) reach the backend.
func TestOneReadingOnly(t *testing.T) {
	rec := startRecorder(t)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: off}
listeners: {web: {bind: "${LISTEN}", routes: [{match: {path_prefix: /raw}, pool: app, raw: true}, {pool: app}]}}
pools:
  app: {backends: ["http://%s"], health: {passive: off, active: {interval: 60s, timeout: 2s}}, retry: {attempts: 1}}
`, rec.addr))
	head := func(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n\r\n" }
	for _, c := range []struct {
		name, send string
		status     int      // 0: do not care
		has, not   []string // in what the backend got; has empty and status 4xx: nothing may arrive
	}{
		{"CL and TE", head("POST / HTTP/1.1", "Host: a", "Content-Length: 3", "Transfer-Encoding: chunked") + "0\r\n\r\n", 400, nil, nil},
		{"TE and CL", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked", "Content-Length: 3") + "0\r\n\r\n", 400, nil, nil},
		{"differing CL", head("POST / HTTP/1.1", "Host: a", "Content-Length: 1", "Content-Length: 2") + "ab", 400, nil, nil},
		{"CL list", head("POST / HTTP/1.1", "Host: a", "Content-Length: 1, 1") + "a", 400, nil, nil},
		{"CL plus sign", head("POST / HTTP/1.1", "Host: a", "Content-Length: +1") + "a", 400, nil, nil},
		{"CL too large", head("POST / HTTP/1.1", "Host: a", "Content-Length: 99999999999999999999"), 400, nil, nil},
		{"TE identity", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: identity"), 400, nil, nil},
		{"TE chunked twice", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked, chunked") + "0\r\n\r\n", 400, nil, nil},
		{"TE xchunked", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: xchunked") + "0\r\n\r\n", 400, nil, nil},
		{"TE with tab", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding:\x0bchunked") + "0\r\n\r\n", 400, nil, nil},
		{"TE in 1.0", head("POST / HTTP/1.0", "Host: a", "Transfer-Encoding: chunked") + "0\r\n\r\n", 400, nil, nil},
		{"look-alike TE", head("POST / HTTP/1.1", "Host: a", "Transfer_Encoding: chunked", "Content-Length: 1") + "a", 400, nil, nil},
		{"look-alike CL", head("POST / HTTP/1.1", "Host: a", "Content_Length: 5"), 400, nil, nil},
		{"space before colon", head("GET / HTTP/1.1", "Host : a"), 400, nil, nil},
		{"space before name", head("GET / HTTP/1.1", "Host: a", " X: y"), 400, nil, nil},
		{"obs-fold", head("GET / HTTP/1.1", "Host: a", "X: y", " z"), 400, nil, nil},
		{"bare LF line", "GET / HTTP/1.1\nHost: a\n\n", 400, nil, nil},
		{"bare LF field", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400, nil, nil},
		{"bare CR", head("GET / HTTP/1.1", "Host: a", "X: y\rZ: q"), 400, nil, nil},
		{"NUL", head("GET / HTTP/1.1", "Host: a", "X: y\x00z"), 400, nil, nil},
		{"no Host", head("GET / HTTP/1.1"), 400, nil, nil},
		{"two Hosts", head("GET / HTTP/1.1", "Host: a", "Host: a"), 400, nil, nil},
		{"Host with path", head("GET / HTTP/1.1", "Host: a/b"), 400, nil, nil},
		{"Host with user", head("GET / HTTP/1.1", "Host: u@a"), 400, nil, nil},
		{"two spaces", head("GET  / HTTP/1.1", "Host: a"), 400, nil, nil},
		{"HTTP/1.2", head("GET / HTTP/1.2", "Host: a"), 0, nil, []string{"HTTP/1.2"}},
		{"lower case protocol", head("GET / http/1.1", "Host: a"), 400, nil, nil},
		{"HTTP/2.0", head("GET / HTTP/2.0", "Host: a"), 0, nil, []string{"HTTP/2.0"}},
		{"target with space", head("GET /a b HTTP/1.1", "Host: a"), 400, nil, nil},
		{"target with control", head("GET /a\x01 HTTP/1.1", "Host: a"), 400, nil, nil},
		{"CONNECT", head("CONNECT a:443 HTTP/1.1", "Host: a:443"), 405, nil, nil},
		{"TRACE", head("TRACE / HTTP/1.1", "Host: a"), 405, nil, nil},
		{"encoded slash", head("GET /a%2fb HTTP/1.1", "Host: a"), 400, nil, nil},
		{"encoded backslash", head("GET /a%5cb HTTP/1.1", "Host: a"), 400, nil, nil},
		{"backslash", head("GET /a\\b HTTP/1.1", "Host: a"), 400, nil, nil},
		{"encoded NUL", head("GET /a%00b HTTP/1.1", "Host: a"), 400, nil, nil},
		{"bad escape", head("GET /a%zz HTTP/1.1", "Host: a"), 400, nil, nil},
		{"raw keeps bytes", head("GET /raw/a%2Fb/../c?x=%2F HTTP/1.1", "Host: a"), 200, []string{"GET /raw/a%2Fb/../c?x=%2F HTTP/1.1\r\n"}, nil},
		{"normalised path", head("GET /x/../a//b/./%61?q=/../%2F HTTP/1.1", "Host: a"), 200, []string{"GET /a/b/a?q=/../%2F HTTP/1.1\r\n"}, nil},
		{"above the root", head("GET /../../etc HTTP/1.1", "Host: a"), 0, nil, []string{".."}},
		{"absolute form wins", head("GET http://b/p HTTP/1.1", "Host: a"), 200, []string{"GET /p HTTP/1.1\r\n", "Host: b\r\n"}, []string{"Host: a\r\n"}},
		{"OPTIONS *", head("OPTIONS * HTTP/1.1", "Host: a"), 200, []string{"OPTIONS * HTTP/1.1\r\n"}, nil},
		{"Connection names a field", head("GET / HTTP/1.1", "Host: a", "Connection: X-Hop", "X-Hop: 1"), 200, []string{"Host: a\r\n"}, []string{"X-Hop"}},
		{"Connection cannot remove identity", head("GET / HTTP/1.1", "Host: a", "Connection: X-Forwarded-For, Host, X-Request-Id"), 200, []string{"Host: a\r\n", "X-Forwarded-For: 127.0.0.1\r\n"}, nil},
		{"forged forwarding", head("GET / HTTP/1.1", "Host: a", "X-Forwarded-For: 6.6.6.6", "Forwarded: for=6.6.6.6", "X-Real-IP: 6.6.6.6"), 200, []string{"X-Forwarded-For: 127.0.0.1\r\n"}, []string{"6.6.6.6"}},
		{"look-alike identity", head("GET / HTTP/1.1", "Host: a", "X_Forwarded_For: 6.6.6.6", "X-Forwarded_For: 6.6.6.6", "X_Real-IP: 6.6.6.6"), 200, []string{"Host: a\r\n"}, []string{"6.6.6.6"}},
		{"forged weir field", head("GET / HTTP/1.1", "Host: a", "X-Weir-Attempt: 9"), 200, []string{"Host: a\r\n"}, []string{"X-Weir"}},
		{"bad request id", head("GET / HTTP/1.1", "Host: a", "X-Request-Id: a b;c"), 200, []string{"X-Request-Id: "}, []string{"a b;c"}},
		{"good request id", head("GET / HTTP/1.1", "Host: a", "X-Request-Id: abc-1"), 200, []string{"X-Request-Id: abc-1\r\n"}, nil},
		{"h2c upgrade is not tunnelled", head("GET / HTTP/1.1", "Host: a", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"), 200, []string{"Host: a\r\n"}, []string{"h2c", "HTTP2-Settings"}},
		{"chunk size sign", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked") + "+1\r\na\r\n0\r\n\r\n", 400, nil, []string{"0\r\n\r\n"}},
		{"chunk size 0x", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked") + "0x1\r\na\r\n0\r\n\r\n", 400, nil, []string{"0\r\n\r\n"}},
		{"chunk bare LF", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked") + "1\na\r\n0\r\n\r\n", 400, nil, []string{"0\r\n\r\n"}},
		{"chunk overrun", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked") + "1\r\nab\r\n0\r\n\r\n", 400, nil, []string{"0\r\n\r\n"}},
		{"chunk overflow", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked") + "fffffffffffffffff\r\na\r\n0\r\n\r\n", 400, nil, []string{"0\r\n\r\n"}},
		{"chunk extension dropped", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked") + "1;x=y\r\na\r\n0\r\n\r\n", 200, []string{"Host: a\r\n"}, []string{"x=y"}},
		{"trailer carries framing", head("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked") + "1\r\na\r\n0\r\nContent-Length: 5\r\nAuthorization: x\r\nHost: evil\r\n\r\n", 0, nil, []string{"Content-Length: 5", "Authorization", "evil"}},
		{"GET with body", head("GET / HTTP/1.1", "Host: a", "Content-Length: 1") + "a", 200, []string{"Content-Length: 1\r\n", "\r\n\r\na"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec.take()
			back := exchange(t, w.addr, []byte(c.send))
			wire := string(bytes.Join(rec.take(), []byte("|")))
			status := 0
			_, _ = fmt.Fscanf(bufio.NewReader(bytes.NewReader(back)), "HTTP/1.1 %d", &status)
			if c.status != 0 && status != c.status {
				t.Errorf("status %d, want %d: %q", status, c.status, back)
			}
			if status >= 400 && len(c.has)+len(c.not) == 0 && wire != "" {
				t.Errorf("refused, yet the backend got %q", wire)
			}
			for _, s := range c.has {
				if !strings.Contains(strings.ToLower(wire), strings.ToLower(s)) {
					t.Errorf("backend did not get %q: %q", s, wire)
				}
			}
			for _, s := range c.not {
				if strings.Contains(strings.ToLower(wire), strings.ToLower(s)) {
					t.Errorf("backend got %q: %q", s, wire)
				}
			}
			if wire != "" {
				if _, unsafe := judge([]byte(strings.Split(wire, "|")[0]), true, false, false); unsafe != "" {
					t.Errorf("forwarded unsafely: %s: %q", unsafe, wire)
				}
			}
		})
	}
	// A good request behind a bad one on the same connection gets no answer.
	back := exchange(t, w.addr, []byte("GET / HTTP/1.1\r\nHost : a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	if n := bytes.Count(back, []byte("HTTP/1.1 ")); n != 1 {
		t.Errorf("%d answers after a bad request: %q", n, back)
	}
	// An answer that the backend breaks off is broken off for the client too.
	rec.mu.Lock()
	rec.answer = []byte("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
	rec.mu.Unlock()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadAll(c); err == nil {
		t.Error("a truncated answer ended cleanly")
	}
}
