// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/netconn"
)

var (
	errAborted      = errors.New("no longer wanted")
	errMaxConns     = errors.New("as many connections as allowed are open")
	errReserved     = errors.New("the descriptors left are reserved for administration and checks")
	errHeaderShared = errors.New("a connection of HTTP/2, which clients share, cannot begin with the PROXY header of one")
	errNoSource     = errors.New("no source address of the destination's family")
)

// Dial makes a fresh connection within the connect and TLS timeouts and the
// deadline (0: none); abort (may be nil) ends it early when closed. Errors are
// *DialError.
func (t *Target) Dial(now, deadline balance.Instant, abort <-chan struct{}) (*Conn, error) {
	return t.DialFor(now, deadline, abort, nil)
}

// DialFor is Dial of a connection that begins with a PROXY header, before TLS; nil:
// with none.
func (t *Target) DialFor(now, deadline balance.Instant, abort <-chan struct{}, header []byte) (*Conn, error) {
	o := t.set.Load()
	if len(header) > 0 && o.Protocol != HTTP1 {
		return nil, &DialError{Kind: Refused, Addr: o.Address, Err: errHeaderShared}
	}
	c, err := t.fetch(now, deadline, abort, header, o.tls)
	if err != nil {
		return nil, err
	}
	if err := t.speak(c, o, earlier(deadline, clock.Now(), o.TLSTimeout)); err != nil {
		t.failed.Add(1)
		_ = c.nc.Close() // the error of the greeting is the one that counts
		if c.CutShort() {
			err = &DialError{Kind: DrainOver, Addr: o.Address, Err: errDrainOver}
		}
		return nil, err
	}
	if c.mux == nil {
		c.ClientConn = http1.NewClientConn(c.nc, o.Limits)
	}
	return c, nil
}

// Open is Dial for a session that speaks no HTTP, or none that weir reads: it
// returns the bare connection, which is closed by its own Close and never given
// back to the Target. cut reports that Target.Cut ended it.
func (t *Target) Open(now, deadline balance.Instant, abort <-chan struct{}) (nc *netconn.Conn, cut func() bool, err error) {
	return t.OpenWith(now, deadline, abort, Opening{})
}

// Opening is what a session's connection begins with.
type Opening struct {
	Header   []byte // a PROXY header, sent before TLS; nil: none
	Protocol string // the one that is offered in ALPN where there is TLS; empty: none beyond Options.TLS
}

// OpenWith is Open of a connection that begins in a way of its own. Where there is
// TLS, the handshake has to be over within the time that connecting may take, too: a
// backend that accepts and says nothing is as good as one that does not accept.
func (t *Target) OpenWith(now, deadline balance.Instant, abort <-chan struct{}, as Opening) (nc *netconn.Conn, cut func() bool, err error) {
	o := t.set.Load()
	secure := o.tls
	if secure != nil && as.Protocol != "" {
		secure = secure.Clone()
		secure.NextProtos = []string{as.Protocol}
	}
	c, err := t.fetch(now, earlier(deadline, now, o.ConnectTimeout), abort, as.Header, secure)
	if err != nil {
		return nil, nil, err
	}
	return c.nc, c.CutShort, nil
}

// Secure reports that there is TLS to the backend.
func (t *Target) Secure() bool { return t.set.Load().tls != nil }

// fetch is dial, counted.
func (t *Target) fetch(now, deadline balance.Instant, abort <-chan struct{}, header []byte, secure *tls.Config) (*Conn, error) {
	c, err := t.dial(now, deadline, abort, header, secure)
	if err != nil {
		t.failed.Add(1)
		return nil, err
	}
	t.fresh.Add(1)
	return c, nil
}

func (t *Target) dial(now, deadline balance.Instant, abort <-chan struct{}, header []byte, secure *tls.Config) (*Conn, error) {
	fail := func(k DialErrorKind, addr string, err error) error { return &DialError{Kind: k, Addr: addr, Err: err} }
	o := t.set.Load()
	if n := t.open.Add(1); o.MaxConns > 0 && n > int64(o.MaxConns) {
		t.open.Add(-1)
		return nil, fail(Limit, o.Address, errMaxConns)
	}
	limit := earlier(deadline, now, o.ConnectTimeout)
	nc, addr, err := t.connect(limit, abort)
	if noFiles(err) && t.relieved(o) {
		nc, addr, err = t.connect(limit, abort)
	}
	if err != nil {
		t.open.Add(-1)
		return nil, err
	}
	where := nc.RemoteAddr().String()
	if s, ok := nc.(syscall.Conn); ok && t.files.Reserved(netconn.Descriptor(s)) && !t.relieved(o) {
		t.open.Add(-1)
		_ = nc.Close() // refused already
		return nil, fail(LocalFiles, where, errReserved)
	}
	if len(header) > 0 {
		if err := introduce(nc, header); err != nil {
			t.open.Add(-1)
			_ = nc.Close() // it is broken already
			return nil, fail(kindOf(err), where, fmt.Errorf("sending the PROXY header: %w", err))
		}
	}
	c := &Conn{addr: addr, requests: 1, epoch: o.epoch, header: string(header)}
	if secure != nil {
		c.nc = netconn.Client(nc, secure)
	} else {
		c.nc = netconn.New(nc)
	}
	c.nc.SetOnClose(func() { t.left(c) })
	if !t.joined(c) {
		_ = c.nc.Close() // refused already
		return nil, fail(DrainOver, where, errDrainOver)
	}
	if secure != nil {
		if err := t.handshake(c.nc, earlier(deadline, clock.Now(), o.TLSTimeout), abort); err != nil {
			_ = c.nc.Close() // the handshake's error is the one that counts
			switch {
			case aborted(abort):
				return nil, fail(Canceled, where, errAborted)
			case c.CutShort():
				return nil, fail(DrainOver, where, errDrainOver)
			}
			if certificateFault(err) {
				err = fmt.Errorf("server name %s: %w", secure.ServerName, err)
			}
			return nil, fail(TLS, where, err)
		}
	}
	if o.MaxAge > 0 {
		// Spread by 10 %, so that connections made together do not end together.
		c.dies = now.Add(time.Duration(float64(o.MaxAge) * (0.9 + 0.2*rand.Float64())))
	}
	return c, nil
}

