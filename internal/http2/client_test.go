// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// origin is a backend that says what it wants, legal or not, in a bubble with a
// clock of its own, over an in-memory connection.
type origin struct {
	t    *testing.T
	k    *Client
	conn *ClientConn
	c    net.Conn
	fr   *http2.Framer
	wire bytes.Buffer
	enc  *hpack.Encoder

	mu     sync.Mutex
	heard  []string
	data   map[uint32]int
	window map[uint32]int // beyond what it was at first
	overs  []string
	freed  int
	more   int
}

// Freed implements Owner.
func (o *origin) Freed(*ClientConn, bool) { o.mu.Lock(); o.freed++; o.mu.Unlock() }

// More implements Owner.
func (o *origin) More(*ClientConn) { o.mu.Lock(); o.more++; o.mu.Unlock() }

// Over implements Owner.
func (o *origin) Over(_ *ClientConn, err error, idle time.Duration, closed bool) {
	o.mu.Lock()
	o.overs = append(o.overs, fmt.Sprintf("%v idle=%v closed=%v", err, idle > 0, closed))
	o.mu.Unlock()
}

// originate runs f against a backend that greets with the settings.
func originate(t *testing.T, set ClientSettings, f func(o *origin), settings ...http2.Setting) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		o := &origin{t: t, k: &Client{}, c: server, data: map[uint32]int{}, window: map[uint32]int{}}
		o.enc = hpack.NewEncoder(&o.wire)
		o.fr = http2.NewFramer(server, server)
		o.fr.AllowIllegalWrites, o.fr.AllowIllegalReads = true, true
		go func() {
			if _, err := io.ReadFull(server, make([]byte, len(preface))); err == nil {
				o.listen()
			}
		}()
		greeted := make(chan struct{})
		go func() {
			_ = o.fr.WriteSettings(settings...)
			close(greeted)
		}()
		var err error
		o.conn, err = o.k.Start(netconn.New(client), set, o, clock.Now().Add(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		<-greeted
		f(o)
		server.Close()
		o.conn.Cut()
		synctest.Wait()
		o.k.Close()
	})
}

// listen notes what the client sends.
func (o *origin) listen() {
	for {
		f, err := o.fr.ReadFrame()
		if err != nil {
			return
		}
		o.mu.Lock()
		switch f := f.(type) {
		case *http2.HeadersFrame:
			o.heard = append(o.heard, fmt.Sprintf("HEADERS %d end=%v", f.StreamID, f.StreamEnded()))
		case *http2.DataFrame:
			o.data[f.StreamID] += len(f.Data())
			if f.StreamEnded() {
				o.heard = append(o.heard, fmt.Sprintf("END %d", f.StreamID))
			}
		case *http2.RSTStreamFrame:
			o.heard = append(o.heard, fmt.Sprintf("RST %d %v", f.StreamID, f.ErrCode))
		case *http2.GoAwayFrame:
			o.heard = append(o.heard, fmt.Sprintf("GOAWAY %v %s", f.ErrCode, f.DebugData()))
		case *http2.PingFrame:
			o.heard = append(o.heard, fmt.Sprintf("PING ack=%v", f.IsAck()))
		case *http2.WindowUpdateFrame:
			o.window[f.StreamID] += int(f.Increment)
		}
		o.mu.Unlock()
	}
}

// has reports that the client sent something that begins so.
func (o *origin) has(prefix string) bool {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.heard {
		if strings.HasPrefix(h, prefix) {
			return true
		}
	}
	return false
}

func (o *origin) count(what string) (n int) {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.heard {
		if h == what {
			n++
		}
	}
	return n
}

// block encodes fields, name and value in turn.
func (o *origin) block(fields ...string) []byte {
	o.wire.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = o.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(o.wire.Bytes())
}

// head sends HEADERS. The client may have ended the connection.
func (o *origin) head(stream uint32, end bool, fields ...string) {
	_ = o.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, EndStream: end, BlockFragment: o.block(fields...)})
}

