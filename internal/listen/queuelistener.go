// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net"
	"sync"
	"time"
)

// Listener returns the socket as net/http wants it. It takes the socket over
// with the first Accept; closing it closes the hold. Accept returns
// net.ErrClosed after Close.
func (k *Socket) Listener() net.Listener {
	return &queueListener{k: k, ch: make(chan net.Conn), closed: make(chan struct{})}
}

// queueListener hands what a socket accepts to somebody who asks for it.
type queueListener struct {
	k           *Socket
	ch          chan net.Conn
	begin, once sync.Once
	closed      chan struct{}
}

func (l *queueListener) accepted(nc net.Conn, t *turn) bool {
	wait := time.NewTimer(linger)
	defer wait.Stop()
	select {
	case l.ch <- nc:
		return true
	case <-t.over:
	case <-l.closed:
	case <-wait.C:
	}
	return false
}

func (l *queueListener) failed(error) {}

func (l *queueListener) Accept() (net.Conn, error) {
	l.begin.Do(func() { l.k.serve(l) })
	select {
	case nc := <-l.ch:
		return nc, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: net.ErrClosed}
	}
}

func (l *queueListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.k.Close()
}

func (l *queueListener) Addr() net.Addr { return l.k.Addr() }
