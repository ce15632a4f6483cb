// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestAccessLogForms: what a client sends comes out in the form that was asked
// for, on one line, and a sample keeps the failures.
func TestAccessLogForms(t *testing.T) {
	for _, c := range []struct {
		name, access string
		want         []string // of the lines, in order, whatever address and time they have
	}{
		{"combined", "format: combined", []string{
			`"GET /a HTTP/1.1" 200 N "https://shop.example.com/cart" "x \x22 200 1 \x5C"`,
			`"GET /dead HTTP/1.1" 502 N "https://shop.example.com/cart" "x \x22 200 1 \x5C"`,
		}},
		{"template", `format: '$method|$path|$status|$reason|$tried|$http_x_tenant'`, []string{
			`GET|/a|200|ok|-|blue\x7Cgreen`, `GET|/dead|502|connect_refused|127.0.0.1:1=connect_refused|blue\x7Cgreen`,
		}},
		{"sample", `format: "$status $sample", sample: 0.0001%`, []string{`502 1`}},
		{"query", `format: "$uri", query: true`, []string{`/a?token=1`, `/dead?token=1`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "access.log")
			backend := weirtest.Always(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: %s, %s}}
listeners:
  web:
    bind: "${LISTEN}"
    routes: [{name: dead, match: {path: /dead}, pool: dead}, {name: all, pool: app}]
pools:
  app: {backends: ["http://%s"], health: {active: off}}
  dead: {backends: ["http://127.0.0.1:1"], health: {active: off, passive: off}}
`, path, c.access, backend.Addr()))
			for _, target := range []string{"/a?token=1", "/dead?token=1"} {
				conn, err := net.Dial("tcp", w.addr)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\nReferer: https://shop.example.com/cart?secret=1\r\nUser-Agent: x \" 200 1 \\\r\nX-Tenant: blue|green\r\nConnection: close\r\n\r\n", target)
				if _, err := io.Copy(io.Discard, conn); err != nil {
					t.Fatal(err)
				}
				conn.Close()
			}
			var lines []string
			eventually(t, 10*time.Second, "the lines are written", func() bool {
				text, err := os.ReadFile(path)
				if err != nil {
					return false
				}
				lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
				return len(lines) >= len(c.want) && len(text) > 0
			})
			if len(lines) != len(c.want) {
				t.Fatalf("%d lines: %q", len(lines), lines)
			}
			for i, line := range lines {
				if before, after, ok := strings.Cut(line, "] "); ok {
					if !strings.HasPrefix(before, "127.0.0.1 - - [") {
						t.Errorf("it begins with %q", before)
					}
					f := strings.SplitN(after, `" `, 2) // the size of weir's own answers may change
					code, rest, _ := strings.Cut(f[1], " ")
					_, rest, _ = strings.Cut(rest, " ")
					line = f[0] + `" ` + code + " N " + rest
				}
				if line != c.want[i] {
					t.Errorf("line %d: %s, want %s", i, line, c.want[i])
				}
			}
		})
	}
}
