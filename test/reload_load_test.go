// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// world is the backends that a load is served by.
type world struct {
	backends []string // host:port
	stop     chan struct{}
}

// newWorld starts backends that answer with X-Generation as they got it, with a
// download that lasts until stop is closed, or with an echo in a tunnel.
func newWorld(t *testing.T, n int) *world {
	t.Helper()
	w := &world{stop: make(chan struct{})}
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Upgrade") != "":
			c, buf, err := rw.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(c, buf)
		case strings.HasSuffix(r.URL.Path, "/download"):
			w.download(rw, 200*time.Millisecond)
		case strings.HasSuffix(r.URL.Path, "/flood"): // faster than anybody reads
			w.download(rw, time.Millisecond)
		case strings.HasSuffix(r.URL.Path, "/upload"):
			n, err := io.Copy(io.Discard, r.Body)
			_, _ = fmt.Fprintln(rw, n, err)
		case strings.HasSuffix(r.URL.Path, "/slow"):
			time.Sleep(200 * time.Millisecond)
			fallthrough
		default:
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(rw, r.Header.Get("X-Generation"))
		}
	})
	for range n {
		s := httptest.NewServer(h)
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		w.backends = append(w.backends, strings.TrimPrefix(s.URL, "http://"))
	}
	return w
}

// pattern is the content of downloads, over and over: what is lost, repeated or
// mixed up is seen, as its length is a prime.
var pattern = func() []byte {
	p := make([]byte, 251+downloadChunk)
	for i := range p {
		p[i] = byte(i % 251)
	}
	return p
}()

// patternAt returns n bytes of it from an offset.
func patternAt(offset int64, n int) []byte {
	at := int(offset % 251)
	return pattern[at : at+n]
}

const downloadChunk = 16 << 10

func (w *world) download(rw http.ResponseWriter, pause time.Duration) {
	for offset := int64(0); ; offset += downloadChunk {
		if _, err := rw.Write(patternAt(offset, downloadChunk)); err != nil {
			return
		}
		select {
		case <-w.stop:
			return
		case <-time.After(pause):
		}
	}
}

// load is clients of all kinds that notice when anything goes wrong. None of
// them repeats a request: what fails is seen.
type load struct {
	t     *testing.T
	web   string // host:port without TLS
	tls   string // host:port with it; empty: not used
	sock  string // path of a unix socket; empty: not used
	trust *tls.Config
	// handover: the process may change. An answer may then say that its connection
	// closes; without it that is a fault.
	handover bool

	stop    chan struct{} // for those who ask again and again
	streams chan struct{} // for downloads and tunnels
	asking  sync.WaitGroup
	lasting sync.WaitGroup

	least    atomic.Int64 // what /g must say at least
	asked    atomic.Int64
	fresh    atomic.Int64 // of asked, on a connection of their own
	bytes    atomic.Int64 // of downloads
	echoes   atomic.Int64 // of tunnels
	closed   atomic.Int64 // connections that an answer said close after
	resumed  atomic.Int64 // TLS sessions
	sessions atomic.Int64 // TLS connections

	mu     sync.Mutex
	faults map[string]int
	late   bool
}

// newLoad makes a load for a weir that has been started already: what clients
// say once the test is over does not count.
func newLoad(t *testing.T) *load {
	l := &load{t: t, stop: make(chan struct{}), streams: make(chan struct{}), faults: map[string]int{}}
	t.Cleanup(l.forgive)
	return l
}

// forgive says that nothing counts any more.
func (l *load) forgive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = true
}

// fault counts what went wrong; of each kind the first three are told.
func (l *load) fault(what string, err any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults[what]++; l.faults[what] <= 3 && !l.late {
		l.t.Errorf("%s: %v", what, err)
	}
}

// begin starts n slow downloads and n tunnels, and the clients that ask.
func (l *load) begin(n int) {
	l.addStreams(n, "")
	for range 3 {
		l.asking.Go(func() { l.keep("/g", l.web, false) })
	}
	l.asking.Go(func() { l.keep("/brief", l.web, false) }) // through a pool that comes and goes
	l.asking.Go(func() { l.keep("/slow", l.web, false) })
	l.asking.Go(func() { l.post(l.web) })
	for range 2 {
		l.asking.Go(func() { l.single("/g", l.web, false) })
	}
	if l.tls != "" {
		for range 2 {
			l.asking.Go(func() { l.keep("/g", l.tls, true) })
		}
		l.asking.Go(func() { l.single("/g", l.tls, true) })
	}
	if l.sock != "" {
		l.asking.Go(func() { l.keep("/g", "unix:"+l.sock, false) })
		l.asking.Go(func() { l.single("/g", "unix:"+l.sock, false) })
	}
}

