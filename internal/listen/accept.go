// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/netconn"
)

const (
	// pause is how long accepting rests at a ceiling, unless a place becomes
	// free; batch is how many connections are refused before it rests.
	pause = 100 * time.Millisecond
	batch = 64
	// logEvery bounds how often one kind of trouble is logged.
	logEvery = 10 * time.Second
	// A refused plain connection is kept for a moment, so that the bytes the
	// client is still sending do not turn the answer into a reset; so many at
	// most, and then it is closed at once.
	maxLinger  = 64
	lingerTime = 500 * time.Millisecond
	lingerMost = 64 << 10
)

// accept is the accept loop of one socket.
func (l *Listener) accept(ln net.Listener, handler func(*netconn.Conn, Info)) {
	var (
		backoff time.Duration
		refused int // since the last rest
		logged  [refusals]time.Time
	)
	note := func(r Refusal, msg string, args ...any) {
		l.count(r)
		if now := time.Now(); now.Sub(logged[r]) >= logEvery {
			logged[r] = now
			l.opt.Logger.Warn(msg, append([]any{"listener", l.opt.Name, "reason", r.String(), "total", l.refused[r].Load()}, args...)...)
		}
	}
	for {
		nc, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if errors.Is(err, syscall.ECONNABORTED) {
				continue // the client left while it waited; not our trouble
			}
			r := AcceptFailed
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				r = NoFiles
			}
			note(r, "cannot accept", "error", err)
			backoff = min(max(2*backoff, 5*time.Millisecond), time.Second)
			if !l.sleep(backoff) {
				return
			}
			continue
		}
		backoff = 0
		remote := addrPort(nc.RemoteAddr())
		r, ok := l.admit(nc, remote.Addr())
		if ok {
			refused = 0
			l.handlers.Go(func() { l.handle(nc, remote, handler) })
			continue
		}
		note(r, "connection refused at a ceiling", "open", l.Connections(), "process", l.opt.Gate.Open())
		l.refuse(nc)
		if r == ClientLimit {
			continue // one client's excess is no reason to make others wait
		}
		if refused++; refused >= batch {
			refused = 0
			if !l.rest() {
				return
			}
		}
	}
}

// admit judges one accepted connection.
func (l *Listener) admit(nc net.Conn, client netip.Addr) (Refusal, bool) {
	if s, ok := nc.(syscall.Conn); ok && l.files > 2*Reserve && netconn.Descriptor(s) >= l.files-Reserve {
		return NoFiles, false
	}
	return l.enter(client)
}

// rest pauses at a ceiling until a place is free or the pause is over.
func (l *Listener) rest() bool {
	own, all := l.room.wait(), l.opt.Gate.room.wait()
	defer l.room.done()
	defer l.opt.Gate.room.done()
	return l.sleep(pause, own, all)
}

// refuse ends a connection that is over a ceiling: a plain one with an answer,
// a TLS one without a handshake. It never waits.
func (l *Listener) refuse(nc net.Conn) {
	if l.certs != nil {
		_ = nc.Close()
		return
	}
	// The socket is fresh, so the answer fits its buffer: the write cannot wait.
	_ = nc.SetDeadline(time.Now().Add(lingerTime))
	_, err := nc.Write(l.refusal)
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

// refusalText is the whole answer at a ceiling.
func refusalText(after time.Duration) []byte {
	const body = "weir: 503 conn_limit: too many connections\n"
	secs := int64((after + time.Second - 1) / time.Second)
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: %d\r\nConnection: close\r\n"+
		"Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s", secs, len(body), body)
}
