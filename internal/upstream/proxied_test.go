// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"testing"

	"github.com/weirlb/weir/balance"
)

// TestHeaderNotOverHTTP2: nobody's header begins a connection that clients share,
// whatever a backend was added as.
func TestHeaderNotOverHTTP2(t *testing.T) {
	tgt := NewTarget(Options{Address: "127.0.0.1:1", Protocol: HTTP2})
	defer tgt.Close()
	_, err := tgt.DialFor(balance.Instant(1), 0, nil, []byte("PROXY UNKNOWN\r\n"))
	if !errors.Is(err, errHeaderShared) {
		t.Errorf("%v", err)
	}
}

// TestTakeByHeader: of the idle connections only those are taken that began with
// the same header, the most recently used first.
func TestTakeByHeader(t *testing.T) {
	tgt := NewTarget(Options{Address: "127.0.0.1:1", MaxIdle: 8})
	conn := func(header string) *Conn { return &Conn{header: header} }
	a1, b, a2, none := conn("a"), conn("b"), conn("a"), conn("")
	tgt.idle = []*Conn{a1, b, a2, none}
	for i, c := range []struct {
		header string
		want   *Conn
	}{{"a", a2}, {"a", a1}, {"a", nil}, {"", none}, {"", nil}, {"b", b}, {"b", nil}} {
		if got, _ := tgt.take(0, false, []byte(c.header)); got != c.want {
			t.Errorf("step %d: took %v of %q", i, got, c.header)
		}
	}
	if len(tgt.idle) != 0 {
		t.Errorf("%d are left", len(tgt.idle))
	}
}
