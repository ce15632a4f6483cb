// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
)

// TestTornRequestIsNotReused: a backend may answer whole before it has the request, and
// the last piece of that may not leave. What came next on the connection would be taken
// for the rest of it.
func TestTornRequestIsNotReused(t *testing.T) {
	b := newBackend(t)
	r := get("/")
	r.Method, r.Body, r.ContentLength = []byte("PUT"), message.Sized, 1000
	got := b.reply(200, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 0, false)
	if err := b.c.WriteHead(r, []byte("first"), false); err != nil {
		t.Fatal(err)
	}
	b.c.SetWriteDeadline(clock.Now().Add(20 * time.Millisecond))
	if err := b.c.WriteBody([]byte(strings.Repeat("x", 995)), true); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the last piece: %v", err)
	}
	<-got
	if _, body, err := readAnswer(b.c, false); body != "ok" || err != nil {
		t.Fatalf("answer %q, %v", body, err)
	}
	if b.c.Reusable() {
		t.Error("a connection is to be used again on which a request did not leave whole")
	}
}
