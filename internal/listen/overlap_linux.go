// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// overlapping runs fn, which binds an address with SO_REUSEPORT, while the
// process's own sockets of the same port have it, too. A bind that becomes wider
// or narrower (127.0.0.1:80 to :80) would otherwise find the address in use by
// the socket that it is to replace, and closing that first would refuse clients.
// The option is taken away again: no two sockets ever share one address, which
// would reset the queue of one that is closed. Called under mu.
func (s *Sockets) overlapping(bind string, fn func()) {
	_, port, err := net.SplitHostPort(bind)
	if err != nil || port == "0" {
		return
	}
	var own []*open
	for _, o := range s.all {
		if a, ok := o.addr.(*net.TCPAddr); ok && strconv.Itoa(a.Port) == port {
			if control(o.ln, func(fd int) error { return reusePort(fd, true) }) == nil {
				own = append(own, o)
			}
		}
	}
	if len(own) == 0 {
		return
	}
	fn()
	for _, o := range own {
		_ = control(o.ln, func(fd int) error { return reusePort(fd, false) }) // it could be set
	}
}

func reusePort(fd int, on bool) error {
	v := 0
	if on {
		v = 1
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, v)
}
