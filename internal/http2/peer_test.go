// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"bytes"
	"encoding/binary"
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

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// times are S7's defaults.
var times = http1.Timeouts{
	Header: 10 * time.Second, Idle: 75 * time.Second, Write: 30 * time.Second,
	BodyMinRate: 240, BodyGrace: 10 * time.Second,
}

// peer is a client that says what it wants, legal or not, in a bubble with a
// clock of its own, over an in-memory connection.
type peer struct {
	t    *testing.T
	srv  *Server
	c    net.Conn
	fr   *http2.Framer
	wire bytes.Buffer
	enc  *hpack.Encoder
	over chan struct{} // closed when the server has ended the connection

	mu     sync.Mutex
	heard  []string // frames, as text
	data   map[uint32]int
	bad    []*http1.Error
	calms  []Cause
	panics int
	paused chan struct{} // while not nil nothing is read
}

// play runs f against a server.
func play(t *testing.T, s *Server, f func(p *peer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		p := &peer{t: t, srv: s, c: client, data: map[uint32]int{}, over: make(chan struct{})}
		p.enc = hpack.NewEncoder(&p.wire)
		p.fr = http2.NewFramer(client, client)
		p.fr.AllowIllegalWrites, p.fr.AllowIllegalReads = true, true
		if s.Settings.Timeouts == (http1.Timeouts{}) {
			s.Settings.Timeouts = times
		}
		s.OnBadRequest = func(_ *ServerStream, e *http1.Error) { p.mu.Lock(); p.bad = append(p.bad, e); p.mu.Unlock() }
		s.OnCalm = func(_ any, c Cause) { p.mu.Lock(); p.calms = append(p.calms, c); p.mu.Unlock() }
		s.OnPanic = func(any, []byte) { p.mu.Lock(); p.panics++; p.mu.Unlock() }
		go s.Serve(netconn.New(server), nil, nil)
		go p.read()
		f(p)
		client.Close()
		s.CloseAll()
		s.Wait()
		if s.Budget != nil && s.Budget.Used() != 0 {
			t.Errorf("%d bytes of the budget are not given back", s.Budget.Used())
		}
		<-p.over
	})
}

// begin sends the preface and takes the server's.
func (p *peer) begin(set ...http2.Setting) {
	p.raw(preface)
	p.must(p.fr.WriteSettings(set...))
	p.must(p.fr.WriteSettingsAck())
	p.wait()
	p.take()
}

func (p *peer) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// raw sends bytes; that the server is gone is no error.
func (p *peer) raw(text string) { _, _ = io.WriteString(p.c, text) }

// read notes what comes.
func (p *peer) read() {
	defer close(p.over)
	dec := hpack.NewDecoder(4096, nil)
	p.fr.SetMaxReadFrameSize(1 << 20)
	for {
		f, err := p.fr.ReadFrame()
		if err != nil {
			return
		}
		p.mu.Lock()
		wait := p.paused
		p.mu.Unlock()
		if wait != nil {
			<-wait
		}
		p.note(f, dec)
	}
}

func (p *peer) note(f http2.Frame, dec *hpack.Decoder) {
	h := f.Header()
	text := fmt.Sprintf("%s %d", h.Type, h.StreamID)
	switch f := f.(type) {
	case *http2.HeadersFrame:
		list, err := dec.DecodeFull(f.HeaderBlockFragment())
		for _, l := range list {
			if l.Name != "date" {
				text += " " + l.Name + "=" + l.Value
			}
		}
		if err != nil {
			text += " " + err.Error()
		}
		if f.StreamEnded() {
			text += " END"
		}
	case *http2.DataFrame:
		text += fmt.Sprintf(" %d", len(f.Data()))
		if len(f.Data()) < 100 {
			text += fmt.Sprintf(" %q", f.Data())
		}
		if f.StreamEnded() {
			text += " END"
		}
		p.mu.Lock()
		p.data[h.StreamID] += len(f.Data())
		p.mu.Unlock()
	case *http2.RSTStreamFrame:
		text += " " + f.ErrCode.String()
	case *http2.GoAwayFrame:
		text += fmt.Sprintf(" last %d %s %s", f.LastStreamID, f.ErrCode, f.DebugData())
	case *http2.WindowUpdateFrame:
		text += fmt.Sprintf(" %d", f.Increment)
	case *http2.PingFrame:
		text += fmt.Sprintf(" %v %q", f.IsAck(), f.Data)
	case *http2.SettingsFrame:
		if f.IsAck() {
			text += " ACK"
		}
	}
	p.mu.Lock()
	p.heard = append(p.heard, strings.TrimSpace(text))
	p.mu.Unlock()
}

