// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watch is a listening socket whose connections the loops accept, in turn: one of
// them is armed, takes what waits, and arms the next one. A session that begins in
// the loop that moves its bytes costs less than one that comes from another
// goroutine, which nearly always runs on another processor. That all of them waited,
// each of them exclusively, would wake all of them: the kernel does not know who
// sleeps behind an epoll instance that is itself waited for.
type watch struct {
	// Constant.
	fd    int
	ready func(on any, pass func())
	loops []*loop
	place []int32 // by loop: in its watches

	turn atomic.Uint32 // counts who is armed
	// busy is held for reading while ready runs.
	busy sync.RWMutex
	over bool // guarded by busy
}

// Watch has the loops call ready, one after the other, when connections wait to be
// accepted on a socket. It must not wait; on is what to put into netconn.Bare.Loop.
// When it has accepted what it will, and before it serves that, it calls pass: the next
// loop may come in then, also while it goes on. Where it does not call it none comes
// any more. stop ends that and returns when ready does not run and will not; it must
// not be called from ready, and must be called before the socket or the Relay is
// closed. Further calls do nothing.
func (r *Relay) Watch(fd int, ready func(on any, pass func())) (stop func(), err error) {
	all, err := r.loops()
	if err != nil {
		return nil, err
	}
	w := &watch{fd: fd, ready: ready, loops: all}
	for i, l := range all {
		p, err := l.watch(w)
		if err != nil {
			w.leave(i)
			return nil, err
		}
		w.place = append(w.place, p)
	}
	w.arm()
	return sync.OnceFunc(w.stop), nil
}

// watch registers with a loop, unarmed.
func (l *loop) watch(w *watch) (place int32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, errClosed
	}
	for place = 0; int(place) < len(l.watches) && l.watches[place] != nil; {
		place++
	}
	if int(place) == len(l.watches) {
		l.watches = append(l.watches, nil)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: firstWatch - place}
	if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, w.fd, &ev); err != nil {
		return 0, fmt.Errorf("wait for clients: %w", err)
	}
	l.watches[place] = w
	return place, nil
}

// firstWatch is what EpollEvent.Fd is of the first watch; the others' are below.
const firstWatch = -2

// leave unregisters from the first n loops.
func (w *watch) leave(n int) {
	for i, l := range w.loops[:n] {
		l.mu.Lock()
		l.watches[w.place[i]] = nil
		if !l.closed {
			_ = unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, w.fd, nil) // fails where it was closed before
		}
		l.mu.Unlock()
	}
}

func (w *watch) stop() {
	w.busy.Lock()
	w.over = true
	w.busy.Unlock()
	w.leave(len(w.loops))
}

// arm has the next loop look.
func (w *watch) arm() {
	i := w.turn.Add(1) % uint32(len(w.loops))
	l := w.loops[i]
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: firstWatch - w.place[i]}
	_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(l.ep), unix.EPOLL_CTL_MOD, uintptr(w.fd), uintptr(unsafe.Pointer(&ev)), 0, 0) // fails only once stop has begun
}

// look is the turn of a loop.
func (w *watch) look(l *loop) {
	w.busy.RLock()
	defer w.busy.RUnlock()
	if w.over || w.loops[w.turn.Load()%uint32(len(w.loops))] != l { // an event of one that had the place before
		return
	}
	w.ready(l, w.arm)
}

// accept looks after the sockets that events were for.
func (l *loop) accept() {
	for i, w := range l.clients {
		l.clients[i] = nil
		l.lookAfter(w)
	}
	l.clients = l.clients[:0]
}

func (l *loop) lookAfter(w *watch) {
	defer l.caught(nil)
	w.look(l)
}
