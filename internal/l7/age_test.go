// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"testing"
	"time"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
)

// aging sets the bounds of a client connection.
func aging(age, grace time.Duration, requests int64) rigOptions {
	return edit(func(r *rig) {
		r.srv.Timeouts.MaxAge, r.srv.Timeouts.AgeGrace = age, grace
		r.srv.Limits = http1.Limits{MaxRequests: requests}
	})
}

// TestClientConnectionEnds: at its age and at its number of requests the answer
// says so, and nothing of it is lost; before, it does not.
func TestClientConnectionEnds(t *testing.T) {
	for _, c := range []struct {
		name     string
		age      time.Duration
		requests int64
		last     int // the request whose answer ends the connection
	}{
		{"no bound", 0, 0, 0},
		{"age", 1, 0, 1},
		{"young", time.Hour, 0, 0},
		{"requests", 0, 3, 3},
		{"both", time.Hour, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := weirtest.Always(t, ok2)
			r := newRig(t, []string{b.Addr()}, aging(c.age, 0, c.requests))
			client := r.dial()
			for i := 1; i <= 5; i++ {
				client.Send(get)
				m := client.Final("GET")
				if m == nil || m.Body != "ok" {
					t.Fatalf("answer %d: %+v", i, m)
				}
				r.want(200, message.OK, true)
				if closes := m.Get("Connection") == "close"; closes != (i == c.last) {
					t.Fatalf("answer %d says close: %v", i, closes)
				}
				if i == c.last {
					if rest, err := client.End(); rest != "" || err != nil {
						t.Errorf("after the last answer %q, %v", rest, err)
					}
					return
				}
			}
		})
	}
}

// TestGraceIsOver cuts what is under way after the grace of its connection, and
// ends a tunnel in order. Neither is anybody's failure.
func TestGraceIsOver(t *testing.T) {
	t.Run("request", func(t *testing.T) {
		r := newRig(t, []string{silent(t).Addr()}, aging(1, 150*time.Millisecond, 0))
		client := r.dial()
		client.Send(get)
		if rest, err := client.End(); rest != "" {
			t.Errorf("the client got %q, %v", rest, err)
		}
		r.want(0, message.MaxAge, true)
		for _, b := range r.pool.Snapshot().Backends {
			if b.Failures != 0 {
				t.Errorf("blamed: %+v", b)
			}
		}
	})
	t.Run("tunnel", func(t *testing.T) {
		p := openTunnel(t, aging(1, 150*time.Millisecond, 0))
		wantClose(t, "client", p.client, 1012, "max_age", false)
		p.client.Send(closeFrame(1012, true))
		wantClose(t, "backend", p.server, 1001, "max_age", true)
		p.server.Send(closeFrame(1001, false))
		p.want(101, message.MaxAge, true)
	})
	t.Run("over before", func(t *testing.T) {
		b := weirtest.Always(t, ok2)
		r := newRig(t, []string{b.Addr()}, aging(1, 150*time.Millisecond, 0))
		if m := r.roundTrip(get); m.Status() != 200 {
			t.Errorf("answer %+v", m)
		}
		r.want(200, message.OK, true)
	})
}
