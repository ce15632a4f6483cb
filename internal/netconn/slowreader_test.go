// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"crypto/tls"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/weirtest"
)

// TestWriteLooksOnceMore: room that a slow reader made, too little for the
// kernel to say so, is found when the time is over.
func TestWriteLooksOnceMore(t *testing.T) {
	for _, spliced := range []bool{false, true} {
		r := newRelay(t, false)
		late := func(d time.Duration) { r.out.SetWriteDeadline(clock.Now().Add(d)) }
		p := make([]byte, 64<<10)
		stored := 0
		for {
			late(10 * time.Millisecond)
			n, err := r.out.Write(p)
			if stored += n; n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
		}
		go func() {
			// During the write or before it: either way there is room in the end.
			_, _ = io.CopyN(io.Discard, r.server, int64(stored/20))
		}()
		late(time.Second)
		var n int64
		if spliced {
			mustWrite(t, r.client, string(p))
			n, _ = Splice(r.out, r.in, int64(len(p)), nil)
		} else {
			k, _ := r.out.Write(p)
			n = int64(k)
		}
		if n == 0 {
			t.Errorf("spliced %v: no progress although %d of %d bytes were read", spliced, stored/20, stored)
		}
	}
}

// TestSlowReaderOfTLS: a write under TLS may last for longer than its deadline
// while it progresses, and no longer when it does not.
func TestSlowReaderOfTLS(t *testing.T) {
	const given = time.Second
	a, b := tcpPair(t)
	if err := b.SetWriteBuffer(32 << 10); err != nil {
		t.Fatal(err)
	}
	if err := a.SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	ca := weirtest.NewAuthority(t)
	c := Server(b, &tls.Config{Certificates: []tls.Certificate{ca.Issue("weir.test")}})
	client := tls.Client(a, &tls.Config{RootCAs: ca.Pool(), ServerName: "weir.test"})
	const size = 2 << 20
	enough, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		p := make([]byte, 8<<10)
		for n := 0; n < size; {
			k, err := client.Read(p)
			if n += k; err != nil {
				t.Error(err)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		<-enough // and no more
	}()
	begin := time.Now()
	c.SetWriteDeadline(clock.Now().Add(given))
	if n, err := c.Write(make([]byte, size)); n != size || err != nil {
		t.Errorf("to who reads slowly: %d of %d bytes, %v", n, size, err)
	}
	if took := time.Since(begin); took < given {
		t.Errorf("the reader was not slow: %s", took)
	}
	begin = time.Now()
	c.SetWriteDeadline(clock.Now().Add(given))
	if _, err := c.Write(make([]byte, 16*size)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("to who has stopped: %v", err)
	}
	if took := time.Since(begin); took < given || took > 20*given {
		t.Errorf("to who has stopped: after %s", took)
	}
	close(enough)
	c.Close()
	<-stopped
}