func (p *peer) wait() { synctest.Wait() }

// take returns what was heard since the last time.
func (p *peer) take() []string {
	p.wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.heard
	p.heard = nil
	return h
}

// expect checks what was heard since the last time, window updates left out.
func (p *peer) expect(want ...string) {
	p.t.Helper()
	var got []string
	for _, h := range p.take() {
		if !strings.HasPrefix(h, "WINDOW_UPDATE") {
			got = append(got, h)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		p.t.Errorf("heard\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// ended reports that the server has ended the connection.
func (p *peer) ended() bool {
	p.wait()
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

func (p *peer) received(id uint32) int {
	p.wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.data[id]
}

// pause stops reading until the returned function is called.
func (p *peer) pause() (resume func()) {
	c := make(chan struct{})
	p.mu.Lock()
	p.paused = c
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		p.paused = nil
		p.mu.Unlock()
		close(c)
	}
}

// block encodes fields, "name: value" each.
func (p *peer) block(fields ...string) []byte {
	p.wire.Reset()
	for _, f := range fields {
		i := strings.Index(f[1:], ": ") + 1
		p.must(p.enc.WriteField(hpack.HeaderField{Name: f[:i], Value: f[i+2:]}))
	}
	return bytes.Clone(p.wire.Bytes())
}

// get is a plain request's fields, and more.
func get(path string, more ...string) []string {
	return append([]string{":method: GET", ":scheme: http", ":authority: a.example", ":path: " + path}, more...)
}

func post(path string, more ...string) []string {
	return append([]string{":method: POST", ":scheme: http", ":authority: a.example", ":path: " + path}, more...)
}

func (p *peer) headers(id uint32, end bool, fields ...string) {
	_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block(fields...), EndStream: end, EndHeaders: true})
}

func (p *peer) send(id uint32, end bool, text string) { _ = p.fr.WriteData(id, end, []byte(text)) }

func u32(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

// answers are what the tests' handler does, by path.
type answers map[string]func(s *ServerStream)

func (a answers) serve(s *ServerStream) {
	if f := a[string(s.Request().Path)]; f != nil {
		f(s)
		return
	}
	echo(s)
}

// echo answers with the request's content, and with its line and fields as a
// backend of HTTP/1.1 would see them.
func echo(s *ServerStream) {
	body, err := readAll(s)
	if err != nil {
		var e *http1.Error
		if errors.As(err, &e) {
			_ = s.WriteHead(&message.Response{Status: e.Status()}, nil, true)
			return
		}
		s.Abort()
		return
	}
	r := s.Request()
	text := fmt.Sprintf("%s %s?%s %s|", r.Method, r.Path, r.Query, r.Authority)
	text += string(r.Fields.AppendWire(nil))
	if n := s.Trailers().Len(); n > 0 {
		text += "|" + string(s.Trailers().AppendWire(nil))
	}
	text = strings.ReplaceAll(text, "\r\n", ";") + "|" + body
	_ = s.WriteHead(&message.Response{Status: 200}, []byte(text), true)
}

func readAll(s *ServerStream) (string, error) {
	var b strings.Builder
	for {
		p, err := s.ReadBody()
		b.Write(p)
		if errors.Is(err, io.EOF) {
			return b.String(), nil
		}
		if err != nil {
			return b.String(), err
		}
	}
}

// ok is an answer without content.
func ok(s *ServerStream) { _ = s.WriteHead(&message.Response{Status: 204}, nil, true) }
