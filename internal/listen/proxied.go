// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/proxyproto"
)

// ProxyOptions say who may say for whom it connects, by a PROXY header. Whoever
// is not listed is served as it is, and its bytes are never read as a header.
type ProxyOptions struct {
	Required bool           // a listed peer that sends no header is closed
	From     []netip.Prefix // the listed peers; those of unix sockets always are
}

// listed reports whether a peer may send a header. One of a unix socket has no
// address: who may open the path is what its owner and mode say.
func (p *ProxyOptions) listed(peer netip.AddrPort) bool {
	if p == nil {
		return false
	}
	a := peer.Addr().WithZone("")
	return !a.IsValid() || slices.ContainsFunc(p.From, func(f netip.Prefix) bool { return f.Contains(a) })
}

// HeaderOutcome is what came of the PROXY header of a connection.
type HeaderOutcome uint8

// The outcomes. With the first three the connection is served.
const (
	HeaderRead      HeaderOutcome = iota // the client is who it names
	HeaderNobody                         // it names nobody: the peer speaks for itself, as checks do
	HeaderAbsent                         // there is none, and none is required
	HeaderMissing                        // there is none, and it is required
	HeaderMalformed                      // it is not as the specification has it
	HeaderTooLong
	HeaderVersion    // binary, and not version 2
	HeaderChecksum   // its CRC32C is wrong
	HeaderTimeout    // not complete within Options.HandshakeTimeout, or 10 s where there is none
	HeaderClosed     // the peer went away before, as checks of TCP do
	HeaderNotAllowed // sent where nobody is asked for one, or by a peer that is not listed
	headers
)

var headerNames = [headers]string{
	"read", "nobody", "none", "missing", "malformed", "too_long", "version", "checksum", "timeout", "closed", "not_allowed",
}

// String returns a word for metrics.
func (o HeaderOutcome) String() string { return headerNames[o] }

// served reports that the connection goes on.
func (o HeaderOutcome) served() bool { return o <= HeaderAbsent }

// outcomes are those of what Parse finds.
var outcomes = map[proxyproto.Fault]HeaderOutcome{
	proxyproto.None: HeaderMissing, proxyproto.Malformed: HeaderMalformed, proxyproto.TooLong: HeaderTooLong,
	proxyproto.Version: HeaderVersion, proxyproto.Checksum: HeaderChecksum,
}

// Headers returns how many connections had each outcome, by HeaderOutcome.
func (l *Listener) Headers() [headers]int64 {
	var out [headers]int64
	for i := range out {
		out[i] = l.headers[i].Load()
	}
	return out
}

// ReadsHeaders reports whether somebody may send PROXY headers.
func (l *Listener) ReadsHeaders() bool { return l.set.Load().opt.Proxy != nil }

// Forged counts a header that was found in the bytes of a peer that may not send
// one, and says so in the log, with the peer and nothing of what it sent.
func (l *Listener) Forged(peer netip.AddrPort) {
	l.noteHeader(l.set.Load(), HeaderNotAllowed, peer, errNotAllowed)
}

var (
	errNotAllowed = errors.New("a PROXY header came from a peer that proxy_protocol.from does not list")
	errHeaderLate = errors.New("the PROXY header was not complete in time")
	errHeaderGone = errors.New("the peer went away before its PROXY header was complete")
)

// noteHeader counts an outcome, and says once in a while why a connection was closed.
func (l *Listener) noteHeader(set *settings, o HeaderOutcome, peer netip.AddrPort, why error) {
	l.headers[o].Add(1)
	if o.served() {
		return
	}
	level := slog.LevelWarn
	if o == HeaderClosed {
		level = slog.LevelDebug // checks of TCP do so every few seconds
	} else if !l.saidHeader[o].now() {
		return
	}
	set.opt.Logger.Log(context.Background(), level, "connection closed for its PROXY header", "listener", set.opt.Name,
		"cause", o.String(), "peer", peer, "error", why, "total", l.headers[o].Load())
}

// introduce reads the PROXY header of a listed peer and puts the client into
// info. When it is not ok the connection has been closed, and its place given
// back.
func (l *Listener) introduce(set *settings, nc net.Conn, info *Info, by balance.Instant) (counted, ok bool) {
	peer := info.Remote
	if by == 0 { // a peer that connects in advance would keep a listener that ends for ever
		by = clock.Now().Add(DefaultHandshakeTimeout)
	}
	h, out, why := readHeader(nc, by, set.opt.Proxy.Required)
	l.noteHeader(set, out, peer, why)
	if !out.served() {
		_ = nc.Close()
		l.leave(set, netip.Addr{}, false)
		return false, false
	}
	if out == HeaderRead {
		info.Remote, info.Local = h.Source, h.Destination
		info.Proxied = &Proxied{Peer: peer, Version: h.Version, TLVs: h.TLVs, Checksum: h.Checksum}
	}
	if counted, ok = l.clients.enter(info.Remote.Addr(), set.opt.MaxPerClient); !ok {
		l.note(set, ClientLimit, "connection refused at a ceiling", "peer", peer, "client", info.Remote, "open", l.Connections(), "process", set.opt.Gate.Open())
		l.refuse(set, nc, ClientLimit)
		l.leave(set, netip.Addr{}, false)
	}
	return counted, ok
}