func (o *origin) ask(method string, fields ...string) *ClientStream {
	o.t.Helper()
	s := o.conn.Open(clock.Now())
	if s == nil {
		o.t.Fatal("no room")
	}
	r := &message.Request{Method: []byte(method), Path: []byte("/x"), Authority: []byte("example.com")}
	for i := 0; i < len(fields); i += 2 {
		r.Fields.Add(http1.FieldID([]byte(fields[i])), fields[i], fields[i+1])
	}
	if err := s.WriteHead(r, nil, true); err != nil {
		o.t.Fatal(err)
	}
	return s
}

// upload begins a request whose content has no known length.
func (o *origin) upload() *ClientStream {
	o.t.Helper()
	s := o.conn.Open(clock.Now())
	r := &message.Request{Method: []byte("POST"), Path: []byte("/"), Authority: []byte("e"), Body: message.Streamed}
	if err := s.WriteHead(r, nil, false); err != nil {
		o.t.Fatal(err)
	}
	return s
}

func soonest() balance.Instant { return clock.Now().Add(5 * time.Second) }

// take reads a final head and all content.
func take(s *ClientStream) (status int, content, trailers string, err error) {
	var r message.Response
	if err := s.ReadHead(&r, false, soonest()); err != nil {
		return 0, "", "", err
	}
	for {
		s.SetReadDeadline(soonest())
		p, err := s.ReadBody()
		if errors.Is(err, io.EOF) {
			return r.Status, content, string(s.Trailers().AppendWire(nil)), nil
		}
		if err != nil {
			return r.Status, content, "", err
		}
		content += string(p)
	}
}

func reasonOf(err error) string {
	var e *http1.Error
	if errors.As(err, &e) {
		return e.Reason.String() + ": " + e.Detail
	}
	return fmt.Sprint(err)
}

// patient settings ask after 10 s.
var patient = ClientSettings{Ping: 10 * time.Second}

// TestExchange: heads, content, trailers and interim answers of several exchanges
// at once on one connection.
func TestExchange(t *testing.T) {
	originate(t, patient, func(o *origin) {
		a, b := o.ask("GET"), o.ask("POST", "Te", "trailers", "Connection", "close", "Keep-Alive", "5")
		o.head(3, false, ":status", "103", "link", "</a>")
		o.head(3, false, ":status", "200", "content-type", "text/plain")
		o.head(1, true, ":status", "204")
		_ = o.fr.WriteData(3, false, []byte("hel"))
		_ = o.fr.WriteDataPadded(3, false, []byte("lo"), make([]byte, 7))
		o.head(3, true, "grpc-status", "0")
		var r message.Response
		if err := b.ReadHead(&r, false, soonest()); err != nil || r.Status != 103 {
			t.Fatal(r.Status, err)
		}
		if status, content, trailers, err := take(b); status != 200 || content != "hello" || trailers != "grpc-status: 0\r\n" || err != nil {
			t.Error(status, content, trailers, err)
		}
		if status, content, _, err := take(a); status != 204 || content != "" || err != nil {
			t.Error(status, content, err)
		}
		if !a.Reusable() || !b.Reusable() {
			t.Error("not complete")
		}
		a.Done()
		b.Done()
		if o.has("RST") || o.has("GOAWAY") {
			t.Error(o.heard)
		}
		if n := o.conn.Streams(); n != 0 {
			t.Error(n, "streams are open")
		}
	})
}

