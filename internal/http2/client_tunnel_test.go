// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
)

func upgrade() *message.Request {
	r := &message.Request{Method: []byte("GET"), Path: []byte("/ws"), Authority: []byte("example.com"), WebSocket: true}
	r.Fields.Add(message.Upgrade, "Upgrade", "websocket")
	r.Fields.Add(message.Connection, "Connection", "Upgrade")
	r.Fields.Add(message.Other, "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	r.Fields.Add(message.Other, "Sec-WebSocket-Version", "13")
	return r
}

var connects = http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1}

// TestClientTunnel: an upgrade is a CONNECT to the backend, and its 200 the 101 that
// belongs to the client's key (the example of RFC 6455 section 1.3); bytes pass both
// ways, each half ends by itself, and the stream is free when the tunnel is closed.
func TestClientTunnel(t *testing.T) {
	originate(t, patient, func(o *origin) {
		s := o.conn.Open(clock.Now())
		q := upgrade()
		if err := s.WriteHead(q, nil, true); err != nil {
			t.Fatal(err)
		}
		if !o.has("HEADERS 1 end=false") {
			t.Fatal(o.heard)
		}
		if _, ok := q.Fields.Lookup("Sec-WebSocket-Key"); !ok {
			t.Error("the request has lost its key")
		}
		o.head(1, false, ":status", "200", "sec-websocket-protocol", "chat")
		var r message.Response
		if err := s.ReadHead(&r, false, soonest()); err != nil {
			t.Fatal(err)
		}
		accept, _ := r.Fields.Lookup("Sec-WebSocket-Accept")
		if chat, _ := r.Fields.Lookup("Sec-WebSocket-Protocol"); r.Status != 101 || !r.WebSocket || string(accept) != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" || string(chat) != "chat" {
			t.Errorf("%d %v %q %q", r.Status, r.WebSocket, accept, chat)
		}
		nc, _ := s.Takeover()
		_ = o.fr.WriteData(1, false, []byte("hello"))
		p := make([]byte, 10)
		if n, err := nc.Read(p); string(p[:n]) != "hello" || err != nil {
			t.Errorf("%q %v", p[:n], err)
		}
		nc.SetReadDeadline(clock.Now().Add(time.Second))
		if _, err := nc.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		nc.SetReadDeadline(0)
		if n, err := nc.Write([]byte("back")); n != 4 || err != nil {
			t.Error(n, err)
		}
		if o.has("END"); o.data[1] != 4 {
			t.Error(o.data)
		}
		_ = o.fr.WriteData(1, true, nil)
		if _, err := nc.Read(p); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		if err := nc.CloseWrite(); err != nil || !o.has("END 1") {
			t.Error(err, o.heard)
		}
		_ = nc.Close()
		if o.conn.Streams() != 0 || o.has("RST") || o.freed != 1 {
			t.Error(o.conn.Streams(), o.heard, o.freed)
		}

		cut := o.conn.Open(clock.Now())
		if err := cut.WriteHead(upgrade(), nil, true); err != nil {
			t.Fatal(err)
		}
		o.head(3, false, ":status", "200")
		if err := cut.ReadHead(&r, false, soonest()); err != nil {
			t.Fatal(err)
		}
		nc, _ = cut.Takeover()
		_ = nc.Close()
		if !o.has("RST 3 CANCEL") || o.conn.Streams() != 0 {
			t.Error(o.heard)
		}
	}, connects)
}

// TestClientTunnelDeclined: another status is an answer as any other.
func TestClientTunnelDeclined(t *testing.T) {
	originate(t, patient, func(o *origin) {
		s := o.conn.Open(clock.Now())
		if err := s.WriteHead(upgrade(), nil, true); err != nil {
			t.Fatal(err)
		}
		o.head(1, false, ":status", "403", "content-length", "2")
		_ = o.fr.WriteData(1, true, []byte("no"))
		if status, content, _, err := take(s); status != 403 || content != "no" || err != nil {
			t.Error(status, content, err)
		}
		if s.Reusable() {
			t.Error("its request is not at its end")
		}
		s.Close()
		if !o.has("RST 1 CANCEL") {
			t.Error(o.heard)
		}
	}, connects)
}

// TestClientTunnelUnknown: of a backend that has not said that it takes them nothing
// is asked.
func TestClientTunnelUnknown(t *testing.T) {
	originate(t, patient, func(o *origin) {
		s := o.conn.Open(clock.Now())
		if err := s.WriteHead(upgrade(), nil, true); !errors.Is(err, errUpgrade) || s.BytesWritten() != 0 {
			t.Error(err)
		}
		s.Close()
		if o.has("HEADERS") || o.has("RST") {
			t.Error(o.heard)
		}
	})
}
