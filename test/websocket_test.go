// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	wire "encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// TestWebSocketPeers: each implementation once as client and once as server, and
// the cases in which a proxy is most easily wrong. All of them by all: make
// test-long.
func TestWebSocketPeers(t *testing.T) {
	for client, server := range map[string]string{"coder": "ws", "ws": "websockets", "websockets": "coder"} {
		t.Run(client+" to "+server, func(t *testing.T) {
			t.Parallel()
			wsTalk(t, client, server, []int{0, 126, 70_000, 16 << 20}, []int{1000, 1012, 4999})
		})
	}
}

// rawFrame is a frame as nobody's library would send it: any first byte, masked
// (with zeros) or not.
func rawFrame(first byte, payload []byte, masked bool) []byte {
	b, mask := []byte{first}, byte(0)
	if masked {
		mask = 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, mask|byte(n))
	case n < 1<<16:
		b = wire.BigEndian.AppendUint16(append(b, mask|126), uint16(n))
	default:
		b = wire.BigEndian.AppendUint64(append(b, mask|127), uint64(n))
	}
	if masked {
		b = append(b, 0, 0, 0, 0)
	}
	return append(b, payload...)
}

// badFrames are frames that a peer must refuse, and frames that look like it:
// every first byte, text that is no UTF-8, lengths in more bytes than they need,
// fragments of control frames, frames in the midst of a message. masked is the
// wrong way round at places.
func badFrames(masked bool) (b []byte) {
	for first := range 256 {
		if first&0xf == 8 {
			continue // Close frames, which end the tunnel: below
		}
		b = append(b, rawFrame(byte(first), []byte{0xff, 0xc0, 0x80, byte(first)}, masked)...)
	}
	b = append(b, rawFrame(0x81, []byte("caf\xe9 \xed\xa0\x80"), !masked)...)
	b = append(b, 0x82, 126, 0, 3, 'a', 'b', 'c')               // 3 in two bytes
	b = append(b, 0x82, 127, 0, 0, 0, 0, 0, 0, 0, 2, 'd', 'e')  // 2 in eight
	b = append(b, rawFrame(0x89, make([]byte, 126), masked)...) // a PING that is too long
	b = append(b, rawFrame(0x01, []byte("a message "), masked)...)
	b = append(b, rawFrame(0x81, []byte("another one in it"), masked)...)
	b = append(b, rawFrame(0xf2, bytes.Repeat([]byte{0xfe}, 70_000), masked)...)
	return append(b, rawFrame(0x80, nil, masked)...)
}

// TestWebSocketBytesAreUntouched: whatever frames say, and whether it is allowed,
// each byte arrives as it was sent, both ways at once, up to the Close frame that
// the peer sends, whatever is in that: to judge it is the other peer's business.
func TestWebSocketBytesAreUntouched(t *testing.T) {
	closes := [][]byte{{}, {3}, {0, 0}, {3, 237, 0xff}, {0x13, 0x88, 'b', 'y', 'e'}, {0xff, 0xff}} // none, half a code, 0, 1005 with bad UTF-8, 5000, 65535
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	up, down := badFrames(true), badFrames(false)
	arrived := make(chan []byte, 1)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				q, err := http.ReadRequest(r)
				if err != nil {
					return // a check
				}
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				go func() { _, _ = c.Write(down) }()
				i, _ := strconv.Atoi(q.URL.Path[1:])
				b := make([]byte, len(up)+len(rawFrame(0x88, closes[i], true)))
				n, _ := io.ReadFull(r, b)
				arrived <- b[:n]
				_, _ = c.Write(rawFrame(0x88, nil, false))
			}()
		}
	}()
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: off}}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: ["http://%s"], health: {active: {initial: up, interval: 60s}}}}
`, ln.Addr()))
	for i, payload := range closes {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(c, "GET /%d HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", i)
		r := bufio.NewReader(c)
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 101 {
			t.Fatal(res, err)
		}
		sent := append(append([]byte(nil), up...), rawFrame(0x88, payload, true)...)
		go func() { _, _ = c.Write(sent) }()
		got := make([]byte, len(down))
		if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, down) {
			t.Errorf("close %x: the client got something else: %v", payload, err)
		}
		if b := <-arrived; !bytes.Equal(b, sent) {
			t.Errorf("close %x: the backend got something else", payload)
		}
		if rest, err := io.ReadAll(r); err != nil || !bytes.Equal(rest, []byte{0x88, 0}) {
			t.Errorf("close %x: at the end %x %v", payload, rest, err)
		}
		_ = c.Close()
	}
}
