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

// output gathers what streams write, and sends it. Embedded in a connection of
// either side, and guarded by its mutex.
type output struct {
	// Constant.
	nc   *netconn.Conn
	lock *sync.Mutex     // the connection's
	work func(task)      // runs a task on a goroutine
	busy *sync.WaitGroup // of what runs on the connection's behalf
	lost func(error)     // hears, without the lock, that nothing more can be written
	self flusher
	slow *http1.Error // what a peer is that does not read

	out        []byte  // waits to be written
	box        *[]byte // what out came out of the pool in
	writing    bool    // somebody is writing
	sealed     bool    // the connection is closed: nobody else begins to write
	stallBy    time.Duration
	writeFault error
	quiet      *sync.Cond // writing has become false
	taken      int64      // bytes that were taken out of out to be written, ever
	send       sendWindow // the connection's
	spent      int64      // content that has taken of it, ever
	waiters    []*sender
}

// sender is the half of a stream that writes. It is guarded by the connection's
// mutex.
type sender struct {
	id        uint32
	local     bool          // this half has been ended
	send      sendWindow    // the stream's
	queued    bool          // among the connection's waiters
	writeWake chan struct{} // one element: look again
}

func (s *sender) wakeWriter() { wake(s.writeWake) }

// flusher is the task of writing what has gathered.
type flusher struct{ o *output }

func (f flusher) run() {
	f.o.flush(-1)
	f.o.busy.Done()
}

func (o *output) begin(nc *netconn.Conn, lock *sync.Mutex, work func(task), busy *sync.WaitGroup, lost func(error), slow *http1.Error) {
	o.nc, o.lock, o.work, o.busy, o.lost, o.slow, o.self = nc, lock, work, busy, lost, slow, flusher{o}
	o.quiet = sync.NewCond(lock)
	o.send = startWindow
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
func (o *output) kick() {
	o.lock.Lock()
	o.kickLocked()
	o.lock.Unlock()
}

func (o *output) kickLocked() {
	if len(o.out) > 0 && !o.writing && !o.sealed && o.writeFault == nil {
		o.writing = true
		o.busy.Add(1)
		o.work(o.self)
	}
}

// allRounds has flush write until there is nothing left.
const allRounds = 1 << 30

// flush writes what has gathered, unless somebody does, in so many rounds at most;
// somebody else goes on from there. -1 is for who was made the one that writes, and
// writes until there is nothing left. Others that are about to write are let go
// first: then it all leaves at once.
func (o *output) flush(rounds int) {
	o.lock.Lock()
	if rounds >= 0 {
		if len(o.out) == 0 || o.writing || o.writeFault != nil {
			o.lock.Unlock()
			return
		}
		o.writing = true
	}
	o.lock.Unlock()
	runtime.Gosched()
	o.lock.Lock()
	for len(o.out) > 0 && o.writeFault == nil {
		if rounds == 0 && !o.sealed {
			o.busy.Add(1)
			o.work(o.self)
			o.lock.Unlock()
			return
		}
		rounds--
		b, box := o.out, o.box
		o.out, o.box = nil, nil
		o.taken += int64(len(b))
		stall := o.stallBy
		o.grantLocked()
		o.lock.Unlock()
		err := o.write(b, stall)
		giveOut(box, b)
		o.lock.Lock()
		if err != nil {
			o.writeFault = err
		}
	}
	o.writing = false
	o.quiet.Broadcast()
	err := o.writeFault
	o.lock.Unlock()
	if err != nil {
		o.lost(err)
	}
}

// settle waits, once the connection is closed, for what runs on its behalf. From
// then on nobody asks somebody else to write: who was counted before this wait
// fails by himself.
func (o *output) settle() {
	o.lock.Lock()
	o.sealed = true
	o.lock.Unlock()
	o.busy.Wait()
	o.lock.Lock()
	o.releaseOutput()
	o.lock.Unlock()
}

// flushAll writes what has gathered and waits until it has left.
func (o *output) flushAll() error {
	o.lock.Lock()
	defer o.lock.Unlock()
	for {
		for o.writing {
			o.quiet.Wait()
		}
		if len(o.out) == 0 || o.writeFault != nil {
			return o.writeFault
		}
		o.writing = true
		o.lock.Unlock()
		o.flush(-1)
		o.lock.Lock()
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
			return &http1.Error{Reason: o.slow.Reason, Detail: o.slow.Detail, Err: err}
		}
		b = b[n:]
	}
}

// grantLocked wakes as many of the streams that wait to write as will find room
// and window, those that have waited longest first.
func (o *output) grantLocked() {
	room, window := outLimit-len(o.out), int64(o.send)
	n := 0
	for n < len(o.waiters) && room > 0 && window > 0 {
		s := o.waiters[n]
		s.queued = false
		s.wakeWriter()
		room -= maxFrame
		window -= maxFrame
		n++
	}
	if n > 0 {
		o.waiters = append(o.waiters[:0], o.waiters[n:]...)
	}
}

// allowed is how much of n bytes of a stream's content may be written now. Called
// under the lock.
func (o *output) allowed(s *sender, n int) int {
	if len(o.out) >= outLimit {
		return 0
	}
	return min(n, maxFrame, int(max(min(s.send, o.send), 0)))
}

// spend takes n bytes of a stream's content off both windows. Called under the
// lock.
func (o *output) spend(s *sender, n int) {
	s.send -= sendWindow(n)
	o.send -= sendWindow(n)
	o.spent += int64(n)
}

// enqueue makes a stream one that is woken when there is room, unless it waits
// for its own window. Called under the lock.
func (o *output) enqueue(s *sender) {
	switch {
	case s.send <= 0:
		o.grantLocked() // what it was woken for may be another's
	case !s.queued:
		s.queued = true
		o.waiters = append(o.waiters, s)
	}
}

// unqueue takes a stream off the waiting ones. Called under the lock.
func (o *output) unqueue(s *sender) {
	if !s.queued {
		return
	}
	s.queued = false
	for i, w := range o.waiters {
		if w == s {
			o.waiters = append(o.waiters[:i], o.waiters[i+1:]...)
			return
		}
	}
}

// payment returns the end of the connection if what a frame of the peer costs is
// not paid, or if the peer does not read what there is to say. Called under the
// connection's lock.
func (o *output) payment(paid bool, cause Cause) error {
	switch {
	case !paid:
		return calmFault(cause)
	case len(o.out) > outMost:
		return calmFault(CauseUnread)
	}
	return nil
}
