// SPDX-License-Identifier: Apache-2.0

package test

import (
	"net"
	"sync"
	"testing"
	"time"
)

// recorder is a backend that keeps the bytes of each connection and answers
// whatever looks like a head, so that a proxy has no reason to wait.
type recorder struct {
	addr   string
	mu     sync.Mutex
	any    [][]byte // everything, per connection
	open   int      // connections being read
	answer []byte
}

func startRecorder(t *testing.T) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{addr: l.Addr().String(), answer: []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { r.serve(c) })
		}
	})
	return r
}

func (r *recorder) serve(c net.Conn) {
	defer c.Close()
	r.mu.Lock()
	r.open++
	r.mu.Unlock()
	var got []byte
	buf := make([]byte, 64<<10)
	answered := false
	for {
		_ = c.SetReadDeadline(time.Now().Add(150 * time.Millisecond))
		n, err := c.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			if !answered && len(got) > 0 {
				_, _ = c.Write(r.answer)
			}
			break
		}
		if _, unsafe := judge(got, true, false, true); unsafe == "" && !answered {
			_, _ = c.Write(r.answer)
			answered = true
		}
	}
	r.mu.Lock()
	r.open--
	if len(got) > 0 {
		r.any = append(r.any, got)
	}
	r.mu.Unlock()
}

// take returns what arrived since the last call, once nothing more can come.
func (r *recorder) take() [][]byte {
	for range 200 {
		r.mu.Lock()
		quiet := r.open == 0
		r.mu.Unlock()
		if quiet {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.any
	r.any = nil
	return got
}
