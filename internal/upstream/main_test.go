// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"io"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/weirtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// options are what most tests want.
func options(addr string) Options {
	return Options{
		Address: addr, ConnectTimeout: 2 * time.Second, TLSTimeout: 5 * time.Second, KeepAlive: 55 * time.Second,
		MaxIdle: 64, ReuseUnsafeWithin: 500 * time.Millisecond,
	}
}

func newTarget(t testing.TB, opt Options) *Target {
	t.Helper()
	target := NewTarget(opt)
	t.Cleanup(target.Close)
	return target
}

// mustDial dials, or ends the test.
func mustDial(t testing.TB, target *Target) *Conn {
	t.Helper()
	c, err := target.Dial(clock.Now(), clock.Now().Add(patience), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// exchange sends one GET and reads the whole answer.
func exchange(c *Conn) error {
	r := message.Request{Method: []byte("GET"), Path: []byte("/"), Routed: []byte("/"), Major: 1, Minor: 1}
	r.Fields.Add(message.Host, "Host", "x")
	c.Conn().SetWriteDeadline(clock.Now().Add(patience))
	if err := c.WriteHead(&r, nil, true); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var a message.Response
	if err := c.ReadHead(&a, false, clock.Now().Add(patience)); err != nil {
		return fmt.Errorf("head: %w", err)
	}
	for {
		if _, err := c.ReadBody(); err == io.EOF { //nolint:errorlint // promised as it is
			return nil
		} else if err != nil {
			return fmt.Errorf("body: %w", err)
		}
	}
}

// use runs one exchange and gives the connection back at the given instant.
func use(t testing.TB, target *Target, c *Conn, at balance.Instant) {
	t.Helper()
	if err := exchange(c); err != nil {
		t.Fatal(err)
	}
	if !c.Reusable() {
		t.Fatal("not reusable after a whole exchange")
	}
	target.Put(c, at)
}

// Names that read well in tests.
var (
	within     = weirtest.Within
	eventually = weirtest.Eventually
)

func always(t testing.TB) *weirtest.Backend { return weirtest.Always(t, okAnswer) }