// readHeader reads a PROXY header and not a byte more. Bytes are looked at where
// they lie in the socket, and taken out when it is certain that they belong to a
// header, so that whoever comes next finds what follows, and everything where
// there is none. by is when it must be complete.
func readHeader(nc net.Conn, by balance.Instant, required bool) (proxyproto.Header, HeaderOutcome, error) {
	s, ok := nc.(syscall.Conn)
	if !ok {
		return proxyproto.Header{}, HeaderClosed, errHeaderGone
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return proxyproto.Header{}, HeaderClosed, err
	}
	var r headerReader
	defer r.putBuffer()
	_ = nc.SetReadDeadline(clock.Time(by)) // fails only on a dead socket, which reading reports
	err = raw.Read(r.step)
	_ = nc.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return proxyproto.Header{}, HeaderTimeout, errHeaderLate
	case err != nil || r.gone:
		return proxyproto.Header{}, HeaderClosed, errHeaderGone
	case r.why == proxyproto.None && !required:
		return proxyproto.Header{}, HeaderAbsent, nil
	case r.why != proxyproto.OK:
		return proxyproto.Header{}, outcomes[r.why], r.why
	}
	r.h.TLVs = slices.Clone(r.h.TLVs) // they lie in the buffer
	if !r.h.Named(proxyproto.Stream) {
		return r.h, HeaderNobody, nil
	}
	return r.h, HeaderRead, nil
}

// headerReader reads one header.
type headerReader struct {
	h    proxyproto.Header
	why  proxyproto.Fault
	gone bool // the peer has ended or broken the connection

	buf  *[proxyproto.MaxV2]byte // nil while nothing is there
	have int                     // bytes that were taken out of the socket
	seen int                     // bytes that were there when the peer was found to have ended
}

var headerBuffers = sync.Pool{New: func() any { return new([proxyproto.MaxV2]byte) }}

// putBuffer gives the buffer back. Who waits for a first byte holds none.
func (r *headerReader) putBuffer() {
	if r.buf != nil {
		headerBuffers.Put(r.buf)
		r.buf = nil
	}
}

// step looks at what is there. It returns false to be called when there is more.
func (r *headerReader) step(fd uintptr) (done bool) {
	if r.buf == nil {
		r.buf = headerBuffers.Get().(*[proxyproto.MaxV2]byte)
	}
	for {
		n, _, err := unix.Recvfrom(int(fd), r.buf[r.have:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if r.have == 0 {
				r.putBuffer()
			}
			return false
		case err != nil || n <= 0:
			r.gone = true
			return true
		}
		total := r.have + n
		r.h, n, r.why = proxyproto.Parse(r.buf[:total])
		switch {
		case r.why == proxyproto.OK:
			r.take(fd, n)
			return true
		case r.why != proxyproto.Short:
			return true
		case total >= certain(r.buf[0]):
			r.take(fd, total)
			if r.gone {
				return true
			}
		case !hungUp(fd):
			return false
		case total == r.seen:
			r.gone = true
			return true
		default: // more may have come before the end: look again
			r.seen = total
		}
	}
}

// certain is how many bytes of a header's beginning are the beginning of nothing else.
func certain(first byte) int {
	if first == 'P' {
		return len("PROXY ")
	}
	return 12 // the signature of version 2
}

// take takes bytes that have been looked at out of the socket, up to so many in all.
func (r *headerReader) take(fd uintptr, upTo int) {
	for r.have < upTo && !r.gone {
		n, _, err := unix.Recvfrom(int(fd), r.buf[r.have:upTo], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		r.gone = err != nil || n <= 0
		r.have += max(n, 0)
	}
}

// hungUp reports that the peer will send no more. Looking at bytes does not show
// it while there are some.
func hungUp(fd uintptr) bool {
	look := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(look[:], 0)
	return err == nil && n > 0
}

// noTLS counts a header in the place of a handshake, from a peer whose header is not read.
func (l *Listener) noTLS(set *settings, peer netip.AddrPort, err error) {
	var r tls.RecordHeaderError
	if errors.As(err, &r) && !set.opt.Proxy.listed(peer) && (string(r.RecordHeader[:]) == "PROXY" || string(r.RecordHeader[:]) == "\r\n\r\n\x00") {
		l.noteHeader(set, HeaderNotAllowed, peer, errNotAllowed)
	}
}
