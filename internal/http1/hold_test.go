// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"testing"
	"time"
)

// TestEarlyRequests: a client that sends its next request before it has the
// answer to the last one, in a packet of its own, is served at once. Where
// answers are held until the next request is awaited, the runtime has forgotten
// that this one has come already: without a look for it each would wait until
// the hold is over.
func TestEarlyRequests(t *testing.T) {
	const n = 20
	s := &Server{}
	serving, sent := make(chan struct{}), make(chan struct{})
	s.Handler = func(c *ServerConn) {
		serving <- struct{}{} // this request has been read; the next one has not been sent
		if _, more := <-sent; more {
			eventually(t, "the next request has arrived", c.Conn().Pending)
			time.Sleep(2 * time.Millisecond) // the runtime's poller has nothing else to do and takes notice
		}
		answer(c, 200, "ok")
	}
	c := newRig(t, s).dial()
	const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	c.send(get)
	begin := time.Now()
	for range n {
		<-serving
		c.send(get)
		sent <- struct{}{}
		c.expect(ok("ok"))
	}
	waited := time.Since(begin)
	<-serving
	close(sent)
	c.expect(ok("ok"))
	// Once is what it costs to learn that a client does so.
	if limit := n * holdFor / 2; waited > limit {
		t.Errorf("%d requests took %s, more than %s", n, waited, limit)
	}
}