// introduce sends the PROXY header. The socket is fresh, so that its buffer takes
// it whole: the write does not wait.
func introduce(nc net.Conn, header []byte) error {
	_, err := nc.Write(header)
	return err
}

// relieved reports that somebody gave a descriptor back for this connection.
func (t *Target) relieved(o *settings) bool { return o.Relieve != nil && o.Relieve() }

func noFiles(err error) bool {
	var d *DialError
	return errors.As(err, &d) && d.Kind == LocalFiles
}

// earlier returns the earlier of a deadline and from+d, either of which may be
// none (0).
func earlier(deadline, from balance.Instant, d time.Duration) balance.Instant {
	if d <= 0 {
		return deadline
	}
	if t := from.Add(d); deadline == 0 || t < deadline {
		return t
	}
	return deadline
}

func aborted(abort <-chan struct{}) bool {
	select {
	case <-abort:
		return true
	default:
		return false
	}
}

// connect tries the backend's addresses in turn, beginning with the one that
// worked last.
func (t *Target) connect(limit balance.Instant, abort <-chan struct{}) (net.Conn, netip.Addr, error) {
	if t.network == "unix" {
		nc, err := t.connectTo(t.set.Load().Address, netip.Addr{}, limit, abort)
		return nc, netip.Addr{}, err
	}
	addrs := t.fixed
	if t.host != "" {
		var err error
		if addrs, err = t.names.lookup(t.host, limit, abort); err != nil {
			k := DNS
			switch {
			case aborted(abort):
				k = Canceled
			case errors.Is(err, context.DeadlineExceeded):
				err = fmt.Errorf("no answer from the name servers in time: %w", err)
			}
			return nil, netip.Addr{}, &DialError{Kind: k, Addr: t.set.Load().Address, Err: err}
		}
		addrs = t.goodFirst(addrs)
	}
	var first error
	for i, a := range addrs {
		part := limit
		if left := len(addrs) - i; limit != 0 && left > 1 {
			now := clock.Now()
			part = now.Add(limit.Sub(now) / time.Duration(left))
		}
		nc, err := t.connectTo(net.JoinHostPort(a.String(), strconv.Itoa(int(t.port))), a, part, abort)
		if err == nil {
			if t.host != "" {
				t.good.Store(&a)
			}
			return nc, a, nil
		}
		if first == nil {
			first = err
		}
		var d *DialError
		if errors.As(err, &d) && d.Kind.Local() {
			return nil, a, err // the next address would fail for the same reason
		}
		if limit != 0 && clock.Now() >= limit {
			break
		}
	}
	return nil, netip.Addr{}, first
}

// goodFirst moves the address that worked last to the front of a copy.
func (t *Target) goodFirst(addrs []netip.Addr) []netip.Addr {
	good := t.good.Load()
	if good == nil {
		return addrs
	}
	i := slices.Index(addrs, *good)
	if i <= 0 {
		return addrs
	}
	out := slices.Clone(addrs)
	return append(append(out[:0], addrs[i:]...), addrs[:i]...)
}

// source returns the next source address of the destination's family.
func (t *Target) source(from []netip.Addr, to netip.Addr) (netip.Addr, bool) {
	n := len(from)
	start := int(t.turn.Add(1)) % n
	for i := range n {
		if a := from[(start+i)%n].Unmap(); a.Is4() == to.Is4() {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// control sets what must or may as well be set before connecting.
func (t *Target) control(_ context.Context, network, _ string, c syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	var set error
	err := c.Control(func(raw uintptr) { set = t.set.Load().socket(int(raw)) })
	return errors.Join(err, set)
}

// socket sets the options of a TCP socket.
func (o *settings) socket(fd int) (err error) {
	if len(o.Bind) > 0 {
		// A port is chosen at connect, where only the whole four-tuple must be unique;
		// at bind the source address would run out of ports.
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
	}
	if d := o.UserTimeout; d > 0 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d/time.Millisecond)))
	}
	if d := o.Probe; d > 0 {
		secs := max(int(d/time.Second), 1)
		err = errors.Join(err,
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, secs),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, secs),
			unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3))
	}
	return err
}

// handshake runs the TLS handshake; abort cuts it.
func (t *Target) handshake(c *netconn.Conn, limit balance.Instant, abort <-chan struct{}) error {
	if abort == nil {
		return c.Handshake(limit)
	}
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-abort:
			c.Abort()
		case <-over:
		}
	}()
	err := c.Handshake(limit)
	close(over)
	<-stopped
	if err == nil && c.Aborted() {
		err = errAborted
	}
	return err
}
