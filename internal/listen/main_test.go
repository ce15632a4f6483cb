// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/weirtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// start listens and serves; the test's end stops it and waits.
func start(t *testing.T, opt Options, handler func(*netconn.Conn, Info)) *Listener {
	t.Helper()
	if opt.Bind == nil {
		opt.Bind = []string{"127.0.0.1:0"}
	}
	if opt.Name == "" {
		opt.Name = "test"
	}
	l, err := Listen(opt)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := l.Serve(handler); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		l.Stop()
		serving.Wait()
		within(t, "wait", l.Wait)
	})
	return l
}

func dial(t *testing.T, l *Listener) net.Conn {
	t.Helper()
	a := l.Addrs()[0]
	c, err := net.DialTimeout(a.Network(), a.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Names that read well in tests.
var (
	within     = weirtest.Within
	eventually = weirtest.Eventually
)

// echoing answers every byte until the client ends.
func echoing(c *netconn.Conn, _ Info) {
	defer c.Close()
	p := make([]byte, 1024)
	for {
		n, err := c.Read(p)
		if err != nil {
			return
		}
		if _, err := c.Write(p[:n]); err != nil {
			return
		}
	}
}
