// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/weirtest"
)

// TestNobodyTakesPlain: a backend chooses HTTP/1.1, and whoever waited for the
// connection has left. It is closed, and its place free.
func TestNobodyTakesPlain(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	addr := tlsBackend(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue("127.0.0.1")}, NextProtos: []string{"http/1.1"}})
	opt := options(addr)
	opt.TLS, opt.Protocol = &tls.Config{RootCAs: ca.Pool()}, HTTP2Offered
	target := newTarget(t, opt)
	gone := make(chan struct{})
	close(gone)
	now := clock.Now()
	_, _, err := target.DialStream(now, now.Add(10*time.Second), gone, nil)
	var d *DialError
	if !errors.As(err, &d) || d.Kind != Canceled {
		t.Fatalf("error %v", err)
	}
	weirtest.Eventually(t, "no connection is left", func() bool {
		s := target.Stats()
		return s.Fresh == 1 && s.Open == 0
	})
}

// TestCutWhileSpeaking: connections are cut at the moment when they begin to speak
// HTTP/2. It is the race detector's to complain.
func TestCutWhileSpeaking(t *testing.T) {
	b := newStreamBackend(t, 10)
	target := newStreamTarget(t, b, nil)
	for i := range 60 {
		var wg sync.WaitGroup
		wg.Go(func() {
			weirtest.Eventually(t, "a connection is there", func() bool { return target.Stats().Open > 0 })
			for range i {
				runtime.Gosched()
			}
			target.Cut()
		})
		if s, err := open(target, 10*time.Second); err == nil {
			s.Close()
		}
		wg.Wait()
		target.Cut()
		weirtest.Eventually(t, "none is left", func() bool { return target.Stats().Open == 0 })
	}
}
