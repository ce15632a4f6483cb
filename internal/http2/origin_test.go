// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
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
