// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

const (
	// outLimit is how much content may wait to be written: streams that have more
	// wait. Frames other than DATA are not held up by it.
	outLimit = 64 << 10
	// outMost is what no peer that reads lets gather: answers to its own frames.
	outMost = outLimit + 256<<10
	// keepOut is the largest buffer that is kept for others.
	keepOut = 2 * outLimit
)

var outBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 8<<10); return &b }}

// output gathers what streams write, and sends it. Embedded in a connection and
// guarded by its mutex.
type output struct {
	// Constant.
	nc   *netconn.Conn
	lock sync.Locker
	work func(task) // runs a task on a goroutine
	self flusher

	out        []byte  // waits to be written
	box        *[]byte // what out came out of the pool in
	writing    bool    // somebody is writing
	stallBy    time.Duration
	writeFault error
	quiet      *sync.Cond // writing has become false
	waiters    []*ServerStream
}

// flusher is the task of writing what has gathered.
type flusher struct{ c *conn }

func (f flusher) run() {
	f.c.flush(-1)
	f.c.serving.Done()
}

func (o *output) begin(c *conn) {
	o.nc, o.lock, o.work, o.self = c.nc, &c.mu, c.srv.workers.start, flusher{c}
	o.quiet = sync.NewCond(&c.mu)
	o.stallBy = c.set.Timeouts.Write
}

// room returns out, ready to be appended to. Called under the lock.
func (o *output) room() []byte {
	if o.out == nil {
		o.box = outBuffers.Get().(*[]byte)
		o.out = (*o.box)[:0]
	}
	return o.out
}

// releaseOutput forgets what was not written.
func (o *output) releaseOutput() {
	giveOut(o.box, o.out)
	o.out, o.box = nil, nil
}

func giveOut(box *[]byte, b []byte) {
	if box != nil && cap(b) <= keepOut {
		*box = b[:0]
		outBuffers.Put(box)
	}
}

// kick has what has gathered written soon, without waiting.
func (c *conn) kick() {
	c.mu.Lock()
	c.kickLocked()
	c.mu.Unlock()
}

func (c *conn) kickLocked() {
	if len(c.out) > 0 && !c.writing && c.writeFault == nil {
		c.writing = true
		c.serving.Add(1)
		c.work(c.self)
	}
}

// flush writes what has gathered, in so many rounds at most (-1: until there is
// nothing left); somebody else goes on from there. Others that are about to
// write are let go first: then it all leaves at once.
func (c *conn) flush(rounds int) {
	c.mu.Lock()
	if rounds >= 0 {
		if len(c.out) == 0 || c.writing || c.writeFault != nil {
			c.mu.Unlock()
			return
		}
		c.writing = true
	}
	c.mu.Unlock()
	runtime.Gosched()
	c.mu.Lock()
	for len(c.out) > 0 && c.writeFault == nil {
		if rounds == 0 {
			c.serving.Add(1)
			c.work(c.self)
			c.mu.Unlock()
			return
		}
		rounds--
		b, box := c.out, c.box
		c.out, c.box = nil, nil
		stall := c.stallBy
		c.grantLocked()
		c.mu.Unlock()
		err := c.write(b, stall)
		giveOut(box, b)
		c.mu.Lock()
		if err != nil {
			c.writeFault = err
		}
	}
	c.writing = false
	c.quiet.Broadcast()
	err := c.writeFault
	c.mu.Unlock()
	if err != nil {
		c.kill(err)
		c.nc.Abort() // ends the reader
	}
}

// flushAll writes what has gathered and waits until it has left.
func (c *conn) flushAll() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for c.writing {
			c.quiet.Wait()
		}
		if len(c.out) == 0 || c.writeFault != nil {
			return c.writeFault
		}
		c.writing = true
		c.mu.Unlock()
		c.flush(-1)
		c.mu.Lock()
	}
}

// write writes b; every write that progresses may go on for another stall.
func (o *output) write(b []byte, stall time.Duration) error {
	for {
		if stall > 0 {
			o.nc.SetWriteDeadline(clock.Now().Add(stall))
		}
		n, err := o.nc.Write(b)
		if err == nil {
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if n == 0 || o.nc.TLS() != nil || stall == 0 {
			return &http1.Error{Reason: message.WriteTimeout, Detail: "the client does not read", Err: err}
		}
		b = b[n:]
	}
}

// grantLocked wakes as many of the streams that wait to write as will find room
// and window, those that have waited longest first.
func (c *conn) grantLocked() {
	room, window := outLimit-len(c.out), int64(c.send)
	n := 0
	for n < len(c.waiters) && room > 0 && window > 0 {
		s := c.waiters[n]
		s.queued = false
		s.wakeWriter()
		room -= maxFrame
		window -= maxFrame
		n++
	}
	if n > 0 {
		c.waiters = append(c.waiters[:0], c.waiters[n:]...)
	}
}