// TestIllegal: what a backend may not send is a bad answer of the one exchange, or
// the end of the connection; never an answer, and never without a reason.
func TestIllegal(t *testing.T) {
	ok := []string{":status", "200"}
	for name, c := range map[string]struct {
		send   func(o *origin)
		reason string // of the exchange
		told   string // what the backend hears
	}{
		"content before the head": {func(o *origin) { _ = o.fr.WriteData(1, false, []byte("x")) }, "bad_response: content before", "RST 1 PROTOCOL"},
		"capitals":                {func(o *origin) { o.head(1, true, ":status", "200", "X-Up", "1") }, "bad_response: field name", "RST 1 PROTOCOL"},
		"transfer-encoding":       {func(o *origin) { o.head(1, true, ":status", "200", "transfer-encoding", "chunked") }, "bad_response: field that concerns", "RST 1"},
		"connection":              {func(o *origin) { o.head(1, true, ":status", "200", "connection", "close") }, "bad_response: field that concerns", "RST 1"},
		"upgrade":                 {func(o *origin) { o.head(1, true, ":status", "200", "upgrade", "h2c") }, "bad_response: field that concerns", "RST 1"},
		"line feed":               {func(o *origin) { o.head(1, true, ":status", "200", "a", "b\r\nset-cookie: x") }, "bad_response: control", "RST 1"},
		"NUL":                     {func(o *origin) { o.head(1, true, ":status", "200", "a", "b\x00") }, "bad_response: control", "RST 1"},
		"space in a name":         {func(o *origin) { o.head(1, true, ":status", "200", "a b", "c") }, "bad_response: field name", "RST 1"},
		"no status":               {func(o *origin) { o.head(1, true, "a", "b") }, "bad_response: no :status", "RST 1"},
		"status of two digits":    {func(o *origin) { o.head(1, true, ":status", "20") }, "bad_response: no :status", "RST 1"},
		"status with a sign":      {func(o *origin) { o.head(1, true, ":status", "+20") }, "bad_response: no :status", "RST 1"},
		"101":                     {func(o *origin) { o.head(1, false, ":status", "101") }, "bad_response: no :status", "RST 1"},
		"status twice":            {func(o *origin) { o.head(1, true, ":status", "200", ":status", "200") }, "bad_response: repeated :status", "RST 1"},
		"status behind a field":   {func(o *origin) { o.head(1, true, "a", "b", ":status", "200") }, "bad_response: repeated :status", "RST 1"},
		"path in an answer":       {func(o *origin) { o.head(1, true, ":status", "200", ":path", "/") }, "bad_response: pseudo-field", "RST 1"},
		"interim as the last":     {func(o *origin) { o.head(1, true, ":status", "103") }, "bad_response: an interim", "RST 1"},
		"lengths that differ":     {func(o *origin) { o.head(1, false, ":status", "200", "content-length", "1", "content-length", "2") }, "bad_response: repeated Content-Length", "RST 1"},
		"length of letters":       {func(o *origin) { o.head(1, false, ":status", "200", "content-length", "0x1") }, "bad_response: ", "RST 1"},
		"length without content":  {func(o *origin) { o.head(1, true, ":status", "200", "content-length", "1") }, "bad_response: less content", "RST 1"},
		"more than the length": {func(o *origin) {
			o.head(1, false, ":status", "200", "content-length", "1")
			_ = o.fr.WriteData(1, true, []byte("xy"))
		}, "bad_response: more content", "RST 1"},
		"less than the length": {func(o *origin) {
			o.head(1, false, ":status", "200", "content-length", "9")
			_ = o.fr.WriteData(1, true, []byte("xy"))
		}, "bad_response: less content", "RST 1"},
		"content of a 204":         {func(o *origin) { o.head(1, false, ":status", "204"); _ = o.fr.WriteData(1, true, []byte("xy")) }, "", "RST 1"},
		"second head":              {func(o *origin) { o.head(1, false, ok...); o.head(1, false, ok...) }, "bad_response: a second head", "RST 1"},
		"pseudo-field in trailers": {func(o *origin) { o.head(1, false, ok...); o.head(1, true, ok...) }, "bad_response: pseudo-field in", "RST 1"},
		"too many interims": {func(o *origin) {
			for range 70 {
				o.head(1, false, ":status", "103")
			}
		}, "bad_response: too many interim", "RST 1"},
		"reset":             {func(o *origin) { _ = o.fr.WriteRSTStream(1, http2.ErrCodeInternal) }, "reset_before_response: RST_STREAM INTERNAL_ERROR", ""},
		"reset within":      {func(o *origin) { o.head(1, false, ok...); _ = o.fr.WriteRSTStream(1, http2.ErrCodeCancel) }, "reset_mid_response: RST_STREAM CANCEL", ""},
		"window beyond all": {func(o *origin) { _ = o.fr.WriteWindowUpdate(1, 1<<31-1) }, "bad_response", "RST 1 FLOW"},
		"push": {func(o *origin) {
			_ = o.fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true, BlockFragment: o.block(":method", "GET")})
		}, "bad_response: PUSH_PROMISE", "GOAWAY PROTOCOL"},
		"stream of its own":      {func(o *origin) { o.head(2, true, ok...) }, "bad_response: HEADERS on an idle", "GOAWAY PROTOCOL"},
		"stream that is to come": {func(o *origin) { o.head(7, true, ok...) }, "bad_response: HEADERS on an idle", "GOAWAY PROTOCOL"},
		"DATA on stream 0":       {func(o *origin) { _ = o.fr.WriteRawFrame(http2.FrameData, 0, 0, []byte("x")) }, "bad_response", "GOAWAY PROTOCOL"},
		"block that is none": {func(o *origin) {
			_ = o.fr.WriteRawFrame(http2.FrameHeaders, 5, 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
		}, "bad_response: header block", "GOAWAY COMPRESSION"},
		"frame that is too large": {func(o *origin) { _ = o.fr.WriteRawFrame(http2.FrameHeaders, 4, 1, make([]byte, maxFrame+1)) }, "bad_response: frame too large", "GOAWAY FRAME_SIZE"},
		"CONTINUATION of nothing": {func(o *origin) { _ = o.fr.WriteContinuation(1, true, nil) }, "bad_response", "GOAWAY PROTOCOL"},
		"interleaved block": {func(o *origin) {
			_ = o.fr.WriteRawFrame(http2.FrameHeaders, 0, 1, o.block(ok...))
			_ = o.fr.WritePing(false, [8]byte{})
		}, "bad_response", "GOAWAY PROTOCOL"},
		"push enabled": {func(o *origin) { _ = o.fr.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1}) }, "bad_response: SETTINGS_ENABLE_PUSH", "GOAWAY PROTOCOL"},
		"huge initial window": {func(o *origin) {
			_ = o.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
		}, "bad_response", "GOAWAY FLOW"},
		"flood of pings": {func(o *origin) {
			for range calmBurst + 200 {
				if o.fr.WritePing(false, [8]byte{}) != nil {
					break
				}
			}
		}, "bad_response: too much: ping", "GOAWAY ENHANCE"},
		"flood of settings": {func(o *origin) {
			for range calmBurst {
				if o.fr.WriteSettings() != nil {
					break
				}
			}
		}, "bad_response: too much: settings", "GOAWAY ENHANCE"},
		"flood of empty content": {func(o *origin) {
			o.head(1, false, ok...)
			for range calmBurst {
				if o.fr.WriteData(1, false, nil) != nil {
					break
				}
			}
		}, "bad_response: too much: empty", "GOAWAY ENHANCE"},
		"flood of CONTINUATION": {func(o *origin) {
			_ = o.fr.WriteRawFrame(http2.FrameHeaders, 0, 1, nil)
			for range calmBurst {
				if o.fr.WriteContinuation(1, false, nil) != nil {
					break
				}
			}
		}, "bad_response: too much: empty", "GOAWAY ENHANCE"},
		"endless header block": {func(o *origin) {
			_ = o.fr.WriteRawFrame(http2.FrameHeaders, 0, 1, nil)
			for range 64 {
				if o.fr.WriteContinuation(1, false, make([]byte, maxFrame)) != nil {
					break
				}
			}
		}, "bad_response: too much: headers", "GOAWAY ENHANCE"},
		"more than the window": {func(o *origin) {
			o.head(1, false, ok...)
			for range 5 {
				_ = o.fr.WriteData(1, false, make([]byte, maxFrame))
			}
		}, "bad_response: more content than the window", "RST 1 FLOW"},
		"later stream in GOAWAY": {func(o *origin) { _ = o.fr.WriteGoAway(1, 0, nil); _ = o.fr.WriteGoAway(9, 0, nil) }, "bad_response: GOAWAY with a later", "GOAWAY PROTOCOL"},
		"end":                    {func(o *origin) { o.c.Close() }, "EOF", ""},
		"end after a word":       {func(o *origin) { _ = o.fr.WriteGoAway(1, http2.ErrCodeInternal, []byte("out of\nluck")); o.c.Close() }, "EOF: http2: the backend ends the connection: INTERNAL_ERROR (out of.luck)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			originate(t, patient, func(o *origin) {
				s := o.ask("GET")
				synctest.Wait()
				go c.send(o)
				synctest.Wait()
				_, _, _, err := take(s)
				if got := reasonOf(err); c.reason != "" && !strings.HasPrefix(got, c.reason) {
					t.Errorf("got %q, want %q", got, c.reason)
				}
				s.Close()
				if c.told != "" && !o.has(c.told) {
					t.Errorf("the backend heard %q, not %q", o.heard, c.told)
				}
				if strings.HasPrefix(c.told, "RST") { // the connection goes on
					again := o.ask("GET")
					o.head(again.id, true, ok...)
					if status, _, _, err := take(again); status != 200 || err != nil {
						t.Error("the next exchange:", status, err)
					}
					again.Done()
				}
			})
		})
	}
}

