// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// TestChaos lets clients and backends misbehave at random at once. The rig
// checks at the end that no slot, lease, goroutine or invariant was lost; here
// it is checked that every answer is one that somebody may give.
func TestChaos(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 1))
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return dice.IntN(n)
	}
	big := strings.Repeat("x", 200<<10)
	script := func(s *weirtest.Conn) {
		for {
			if roll(12) == 0 {
				s.Reset()
				return
			}
			m := s.ReadHead()
			if m == nil || m.Torn {
				return
			}
			switch roll(10) {
			case 0:
				s.Reset()
				return
			case 1:
				_ = s.Try("HTTP/1.1 413 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				return
			case 2:
				_ = s.Try("HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n" + big)
				return
			}
			if m.Has("Expect") {
				_ = s.Try("HTTP/1.1 100 Continue\r\n\r\n")
			}
			if s.Content(m); m.Torn {
				return
			}
			var err error
			switch roll(6) {
			case 0:
				err = s.Try("HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
			case 1:
				_ = s.Try("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				for range 5 {
					_ = s.Try("4\r\nabcd\r\n")
				}
				err = s.Try("0\r\nT: 1\r\n\r\n")
			case 2:
				err = s.Try("HTTP/1.1 200 OK\r\nContent-Length: 204800\r\n\r\n" + big)
			default:
				err = s.Try(ok2)
			}
			if err != nil || m.Method() == "HEAD" {
				return
			}
		}
	}
	var addrs []string
	for range 3 {
		addrs = append(addrs, weirtest.NewBackend(t, script).Addr())
	}
	addrs = append(addrs, weirtest.Dead(t))
	r := newRig(t, addrs, rigOptions{pool: func(c *pool.Config) { c.Limits.BackendRequests = 3 }})
	requests := []string{
		get, post, put, keyd, "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n",
		"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 204800\r\n\r\n" + big,
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n32000\r\n" + big + "\r\n0\r\nX-T: 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var c *weirtest.Conn
			for range 30 {
				if c == nil {
					c = r.dial()
				}
				req := requests[roll(len(requests))]
				if c.Try(req) != nil && roll(2) == 0 || roll(10) == 0 {
					time.Sleep(time.Duration(roll(3)) * 30 * time.Millisecond)
					c.Reset()
					c = nil
					continue
				}
				method, _, _ := strings.Cut(req, " ")
				m := c.Final(method)
				if m == nil || m.Torn || strings.EqualFold(m.Get("Connection"), "close") {
					_ = c.Close()
					c = nil
				}
				if m == nil || m.Status() == 0 {
					continue
				}
				switch m.Status() {
				case 200, 413, 502, 503:
				default:
					t.Errorf("answer %q %q", m.Start, m.Body)
				}
			}
			if c != nil {
				_ = c.Close()
			}
		}()
	}
	wg.Wait()
}
