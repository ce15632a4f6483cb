// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestWebSocketPeersWhole: all cases, by every client with every server.
func TestWebSocketPeersWhole(t *testing.T) {
	for client := range wsPeers {
		for server := range wsPeers {
			t.Run(client+" to "+server, func(t *testing.T) {
				wsTalk(t, client, server, []int{0, 1, 125, 126, 65_535, 65_536, 70_000, 1 << 20, 16 << 20}, wsCodes)
			})
		}
	}
}

// TestWebSocketServersJudge: what a peer must refuse reaches the one who refuses
// it, and its word comes back.
func TestWebSocketServersJudge(t *testing.T) {
	for _, server := range []string{"ws", "websockets"} {
		addr := freeAddr(t)
		wsPeers[server].serve(t, addr)
		w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: off}}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: ["http://%s"], health: {active: {initial: up, interval: 60s}}}}
`, addr))
		for name, c := range map[string]struct {
			frame []byte
			code  int
		}{
			"bad UTF-8":            {rawFrame(0x81, []byte("caf\xe9"), true), 1007},
			"a reserved bit":       {rawFrame(0xa1, []byte("x"), true), 1002},
			"a reserved opcode":    {rawFrame(0x83, []byte("x"), true), 1002},
			"no mask":              {rawFrame(0x81, []byte("x"), false), 1002},
			"a fragmented control": {rawFrame(0x09, []byte("x"), true), 1002},
		} {
			t.Run(server+"/"+name, func(t *testing.T) {
				nc, err := net.Dial("tcp", w.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer nc.Close()
				_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
				_, _ = io.WriteString(nc, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
				r := bufio.NewReader(nc)
				if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 101 {
					t.Fatal(res, err)
				}
				_, _ = nc.Write(c.frame)
				first, p, err := wsRead(r)
				if err != nil || first != 0x88 || closeCode(p) != c.code {
					t.Errorf("%x %q %v, want %d", first, p, err, c.code)
				}
			})
		}
	}
}