// TestGoAway: streams above the last one that the backend names are unprocessed
// and said to be, the others are answered, and no further one is opened.
func TestGoAway(t *testing.T) {
	originate(t, patient, func(o *origin) {
		a, b := o.ask("POST"), o.ask("POST")
		_ = o.fr.WriteGoAway(1, http2.ErrCodeNo, nil)
		if _, _, _, err := take(b); err == nil || !b.Unprocessed() || b.ResponseStarted() {
			t.Error(err, b.Unprocessed())
		}
		b.Close()
		if o.conn.Open(clock.Now()) != nil {
			t.Error("opened a stream behind GOAWAY")
		}
		o.head(1, true, ":status", "200")
		if status, _, _, err := take(a); status != 200 || err != nil || a.Unprocessed() {
			t.Error(status, err)
		}
		a.Done()
		synctest.Wait()
		if _, err := o.c.Write([]byte{0}); err == nil {
			t.Error("the connection goes on without a stream")
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.overs) != 1 || !strings.Contains(o.overs[0], "NO_ERROR") {
			t.Error(o.overs)
		}
	})
}

// TestRefused: REFUSED_STREAM says that a request was not processed, another
// code does not.
func TestRefused(t *testing.T) {
	originate(t, patient, func(o *origin) {
		for code, want := range map[http2.ErrCode]bool{http2.ErrCodeRefusedStream: true, http2.ErrCodeCancel: false} {
			s := o.ask("POST")
			_ = o.fr.WriteRSTStream(s.id, code)
			if _, _, _, err := take(s); err == nil || s.Unprocessed() != want || !s.ResponseStarted() {
				t.Error(code, err, s.Unprocessed())
			}
			s.Close()
		}
	})
}

