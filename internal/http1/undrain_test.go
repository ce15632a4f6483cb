// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"testing"
	"time"
)

// TestUndrain: a drain that is taken back closes nothing more, and answers no
// longer say that they are the last.
func TestUndrain(t *testing.T) {
	s := &Server{Handler: echo}
	s.Undrain() // none runs
	r := newRig(t, s)
	early, late := r.dial(), r.dial()
	for _, c := range []*client{early, late} {
		c.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
		c.expect(ok("GET /1 "))
	}
	eventually(t, "idle", func() bool { return s.Counts().Idle == 2 })
	s.Drain(time.Hour)
	s.Undrain()
	early.send("GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
	early.expect(ok("GET /2 "))
	eventually(t, "idle again", func() bool { return s.Counts().Idle == 2 })
	s.Drain(0)
	eventually(t, "drained", s.drained.Load)
	early.expectEnd("")
	late.expectEnd("")
	s.Undrain()
	c := r.dial()
	c.send("GET /3 HTTP/1.1\r\nHost: x\r\n\r\n")
	c.expect(ok("GET /3 "))
	c.send("GET /4 HTTP/1.1\r\nHost: x\r\n\r\n")
	c.expect(ok("GET /4 "))
	s.CloseAll()
	s.Undrain() // the end is not taken back
	if !s.draining.Load() || !s.drained.Load() {
		t.Error("closing was taken back")
	}
}
