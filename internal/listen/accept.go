// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/netconn"
)

const (
	// pause is how long accepting rests at a ceiling, unless a place becomes
	// free; batch is how many connections are refused before it rests.
	pause = 100 * time.Millisecond
	batch = 256
	// logEvery bounds how often one kind of trouble is logged.
	logEvery = 10 * time.Second
	// A refused plain connection is kept for a moment, so that the bytes the
	// client is still sending do not turn the answer into a reset; so many at
	// most, and then it is closed at once.
	maxLinger  = 64
	lingerTime = 500 * time.Millisecond
	lingerMost = 64 << 10
)

// door is where one socket's connections come in. Its methods may be called by
// several goroutines at once, where the socket is lent.
type door struct {
	l    *Listener
	shut atomic.Int32 // refused since the last rest
}

// accepted admits a connection or refuses it, and then may rest. A listener that
// has stopped takes those who were waiting, too.
func (d *door) accepted(nc net.Conn, t *turn) bool {
	l, set := d.l, d.l.set.Load()
	remote := addrPort(nc.RemoteAddr())
	client := remote.Addr()
	if set.opt.Proxy.listed(remote) {
		client = netip.Addr{} // who it is, and counts as, is not known yet
	}
	fd := -1
	if s, ok := nc.(syscall.Conn); ok {
		fd = netconn.Descriptor(s)
	}
	why, counted, ok := l.admit(set, fd, client)
	if ok {
		d.shut.Store(0)
		l.handlers.Go(func() { l.handle(set, nc, remote, counted) })
		return true
	}
	d.turnAway(set, nc, why)
	if d.shut.Load() >= batch {
		d.shut.Store(0)
		l.rest(set, t)
	}
	return true
}

// turnAway refuses a connection, and counts those after which accepting rests.
func (d *door) turnAway(set *settings, nc net.Conn, why Refusal) {
	d.l.note(set, why, "connection refused at a ceiling", "peer", addrPort(nc.RemoteAddr()), "open", d.l.Connections(), "process", set.opt.Gate.Open())
	d.l.refuse(set, nc, why)
	if why != ClientLimit { // one client's excess is no reason to make others wait
		d.shut.Add(1)
	}
}

// failed counts an accept that did not work; the loop backs off.
func (d *door) failed(err error) {
	why := whyFailed(err)
	if why == NoFiles {
		d.l.files.Look()
		d.l.set.Load().relieved() // those who wait come in with what that gave
	}
	d.l.note(d.l.set.Load(), why, "cannot accept", "error", err)
}

// whyFailed is what an accept that did not work counts as.
func whyFailed(err error) Refusal {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return NoFiles
	}
	return AcceptFailed
}

// note counts who was not let in; one in a while is logged.
func (l *Listener) note(set *settings, r Refusal, msg string, args ...any) {
	l.count(set, r)
	if l.saidRefused[r].now() {
		set.opt.Logger.Warn(msg, append([]any{"listener", set.opt.Name, "reason", r.String(), "total", l.refused[r].Load()}, args...)...)
	}
}

// seldom is when something was logged last: Unix ns. The zero value is never.
type seldom struct{ at atomic.Int64 }

// now reports that it is to be logged again, to one of those who ask at once.
func (s *seldom) now() bool {
	now, last := time.Now().UnixNano(), s.at.Load()
	return now-last >= int64(logEvery) && s.at.CompareAndSwap(last, now)
}

// admit judges one accepted connection; fd is -1 where it has no descriptor.
func (l *Listener) admit(set *settings, fd int, client netip.Addr) (why Refusal, counted, ok bool) {
	if l.files.Reserved(fd) && !set.relieved() {
		return NoFiles, false, false
	}
	if set.opt.Short != nil && set.opt.Short() {
		return NoMemory, false, false
	}
	return l.enter(set, client)
}

// relieved reports that somebody gave a descriptor back for this connection.
func (s *settings) relieved() bool { return s.opt.Relieve != nil && s.opt.Relieve() }

// rest pauses at a ceiling until a place is free, the pause is over, or there is
// something else to do.
func (l *Listener) rest(set *settings, t *turn) {
	own, all := l.room.wait(), set.opt.Gate.room.wait()
	defer l.room.done()
	defer set.opt.Gate.room.done()
	tick := time.NewTimer(pause)
	defer tick.Stop()
	select {
	case <-l.stop:
	case <-t.over:
	case <-tick.C:
	case <-own:
	case <-all:
	}
}

// refuse ends a connection that is over a ceiling: a plain one with an answer,
// a TLS one without a handshake. It never waits.
func (l *Listener) refuse(set *settings, nc net.Conn, why Refusal) {
	if set.certs != nil || set.opt.Mute {
		if t, ok := nc.(*net.TCPConn); ok && set.opt.Mute {
			_ = t.SetLinger(0) // fails only on a dead socket
		}
		_ = nc.Close()
		return
	}
	// The socket is fresh, so the answer fits its buffer: the write cannot wait.
	_ = nc.SetDeadline(time.Now().Add(lingerTime))
	_, err := nc.Write(set.refusal[why])
	half, ok := nc.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = nc.Close()
		return
	}
	select {
	case l.linger <- struct{}{}:
	default:
		_ = nc.Close()
		return
	}
	l.handlers.Go(func() {
		defer func() { <-l.linger }()
		defer nc.Close() //nolint:errcheck // refused already
		_, _ = io.CopyN(io.Discard, struct{ io.Reader }{nc}, lingerMost)
	})
}

// refusalText has the whole answers to those who are not admitted.
func refusalText(after time.Duration) (all [refusals][]byte) {
	for r := range refusals {
		switch r {
		case NoFiles:
			all[r] = refuseFor(after, "local_files: no descriptor left")
		case NoMemory:
			all[r] = refuseFor(after, "local_memory: no memory left")
		default:
			all[r] = refuseFor(after, "conn_limit: too many connections")
		}
	}
	return all
}

func refuseFor(after time.Duration, why string) []byte {
	body := "weir: 503 " + why + "\n"
	secs := int64((after + time.Second - 1) / time.Second)
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: %d\r\nConnection: close\r\n"+
		"Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s", secs, len(body), body)
}