// TestMostStreams: no more streams than the backend allows, and as many as it
// allows later.
func TestMostStreams(t *testing.T) {
	originate(t, patient, func(o *origin) {
		a, b := o.ask("GET"), o.ask("GET")
		if o.conn.Open(clock.Now()) != nil {
			t.Error("a third stream of two")
		}
		_ = o.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 3})
		synctest.Wait()
		if o.more != 1 || o.conn.Room() != 1 {
			t.Error(o.more, o.conn.Room())
		}
		_ = o.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
		synctest.Wait()
		a.Close()
		b.Close()
		if o.conn.Open(clock.Now()) != nil {
			t.Error("a stream of none")
		}
	}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
}

// TestCancel: an exchange that is cut or closed before its end is reset at once,
// and what waits for it returns.
func TestCancel(t *testing.T) {
	originate(t, patient, func(o *origin) {
		s := o.ask("GET")
		done := make(chan error)
		go func() {
			var r message.Response
			done <- s.ReadHead(&r, false, 0)
		}()
		synctest.Wait()
		s.Cut()
		if err := <-done; err == nil {
			t.Error("no error")
		}
		if !o.has("RST 1 CANCEL") {
			t.Error(o.heard)
		}
		s.Close()
		u := o.upload()
		o.head(u.id, true, ":status", "413") // an early answer
		if status, _, _, err := take(u); status != 413 || err != nil || u.Reusable() {
			t.Error(status, err)
		}
		u.Close()
		if !o.has("RST 3 CANCEL") || o.count("RST 1 CANCEL") != 1 {
			t.Error(o.heard)
		}
	})
}

