// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clienthello"
	"github.com/weirlb/weir/internal/message"
)

// TestPostgresCancels: a CancelRequest reaches every backend that its client has a
// session with, and no other; the client is let go when they have taken it.
func TestPostgresCancels(t *testing.T) {
	const cancel = "\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02"
	got := make(chan string, 8)
	backend := func(name string) string {
		return server(t, func(c *net.TCPConn) {
			first := make([]byte, clienthello.AskSize)
			if _, err := io.ReadFull(c, first); err != nil {
				return
			}
			if ask := clienthello.SSLRequest(); string(first) == string(ask[:]) {
				_, _ = c.Write([]byte("S"))
				echo(c)
				return
			}
			rest := make([]byte, len(cancel)-len(first))
			_, _ = io.ReadFull(c, rest)
			got <- name + string(first) + string(rest)
		})
	}
	r := newRig(t, []string{backend("a"), backend("b"), backend("c")}, byName(10*time.Second, true))
	hello, ask := string(browser(t)), clienthello.SSLRequest()
	open := func() *net.TCPConn {
		c := r.dial()
		say(t, c, string(ask[:]))
		hear(t, c, "S")
		say(t, c, hello)
		hear(t, c, hello)
		return c
	}
	sessions := []*net.TCPConn{open(), open()} // round robin: on two of the three
	where := map[string]bool{}
	r.mu.Lock()
	for s := range r.known {
		where[s.b.ID()] = true
	}
	r.mu.Unlock()
	c := r.dial()
	for i := range len(cancel) {
		say(t, c, cancel[i:i+1])
	}
	ends(t, c, false)
	rec := r.record()
	if rec.Reason != message.OK || rec.Attempts != 2 || !strings.Contains(rec.Detail, "2 of 2") {
		t.Errorf("the record: %s, %d attempts, %s", rec.Reason, rec.Attempts, rec.Detail)
	}
	for range sessions {
		name, text, _ := strings.Cut(<-got, "\x00")
		if id := map[string]string{"a": "b0", "b": "b1", "c": "b2"}[name]; !where[id] || "\x00"+text != cancel {
			t.Errorf("%s got %q, sessions are on %v", name, text, where)
		}
	}
	if len(got) > 0 {
		t.Error("a backend without a session got one, too")
	}
	for _, s := range sessions {
		_ = s.CloseWrite()
		ends(t, s, false)
		r.record()
	}
	if len(r.px.asked.all) > 0 {
		t.Error("sessions that have ended are still known")
	}
}
