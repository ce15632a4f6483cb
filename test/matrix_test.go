// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// matrix is a weir between clients and backends of each protocol.
type matrix struct {
	w      *weir
	secure string // address of the TLS listener
	roots  *x509.CertPool
	cancel chan string // protocols whose handler saw its client leave
	seen   sync.Map    // paths that backends were asked for
}

var (
	matrixFronts = []string{"h1", "h2", "h2c"}
	matrixBacks  = []string{"h1", "h2", "h2c"}
)

// startMatrix starts the backends in this process, and a weir before them; the
// path's first segment says which one is asked.
func startMatrix(t *testing.T) *matrix {
	t.Helper()
	m := &matrix{secure: freeAddr(t), cancel: make(chan string, 100)}
	ca := weirtest.NewAuthority(t)
	dir := t.TempDir()
	cert, key := ca.Write(dir, "site", ca.Issue("localhost", "127.0.0.1"))
	caFile := ca.WritePool(dir)
	m.roots = ca.Pool()
	addr := map[string]string{}
	for _, back := range matrixBacks {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr[back] = ln.Addr().String()
		p := new(http.Protocols)
		p.SetHTTP1(back == "h1")
		p.SetHTTP2(back == "h2")
		p.SetUnencryptedHTTP2(back == "h2c")
		s := &http.Server{Handler: http.HandlerFunc(m.handle), Protocols: p, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
		t.Cleanup(func() { _ = s.Close() })
		if back == "h2" {
			go func() { _ = s.ServeTLS(ln, cert, key) }()
		} else {
			go func() { _ = s.Serve(ln) }()
		}
	}
	m.w = startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
shutdown: {delay: 100ms, deadline: 5s}
listeners:
  plain: {bind: "${LISTEN}", routes: %[6]s}
  secure: {bind: %[1]q, routes: %[6]s, tls: {certificates: [{cert: %[2]q, key: %[3]q}]}}
pools:
  h1: {backends: ["http://%[4]s"], health: {active: {initial: up}}}
  h2: {backends: ["https://%[5]s"], upstream: {h2: on}, tls: {ca: %[7]q, server_name: localhost}, health: {active: {initial: up}}}
  h2c: {backends: ["h2c://%[8]s"], health: {active: {initial: up}}}
`, m.secure, cert, key, addr["h1"], addr["h2"],
		"[{match: {path_prefix: /h1}, pool: h1}, {match: {path_prefix: /h2}, pool: h2}, {match: {path_prefix: /h2c}, pool: h2c}]", caFile, addr["h2c"]))
	waitListening(t, m.w.process, m.secure)
	return m
}

// client returns a client of one protocol, and the URL that leads to a backend.
func (m *matrix) client(t *testing.T, front, back string) (*http.Client, string) {
	t.Helper()
	p := new(http.Protocols)
	p.SetHTTP1(front == "h1")
	p.SetHTTP2(front == "h2")
	p.SetUnencryptedHTTP2(front == "h2c")
	tr := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{RootCAs: m.roots}, DisableCompression: true}
	if front == "h1" { // to hang up is only half of leaving there
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			return c, err
		}
	}
	t.Cleanup(tr.CloseIdleConnections)
	base := "http://" + m.w.addr
	if front == "h2" {
		base = "https://" + m.secure
	}
	return &http.Client{Transport: tr, Timeout: time.Minute}, base + "/" + back
}

// handle is the backends' side of all cases.
func (m *matrix) handle(w http.ResponseWriter, r *http.Request) {
	m.seen.Store(r.URL.Path, true)
	_, what, _ := strings.Cut(r.URL.Path[1:], "/")
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // over HTTP/2 it is so in any case
	switch what {
	case "head":
		w.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
		w.Header().Set("X-Saw", fmt.Sprintf("%s %s %s %q %q", r.Method, r.Host, r.URL.RequestURI(), r.Header["X-Many"], r.Header.Get("Cookie")))
		w.Header().Set("X-Proto", r.Proto)
		w.Header().Set("Etag", `"x"`)
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		w.WriteHeader(max(status, 200))
		if status == 0 {
			_, _ = io.WriteString(w, "hello")
		}
	case "echo": // content and trailers come back, piece by piece
		w.Header().Set("Trailer", "X-End")
		_, _ = io.Copy(flushing{w, rc}, r.Body)
		w.Header().Set("X-End", r.Trailer.Get("X-Sum"))
	case "sized": // with a length, and trailers that nothing announces
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b)
		_ = rc.Flush()
		w.Header().Set(http.TrailerPrefix+"X-End", r.Trailer.Get("X-Sum"))
	case "sum": // all of it is read before anything is said
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		_, _ = fmt.Fprintf(w, "%d %x %v %s", n, h.Sum(nil), err, r.Trailer.Get("X-Sum"))
	case "give": // so many bytes, with or without a length
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		if r.URL.Query().Has("length") {
			w.Header().Set("Content-Length", strconv.Itoa(n))
		}
		_, _ = io.CopyN(w, &filler{}, int64(n))
	case "early":
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		_, _ = io.WriteString(w, "too much")
	case "events":
		for i := range 5 {
			_, _ = fmt.Fprintf(w, "event %d\n", i)
			_ = rc.Flush()
			time.Sleep(10 * time.Millisecond)
		}
	case "hints":
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
	case "torn":
		_, _ = io.WriteString(w, "half")
		_ = rc.Flush()
		panic(http.ErrAbortHandler)
	case "hang":
		_, _ = io.WriteString(w, "begun")
		_ = rc.Flush()
		<-r.Context().Done()
		m.cancel <- r.URL.Path
	}
}

type flushing struct {
	io.Writer
	rc *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	_ = f.rc.Flush()
	return n, err
}

// filler is endless content that differs from place to place.
type filler struct{ at int }

func (f *filler) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(f.at) ^ byte(f.at>>8) ^ byte(f.at>>16)
		f.at++
	}
	return len(b), nil
}

// TestMatrix: the same holds whatever clients and backends speak.
func TestMatrix(t *testing.T) {
	m := startMatrix(t)
	for _, front := range matrixFronts {
		for _, back := range matrixBacks {
			t.Run(front+" to "+back, func(t *testing.T) {
				client, url := m.client(t, front, back)
				c := cell{m, client, url, front, back}
				t.Run("heads", c.heads)
				t.Run("trailers", c.trailers)
				t.Run("trailers behind a length", c.sizedTrailers)
				t.Run("sizes", func(t *testing.T) { c.sizes(t, matrixSizes) })
				t.Run("both directions at once", c.duplex)
				t.Run("early answer", c.early)
				t.Run("half closed", c.events)
				t.Run("interim", c.interim)
				t.Run("torn answer", c.torn)
				t.Run("cancel", c.cancelled)
				t.Run("slow reader", c.slow)
			})
		}
	}
}

// matrixSizes are sizes of content about the limits of frames, buffers and
// windows.
var matrixSizes = []int{0, 1, 16383, 16384, 16385, 65535, 65536, 1 << 20, 8 << 20}

// cell is one pair of protocols.
type cell struct {
	m           *matrix
	client      *http.Client
	url         string
	front, back string
}

func (c *cell) do(t *testing.T, method, path string, body io.Reader, edit func(*http.Request)) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, c.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(r)
	}
	res, err := c.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if want := map[bool]int{true: 1, false: 2}[c.front == "h1"]; res.ProtoMajor != want {
		t.Fatalf("the client speaks %s", res.Proto)
	}
	return res
}

func (c *cell) heads(t *testing.T) {
	res := c.do(t, "PATCH", "/head?a=b&c=%2F", nil, func(r *http.Request) {
		r.Host = "Example.com:8443"
		r.Header["X-Many"] = []string{"1", "2", "b\u00e4r"}
		r.Header.Set("Cookie", "k=v; l=w")
		r.Header.Set("Te", "trailers")
	})
	body, _ := io.ReadAll(res.Body)
	want := fmt.Sprintf("PATCH Example.com:8443 /%s/head?a=b&c=%%2F [\"1\" \"2\" \"b\u00e4r\"] \"k=v; l=w\"", c.back)
	if got := res.Header.Get("X-Saw"); got != want || string(body) != "hello" {
		t.Errorf("%q\n%q\n%q", got, want, body)
	}
	if proto := map[string]string{"h1": "HTTP/1.1"}[c.back]; proto != "" && res.Header.Get("X-Proto") != proto || proto == "" && res.Header.Get("X-Proto") != "HTTP/2.0" {
		t.Errorf("the backend is spoken to in %s", res.Header.Get("X-Proto"))
	}
	if got := res.Header["Set-Cookie"]; !slices.Equal(got, []string{"a=1", "b=2"}) {
		t.Error(got)
	}
	for _, q := range []string{"HEAD ", "GET 204", "GET 304"} {
		method, status, _ := strings.Cut(q, " ")
		res := c.do(t, method, "/head?status="+status, nil, nil)
		if body, err := io.ReadAll(res.Body); len(body) > 0 || err != nil || res.Header.Get("Etag") != `"x"` || status != "" && strconv.Itoa(res.StatusCode) != status {
			t.Error(q, res.Status, body, err)
		}
	}
}

func (c *cell) trailers(t *testing.T) {
	for _, content := range []string{"", "some"} {
		res := c.do(t, "POST", "/echo", io.MultiReader(strings.NewReader(content)), func(r *http.Request) {
			r.ContentLength = -1
			r.Trailer = http.Header{"X-Sum": {"42"}}
		})
		body, err := io.ReadAll(res.Body)
		if string(body) != content || err != nil || res.Trailer.Get("X-End") != "42" {
			t.Errorf("%q %v %v", body, err, res.Trailer)
		}
	}
}

// sizedTrailers: HTTP/2 has a place for a length and trailers; where either side
// speaks HTTP/1.1, the content arrives.
func (c *cell) sizedTrailers(t *testing.T) {
	res := c.do(t, "POST", "/sized", strings.NewReader("four"), func(r *http.Request) {
		if c.front != "h1" { // net/http sends none there
			r.Trailer = http.Header{"X-Sum": {"42"}}
		}
	})
	body, err := io.ReadAll(res.Body)
	if string(body) != "four" || err != nil {
		t.Fatalf("%q %v", body, err)
	}
	if c.front == "h1" || c.back == "h1" {
		return
	}
	if res.ContentLength != 4 || res.Trailer.Get("X-End") != "42" {
		t.Errorf("length %d, trailers %v", res.ContentLength, res.Trailer)
	}
}

func (c *cell) sizes(t *testing.T, sizes []int) {
	for _, n := range sizes {
		sum := sha256.New()
		_, _ = io.CopyN(sum, &filler{}, int64(n))
		for _, known := range []bool{true, false} {
			if c.front == "h1" && n == 0 && !known {
				continue
			}
			res := c.do(t, "POST", "/sum", io.LimitReader(&filler{}, int64(n)), func(r *http.Request) {
				r.ContentLength = -1
				r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(io.LimitReader(&filler{}, int64(n))), nil }
				if known {
					r.ContentLength = int64(n)
				}
				if known && n == 0 {
					r.Body = http.NoBody
				}
			})
			want := fmt.Sprintf("%d %x <nil> ", n, sum.Sum(nil))
			if got, err := io.ReadAll(res.Body); string(got) != want || err != nil {
				t.Errorf("up %d, length known: %v: %q, want %q, %v", n, known, got, want, err)
			}
			q := "/give?n=" + strconv.Itoa(n)
			if known {
				q += "&length"
			}
			res = c.do(t, "GET", q, nil, nil)
			got, err := io.Copy(io.Discard, res.Body)
			if got != int64(n) || err != nil || known && res.ContentLength != int64(n) {
				t.Errorf("down %d, length known: %v: %d, length %d, %v", n, known, got, res.ContentLength, err)
			}
		}
	}
}

// duplex sends a piece when the one before has come back.
func (c *cell) duplex(t *testing.T) {
	pr, pw := io.Pipe()
	go func() { _, _ = io.WriteString(pw, "piece 0") }()
	res := c.do(t, "POST", "/echo", pr, nil)
	for i := range 20 {
		want := fmt.Sprintf("piece %d", i)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
			t.Fatalf("%q %v", got, err)
		}
		if i < 19 {
			_, _ = fmt.Fprintf(pw, "piece %d", i+1)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(res.Body); len(rest) > 0 || err != nil {
		t.Errorf("%q %v", rest, err)
	}
}

func (c *cell) early(t *testing.T) {
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() { _, _ = pw.Write(make([]byte, 1000)) }() // and no more
	res := c.do(t, "POST", "/early", pr, nil)
	if body, err := io.ReadAll(res.Body); res.StatusCode != 413 || string(body) != "too much" || err != nil {
		t.Errorf("%s %q %v", res.Status, body, err)
	}
}

func (c *cell) events(t *testing.T) {
	res := c.do(t, "POST", "/events", strings.NewReader("go on"), nil)
	begun := time.Now()
	first := make([]byte, 8)
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "event 0\n" {
		t.Errorf("%q %v", first, err)
	}
	if d := time.Since(begun); d > 5*time.Second {
		t.Error("the first event came after", d)
	}
	if rest, err := io.ReadAll(res.Body); string(rest) != "event 1\nevent 2\nevent 3\nevent 4\n" || err != nil {
		t.Errorf("%q %v", rest, err)
	}
}

func (c *cell) interim(t *testing.T) {
	var hints []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		hints = append(hints, fmt.Sprint(code, h.Get("Link")))
		return nil
	}})
	res := c.do(t, "GET", "/hints", nil, func(r *http.Request) { *r = *r.WithContext(ctx) })
	if !slices.Equal(hints, []string{"103</style.css>"}) && !slices.Equal(hints, []string{"103 </style.css>"}) || res.StatusCode != 200 {
		t.Errorf("%q %s", hints, res.Status)
	}
}

func (c *cell) torn(t *testing.T) {
	res := c.do(t, "GET", "/torn", nil, nil)
	if body, err := io.ReadAll(res.Body); err == nil && res.StatusCode != http.StatusBadGateway { // nothing had been passed on
		t.Errorf("%q came as a whole answer", body)
	}
}

func (c *cell) cancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	res := c.do(t, "GET", "/hang", nil, func(r *http.Request) { *r = *r.WithContext(ctx) })
	if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-c.m.cancel:
	case <-time.After(10 * time.Second):
		t.Error("the backend has not heard of it")
	}
}

// slow leaves an answer unread while another one passes on the same connections.
func (c *cell) slow(t *testing.T) {
	const n = 4 << 20
	slow := c.do(t, "GET", "/give?length&n="+strconv.Itoa(n), nil, nil)
	quick := c.do(t, "GET", "/give?length&n="+strconv.Itoa(n), nil, nil)
	if got, err := io.Copy(io.Discard, quick.Body); got != n || err != nil {
		t.Error(got, err)
	}
	if got, err := io.Copy(io.Discard, slow.Body); got != n || err != nil {
		t.Error(got, err)
	}
}