// TestWholeAnswer: an answer that is there in whole survives a reset of what the
// backend did not want to read.
func TestWholeAnswer(t *testing.T) {
	originate(t, patient, func(o *origin) {
		s := o.upload()
		o.head(1, false, ":status", "200")
		_ = o.fr.WriteData(1, true, []byte("enough"))
		_ = o.fr.WriteRSTStream(1, http2.ErrCodeNo)
		synctest.Wait()
		if err := s.WriteBody([]byte("x"), false); err == nil {
			t.Error("written behind the reset")
		}
		if status, content, _, err := take(s); status != 200 || content != "enough" || err != nil {
			t.Error(status, content, err)
		}
		s.Close()
	})
}

// TestSlowStream: a stream whose window is used up waits until its deadline and
// holds up no other; a stream that nobody reads holds up itself alone.
func TestSlowStream(t *testing.T) {
	originate(t, patient, func(o *origin) {
		slow, quick := o.upload(), o.upload()
		slow.SetWriteDeadline(clock.Now().Add(3 * time.Second))
		if err := slow.WriteBody(make([]byte, startWindow+1), false); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		_ = o.fr.WriteWindowUpdate(0, 1<<20) // slow has used the connection's, too
		synctest.Wait()
		if err := quick.WriteBody(make([]byte, 1000), true); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if o.data[1] != startWindow || o.data[3] != 1000 {
			t.Error(o.data)
		}
		o.head(1, false, ":status", "200")
		o.head(3, false, ":status", "200")
		for range firstWindow / maxFrame { // nobody reads slow
			_ = o.fr.WriteData(1, false, make([]byte, maxFrame))
		}
		const size = 2 * connWindow
		go func() {
			for sent := 0; sent < size; {
				o.mu.Lock()
				room := firstWindow + o.window[3] - sent
				o.mu.Unlock()
				if room < maxFrame {
					time.Sleep(time.Millisecond)
					continue
				}
				_ = o.fr.WriteData(3, sent+maxFrame == size, make([]byte, maxFrame))
				sent += maxFrame
			}
		}()
		if status, content, _, err := take(quick); status != 200 || len(content) != size || err != nil {
			t.Error(status, len(content), err)
		}
		slow.Close()
		quick.Close()
	})
}

