// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBegunToItself: a socket that has met its own SYN is no connection to a backend,
// also when it is asked about once more, closed.
func TestBegunToItself(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	own, nerr := unix.Getsockname(fd)
	if err = errors.Join(err, nerr); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, own); err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(own.(*unix.SockaddrInet4).Port))
	tgt := NewTarget(Options{Address: to.String()})
	defer tgt.Close()
	b := &Begun{FD: fd, t: tgt, addr: to}
	for _, when := range []string{"open", "closed"} {
		var d *DialError
		if err := b.Reached(0, false); !errors.As(err, &d) || d.Kind != kindOf(syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", when, err)
		}
		if when == "open" {
			_ = unix.Close(fd)
		}
	}
	if s := tgt.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}
