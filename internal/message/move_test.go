// SPDX-License-Identifier: Apache-2.0

package message

import (
	"bytes"
	"testing"
)

// TestMove moves a head out of a buffer that is overwritten then: all that lay in
// the buffer reads as before, and what lay elsewhere is left alone.
func TestMove(t *testing.T) {
	buf := []byte("junkGET /a?b HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\ncontent behind it")
	const start = 4
	end := bytes.Index(buf, []byte("content"))
	elsewhere := []byte("elsewhere")
	r := Request{Method: buf[4:7], Target: buf[8:12], Path: buf[8:10], Query: buf[11:12], Routed: elsewhere, Authority: buf[29:30]}
	r.Fields.Reset(buf[start:])
	at := func(s string) int { return bytes.Index(buf, []byte(s)) - start }
	r.Fields.AddWire(Host, at("Host"), at("Host")+4, at("h\r"), at("h\r")+1, at("X: y"))
	r.Fields.AddWire(Other, at("X: y"), at("X: y")+1, at("y\r"), at("y\r")+1, at("y\r")+3)
	r.Fields.Add(Other, "Added", "later")
	also, empty := buf[8:12], buf[8:8]
	to := append([]byte(nil), buf[:end]...)
	r.Move(buf, to)
	Move(&also, buf, to)
	Move(&empty, buf, to)
	for i := range buf {
		buf[i] = '#'
	}
	if got := string(r.Method) + string(r.Target) + string(r.Path) + string(r.Query) + string(r.Routed) + string(also) + string(empty); got != "GET/a?b/abelsewhere/a?b" {
		t.Errorf("%q", got)
	}
	for i, want := range []string{"Host=h", "X=y", "Added=later"} {
		if got := string(r.Fields.Name(i)) + "=" + string(r.Fields.Value(i)); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
}