// TestSilence: a backend that falls silent is asked, not more often than gRPC's
// servers bear, and one that does not answer is given up with its exchanges.
func TestSilence(t *testing.T) {
	originate(t, patient, func(o *origin) {
		s := o.ask("GET")
		answering := func() {
			for range 3 {
				time.Sleep(10*time.Second + time.Millisecond)
				synctest.Wait()
				if o.has("PING ack=false") {
					_ = o.fr.WritePing(true, healthPing)
				}
			}
		}
		answering()
		if n := o.count("PING ack=false"); n != 2 {
			t.Errorf("%d PINGs in 30 s, want 2", n)
		}
		time.Sleep(4 * time.Minute)
		if n := o.count("PING ack=false"); n != 2 {
			t.Errorf("%d PINGs in 4 minutes, want 2", n)
		}
		time.Sleep(90 * time.Second)
		if n := o.count("PING ack=false"); n != 3 {
			t.Errorf("%d PINGs, want 3", n)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		var r message.Response
		if err := s.ReadHead(&r, false, soonest()); !errors.Is(err, ErrSilent) {
			t.Error(err)
		}
		s.Close()
	})
}

// TestGreeting: a backend that speaks something else, or nothing, is found out
// before a request is sent.
func TestGreeting(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		want string
	}{
		"HTTP/1.1": {"HTTP/1.1 400 Bad Request\r\n\r\n", "bad_response: the backend does not speak HTTP/2"},
		"SSH":      {"SSH-2.0-OpenSSH_9.2\r\n", "bad_response: the backend does not speak HTTP/2"},
		"a PING":   {"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", "bad_response: the backend does not speak HTTP/2"},
		"nothing":  {"", ErrNoHello.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, server) }()
				if c.says != "" {
					go func() { _, _ = io.WriteString(server, c.says) }()
				}
				k := &Client{}
				nc := netconn.New(client)
				_, err := k.Start(nc, patient, &origin{}, clock.Now().Add(time.Second))
				if got := reasonOf(err); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
				_ = nc.Close()
				server.Close()
				k.Close()
			})
		})
	}
}

// TestKeep: a connection without exchanges ends after its time, and says so.
func TestKeep(t *testing.T) {
	originate(t, ClientSettings{Keep: 30 * time.Second}, func(o *origin) {
		s := o.ask("GET")
		o.head(1, true, ":status", "200")
		if _, _, _, err := take(s); err != nil {
			t.Fatal(err)
		}
		s.Done()
		time.Sleep(29 * time.Second)
		if o.has("GOAWAY") {
			t.Error("ended early")
		}
		time.Sleep(2 * time.Second)
		if !o.has("GOAWAY NO_ERROR") || len(o.overs) != 1 {
			t.Error(o.heard, o.overs)
		}
	})
}

// FuzzAnswers: whatever a backend sends, each exchange ends with an answer that is
// well-formed or with an error, and the connection with it.
func FuzzAnswers(f *testing.F) {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	_ = fr.WriteRawFrame(http2.FrameHeaders, 4, 1, []byte{0x88})
	_ = fr.WriteData(1, true, []byte("hello"))
	f.Add(b.Bytes())
	_ = fr.WriteGoAway(1, 0, []byte("x"))
	_ = fr.WriteRawFrame(http2.FrameHeaders, 5, 3, []byte{0x88, 0x40, 1, 'a', 1, 'b'})
	_ = fr.WriteRSTStream(5, http2.ErrCodeRefusedStream)
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, wire []byte) {
		originate(t, patient, func(o *origin) {
			streams := []*ClientStream{o.ask("GET"), o.ask("HEAD"), o.upload()}
			go func() {
				_, _ = o.c.Write(wire)
				o.c.Close()
			}()
			for _, s := range streams {
				var r message.Response
				err := s.ReadHead(&r, false, soonest())
				for err == nil && r.Status < 200 {
					err = s.ReadHead(&r, false, soonest())
				}
				if err == nil && (r.Status > 999 || r.Fields.Has(message.Connection) || r.Fields.Has(message.TransferEncoding) || bytes.ContainsAny(r.Fields.AppendWire(nil), "\x00")) {
					t.Errorf("passed on: %d %q", r.Status, r.Fields.AppendWire(nil))
				}
				for err == nil {
					s.SetReadDeadline(soonest())
					_, err = s.ReadBody()
				}
				s.Close()
			}
			if n := o.conn.Streams(); n != 0 {
				t.Error(n, "streams are left")
			}
		})
	})
}