// addStreams opens n downloads and n tunnels below a prefix, every other one with
// TLS, and returns when all are open.
func (l *load) addStreams(n int, prefix string) {
	var open sync.WaitGroup
	for i := range n {
		open.Add(2)
		addr, secure := l.web, i%2 == 1 && l.tls != ""
		if secure {
			addr = l.tls
		}
		path := prefix + "/download"
		if i%10 < 2 {
			path = prefix + "/flood"
		}
		l.lasting.Go(func() { l.download(path, addr, secure, open.Done) })
		l.lasting.Go(func() { l.tunnel(prefix+"/tunnel", addr, secure, open.Done) })
	}
	open.Wait()
}

// quiet ends those who ask; streams go on.
func (l *load) quiet() {
	close(l.stop)
	l.asking.Wait()
}

// end ends the streams, of which downloads must end as they should.
func (l *load) end(w *world) {
	close(l.streams)
	close(w.stop)
	l.lasting.Wait()
}

func (l *load) String() string {
	return fmt.Sprintf("%d requests, %d of them on a connection of their own, %d connections closed by an answer, %d of %d TLS sessions resumed, %d MB of downloads, %d echoes",
		l.asked.Load(), l.fresh.Load(), l.closed.Load(), l.resumed.Load(), l.sessions.Load(), l.bytes.Load()>>20, l.echoes.Load())
}

func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

const (
	loadLimit = 30 * time.Second // of whatever a client waits for
	// The load is to be everywhere at any moment, not to be high.
	askPause  = 20 * time.Millisecond
	echoPause = 500 * time.Millisecond
	readPause = 40 * time.Millisecond
)

// dial opens a connection. A session is resumed if the cache of the
// configuration has one.
func (l *load) dial(addr string, secure bool, cfg *tls.Config) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
	}
	c, err := net.DialTimeout(network, addr, loadLimit)
	if err != nil {
		return nil, err
	}
	if !secure {
		return c, nil
	}
	tc := tls.Client(c, cfg)
	_ = tc.SetDeadline(time.Now().Add(loadLimit))
	if err := tc.Handshake(); err != nil {
		c.Close()
		return nil, err
	}
	l.sessions.Add(1)
	if tc.ConnectionState().DidResume {
		l.resumed.Add(1)
	}
	return tc, nil
}

// ownTLS returns a client's configuration with a cache of its own.
func (l *load) ownTLS() *tls.Config {
	if l.trust == nil {
		return nil
	}
	c := l.trust.Clone()
	c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	return c
}

// talk sends one request on a connection and reads the answer.
func talk(c net.Conn, in *bufio.Reader, head, body string) (text string, closes bool, err error) {
	_ = c.SetDeadline(time.Now().Add(loadLimit))
	if _, err := io.WriteString(c, head+"\r\n\r\n"+body); err != nil {
		return "", true, err
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return "", true, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d %s", resp.StatusCode, b)
	}
	return string(b), resp.Close, err
}

// current holds an answer against the generation that had to be in force.
func (l *load) current(path, text string, least int64) error {
	if path != "/g" {
		return nil
	}
	var n int64
	if _, err := fmt.Sscan(text, &n); err != nil || n < least {
		return fmt.Errorf("generation %q after %d was in force", text, least)
	}
	return nil
}

// keep asks again and again on one connection.
func (l *load) keep(path, addr string, secure bool) {
	var c net.Conn
	var in *bufio.Reader
	cfg := l.ownTLS()
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	for n := 0; !over(l.stop); n++ {
		if c == nil {
			var err error
			if c, err = l.dial(addr, secure, cfg); err != nil {
				l.fault("connect "+addr, err)
				return
			}
			in = bufio.NewReader(c)
		}
		least := l.least.Load()
		text, closes, err := talk(c, in, "GET "+path+" HTTP/1.1\r\nHost: x", "")
		l.asked.Add(1)
		if closes && l.handover {
			least-- // the last answer of the process before, on a connection that it has kept
		}
		if err == nil {
			err = l.current(path, text, least)
		}
		if err != nil || closes && !l.handover {
			l.fault(fmt.Sprintf("keep-alive %s on %s", path, addr), fmt.Errorf("request %d: %q closes=%t: %w", n, text, closes, err))
			return
		}
		if closes {
			l.closed.Add(1)
			c.Close()
			c = nil
		}
		time.Sleep(askPause)
	}
}

