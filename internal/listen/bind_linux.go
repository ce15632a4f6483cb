// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bindOne opens one listening socket. Options that accepted sockets inherit are
// set here once, not on every connection. shared lets its address overlap that
// of a socket with SO_REUSEPORT.
func bindOne(ctx context.Context, where string, shared bool) (acceptor, error) {
	lc := net.ListenConfig{KeepAlive: -1}
	if shared {
		lc.Control = func(_, _ string, c syscall.RawConn) (err error) {
			cerr := c.Control(func(fd uintptr) { err = reusePort(int(fd), true) })
			return errors.Join(cerr, err)
		}
	}
	lc.SetMultipathTCP(false)
	if path, ok := strings.CutPrefix(where, "unix:"); ok {
		return bindUnix(ctx, &lc, path)
	}
	ln, err := lc.Listen(ctx, network(where), where)
	if err != nil {
		return nil, fmt.Errorf("bind %s: %w", where, err)
	}
	if err := inherit(ln.(acceptor), DefaultKeepAlive); err != nil { //nolint:errcheck,forcetypeassert // as below
		return nil, errors.Join(fmt.Errorf("bind %s: keepalive: %w", where, err), ln.Close())
	}
	return ln.(acceptor), nil //nolint:errcheck,forcetypeassert // what ListenConfig makes for tcp and unix is one
}

// network keeps 0.0.0.0 to IPv4: "tcp" would make it [::], open to both.
func network(where string) string {
	host, _, err := net.SplitHostPort(where)
	if err != nil {
		return "tcp"
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		return "tcp4"
	}
	return "tcp"
}

// CheckBind finds out whether a socket could be bound, apart from its port or
// path being in use, as it is while another weir runs. It leaves nothing behind.
func CheckBind(where string) error {
	if bind, ok := strings.CutPrefix(where, packetsPrefix); ok {
		return checkBindPackets(bind)
	}
	if strings.HasPrefix(where, "systemd:") {
		return nil // only the process that the manager starts has it
	}
	path, ok := strings.CutPrefix(where, "unix:")
	if !ok {
		host, _, err := net.SplitHostPort(where)
		if err != nil {
			return fmt.Errorf("bind %s: %w", where, err)
		}
		ln, err := net.Listen(network(where), net.JoinHostPort(host, "0"))
		if err != nil {
			return fmt.Errorf("bind %s: %w", where, err)
		}
		return ln.Close()
	}
	if strings.HasPrefix(path, "@") {
		return nil // no file
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("bind unix:%s: %w", path, err)
	} else if !info.IsDir() {
		return fmt.Errorf("bind unix:%s: %s is no directory", path, filepath.Dir(path))
	}
	return free(path)
}

// free refuses a path that holds something else than a socket.
func free(path string) error {
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("bind unix:%s: the file exists and is no socket: remove it, or use another path", path)
	}
	return nil
}

// inherit sets the options that Linux copies to accepted sockets: that nothing is
// held back to be sent with more, as the net package has it, and of keepalive; not
// positive: off.
func inherit(c syscall.Conn, idle time.Duration) error {
	return control(c, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return err
		}
		if idle <= 0 {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
		}
		secs := max(int(idle/time.Second), 1)
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, secs),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(secs/4, 1)),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4),
		)
	})
}

// bindUnix binds a path. A socket file that a dead process left behind is
// removed; one that somebody answers on is not.
func bindUnix(ctx context.Context, lc *net.ListenConfig, path string) (acceptor, error) {
	if path == "" {
		return nil, errors.New("bind unix: the path is empty")
	}
	if err := free(path); err != nil {
		return nil, err
	}
	ln, err := lc.Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && abandoned(path) {
		if rerr := os.Remove(path); rerr != nil {
			return nil, fmt.Errorf("bind unix:%s: remove what a dead process left: %w", path, rerr)
		}
		ln, err = lc.Listen(ctx, "unix", path)
	}
	if err != nil {
		return nil, fmt.Errorf("bind unix:%s: %w", path, err)
	}
	u := ln.(*net.UnixListener) //nolint:errcheck,forcetypeassert // "unix" makes no other
	u.SetUnlinkOnClose(false)   // a successor may have the path by then
	return u, nil
}

func abandoned(path string) bool {
	if fi, err := os.Stat(path); err != nil || fi.Mode()&os.ModeSocket == 0 {
		return false
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// Queue is the accept queue of one listening socket.
type Queue struct {
	Bind          string
	Length, Limit int // connections waiting to be accepted, and the most that may
}

// queue reads the figures from the kernel: for a listening socket TCP_INFO
// carries them where a connection has its unacked and sacked segments.
func queue(ln acceptor) (Queue, bool) {
	q := Queue{Bind: ln.Addr().String()}
	s, ok := ln.(*net.TCPListener)
	if !ok {
		return q, false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return q, false
	}
	var info *unix.TCPInfo
	cerr := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if cerr != nil || err != nil {
		return q, false
	}
	q.Length, q.Limit = int(info.Unacked), int(info.Sacked)
	return q, true
}
