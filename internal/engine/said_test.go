// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
)

// A listener on all addresses must not look as if it were on loopback only.
func TestBoundSaysAllAddresses(t *testing.T) {
	a := backend(t, "a")
	r := start(t, `
status: {bind: ":0"}
admin: {bind: "127.0.0.1:0"}
listeners:
  all: {bind: ["0.0.0.0:0"], pool: app}
  one: {bind: "127.0.0.1:0", pool: app}
pools:
  app: {backends: ["`+a.URL+`"]}
`)
	line := r.Bound().String()
	for name, want := range map[string]bool{"all": true, "one": false, "admin": false, "status": true} {
		_, rest, found := strings.Cut(line, name+" on http://")
		rest, _, _ = strings.Cut(rest, ",")
		if got := strings.HasSuffix(rest, " (all addresses)"); !found || got != want {
			t.Errorf("%s on all addresses: said %v, want %v: %s", name, got, want, line)
		}
	}
	s, err := r.admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Listeners[0].Bind[0]; !strings.HasPrefix(got, "0.0.0.0:") {
		t.Errorf("status says the listener is on %s", got)
	}
	if c := mustGet(t, client(t), r.front); c.body != "a" {
		t.Errorf("%s answers %+v", r.front, c)
	}
}

// An ejection says why in status, and counts under a word: what it says has
// counts and times in it, each of which would be a series.
func TestEjectionSaysWhy(t *testing.T) {
	good := backend(t, "good")
	bad := rawBackend(t, func(c net.Conn, _ int) {
		if n, _ := c.Read(make([]byte, 4096)); n > 0 { // a probe by TCP sends nothing
			_, _ = io.WriteString(c, "garbage\r\n\r\n")
		}
	})
	r := start(t, `
admin: {bind: "127.0.0.1:0"}
listeners:
  web: {bind: "127.0.0.1:0", pool: app}
pools:
  app:
    backends: ["`+good.URL+`", "http://`+bad+`"]
    health: {passive: {consecutive: 3, eject: 30s}}
`)
	c := client(t)
	var b admin.Backend
	eventually(t, "ejected", func() bool {
		if got := mustGet(t, c, r.front); got.body != "good" {
			t.Fatalf("the client got %+v", got)
		}
		var err error
		b, err = r.admin.Backend(t.Context(), "app", bad)
		return err == nil && b.Reason == "ejected"
	})
	if want := "3 bad answers in a row; ejected for 30s"; b.Why != want {
		t.Errorf("why: %q, want %q", b.Why, want)
	}
	want := `weir_ejections_total{backend="` + bad + `",cause="consecutive",pool="app"} 1`
	if metrics := mustGet(t, c, "http://"+r.Bound().Admin+"/metrics").body; !strings.Contains(metrics, want) {
		t.Errorf("metrics lack %s", want)
	}
}
