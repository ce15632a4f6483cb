// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connecting returns a socket whose attempt to connect to an address has begun.
func connecting(t *testing.T, address string) syscall.RawConn {
	t.Helper()
	to, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	return rawSocket(fd)
}

type rawSocket int

func (s rawSocket) Control(f func(uintptr)) error { f(uintptr(s)); return nil }
func (rawSocket) Read(func(uintptr) bool) error   { return nil }
func (rawSocket) Write(func(uintptr) bool) error  { return nil }

// A process that had no processor time for longer than the connect timeout finds
// the timer and the finished handshake together. The timer must not win.
func TestStarvedProcessBlamesNobody(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	gaveUp := 0
	a := &attempt{giveUp: func() { gaveUp++ }}
	a.socket(connecting(t, l.Addr().String()))
	if c, err := l.Accept(); err != nil { // so the handshake is over
		t.Fatal(err)
	} else {
		defer c.Close()
	}
	a.expire(true)
	if gaveUp != 0 || a.late() {
		t.Fatal("a connection that was made is given up for want of an answer")
	}
	a.timer.Stop()
	a.expire(false)
	if gaveUp != 1 || !a.late() {
		t.Error("the grace has no end")
	}

	deafness := &attempt{giveUp: func() { gaveUp++ }}
	deafness.socket(connecting(t, deaf(t)))
	deafness.expire(true)
	if gaveUp != 2 || !deafness.late() {
		t.Error("an attempt without an answer is not given up in time")
	}

	over := &attempt{giveUp: func() { t.Error("an attempt that is over is given up") }}
	over.watch(time.Hour)()
	over.expire(true)
}