// single asks each time on a new connection that it wants closed.
func (l *load) single(path, addr string, secure bool) {
	cfg := l.ownTLS()
	for !over(l.stop) {
		least := l.least.Load()
		c, err := l.dial(addr, secure, cfg)
		var text string
		if err == nil {
			text, _, err = talk(c, bufio.NewReader(c), "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close", "")
			c.Close()
		}
		l.asked.Add(1)
		l.fresh.Add(1)
		if err == nil {
			err = l.current(path, text, least)
		}
		if err != nil {
			l.fault(fmt.Sprintf("new connection to %s", addr), err)
			return
		}
		time.Sleep(askPause)
	}
}

// post sends content that weir cannot have in one piece.
func (l *load) post(addr string) {
	const size, pieces = 64 << 10, 8
	for !over(l.stop) {
		err := func() error {
			c, err := l.dial(addr, false, nil)
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(loadLimit))
			if _, err := fmt.Fprintf(c, "POST /upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", size); err != nil {
				return err
			}
			for range pieces {
				if _, err := c.Write(make([]byte, size/pieces)); err != nil {
					return err
				}
				time.Sleep(10 * time.Millisecond)
			}
			text, err := io.ReadAll(c)
			if err == nil && !strings.Contains(string(text), fmt.Sprint(size, " <nil>")) {
				err = errors.New(string(text))
			}
			return err
		}()
		l.asked.Add(1)
		if err != nil {
			l.fault("upload", err)
			return
		}
	}
}

// download reads slowly, so that weir waits for the client, and looks at each
// byte. It must end when the backend ends it, and not before.
func (l *load) download(path, addr string, secure bool, open func()) {
	opened := sync.OnceFunc(open)
	defer opened()
	c, err := l.dial(addr, secure, l.ownTLS())
	if err != nil {
		l.fault("download", err)
		return
	}
	defer c.Close()
	raw := c
	if t, ok := c.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	socket, ok := raw.(*net.TCPConn)
	if !ok {
		l.fault("download", fmt.Errorf("over %T", raw))
		return
	}
	_ = socket.SetReadBuffer(32 << 10)
	_ = c.SetDeadline(time.Now().Add(loadLimit))
	_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 4<<10), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		l.fault("download", fmt.Errorf("%+v, %w", resp, err))
		return
	}
	defer resp.Body.Close()
	opened()
	buf := make([]byte, downloadChunk)
	piece := buf[:2<<10]
	for offset := int64(0); ; {
		_ = c.SetDeadline(time.Now().Add(loadLimit))
		n, err := resp.Body.Read(piece)
		if !bytes.Equal(piece[:n], patternAt(offset, n)) {
			l.fault("download", fmt.Errorf("other bytes than the backend's behind %d", offset))
			return
		}
		offset += int64(n)
		l.bytes.Add(int64(n))
		switch {
		case err == nil && !over(l.streams):
			time.Sleep(readPause)
		case err == nil && len(piece) < len(buf): // what is on its way is a lot to read with a small window
			_ = socket.SetReadBuffer(1 << 20)
			piece = buf
		case err == nil:
		case errors.Is(err, io.EOF) && over(l.streams):
			return
		default:
			l.fault("download", fmt.Errorf("ended after %d bytes: %w", offset, err))
			return
		}
	}
}

// tunnel talks to an echo in a WebSocket's tunnel.
func (l *load) tunnel(path, addr string, secure bool, open func()) {
	opened := sync.OnceFunc(open)
	defer opened()
	c, err := l.dial(addr, secure, l.ownTLS())
	if err != nil {
		l.fault("tunnel", err)
		return
	}
	defer c.Close()
	in := bufio.NewReader(c)
	_ = c.SetDeadline(time.Now().Add(loadLimit))
	_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", path)
	for line := ""; line != "\r\n" && err == nil; {
		line, err = in.ReadString('\n')
		if strings.HasPrefix(line, "HTTP/1.1") && !strings.Contains(line, " 101 ") {
			err = errors.New(line)
		}
	}
	opened()
	for n := 0; err == nil && !over(l.streams); n++ {
		want := fmt.Sprintf("%d\n", n)
		_ = c.SetDeadline(time.Now().Add(loadLimit))
		if _, err = io.WriteString(c, want); err != nil {
			break
		}
		var got string
		if got, err = in.ReadString('\n'); err == nil && got != want {
			err = fmt.Errorf("%q instead of %q", got, want)
		}
		l.echoes.Add(1)
		time.Sleep(echoPause)
	}
	if err != nil {
		l.fault("tunnel", err)
	}
}
