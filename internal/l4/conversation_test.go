// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// part is what one side does in a conversation: it writes, reads at its pace, ends its
// half, and may reset the connection at last.
type part struct {
	Writes []int         // sizes
	Pause  time.Duration // between them
	Waits  bool          // it writes when it has read to the end
	Bite   int           // of each read
	Slow   time.Duration // before each
	Fate   fate
}

type fate int

const (
	endsWell   fate = iota // its half, and then, when the other one has ended, all
	endsAtOnce             // closes without reading on
	resets                 // when it has written
	lateReset              // when it has ended its half
)

var parts = rapid.Custom(func(t *rapid.T) part {
	p := part{
		Writes: rapid.SliceOfN(rapid.SampledFrom([]int{1, 2, 100, 4096, 70_000, 300_000}), 0, 4).Draw(t, "writes"),
		Pause:  rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond}).Draw(t, "pause"),
		Bite:   rapid.SampledFrom([]int{100, 4096, 100_000}).Draw(t, "bite"),
		Fate:   rapid.SampledFrom([]fate{endsWell, endsWell, endsWell, endsAtOnce, resets, lateReset}).Draw(t, "fate"),
	}
	if p.Bite > 4000 {
		p.Slow = rapid.SampledFrom([]time.Duration{0, 200 * time.Microsecond}).Draw(t, "slow")
	}
	if p.Fate == endsWell {
		p.Waits = rapid.Bool().Draw(t, "waits")
	}
	return p
})

// total is how much it writes.
func (p *part) total() (n int) {
	for _, w := range p.Writes {
		n += w
	}
	return n
}

// text is what a side says: no place of it looks like another one.
func text(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i * 31 >> (i % 5))
	}
	return out
}

// heard is what a side has read.
type heard struct {
	bytes []byte
	err   error // io.EOF: the other half has ended in order
	sent  bool  // all was written: else writing has taken the error that reading would have had
}

// halfConn is a connection whose half can be ended.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// play does a part, and returns what was heard.
func play(p part, c halfConn) (h heard) {
	_ = c.SetDeadline(time.Now().Add(patience))
	var reading sync.WaitGroup
	over := make(chan struct{})
	if p.Fate == endsWell || p.Fate == lateReset {
		reading.Go(func() {
			defer close(over)
			b := make([]byte, p.Bite)
			for h.err == nil {
				time.Sleep(p.Slow)
				n, err := c.Read(b)
				h.bytes, h.err = append(h.bytes, b[:n]...), err
			}
		})
	}
	if p.Waits {
		<-over
	}
	said, at := text(p.total()), 0
	var err error
	for _, n := range p.Writes {
		if _, err = c.Write(said[at : at+n]); err != nil {
			break
		}
		at += n
		time.Sleep(p.Pause)
	}
	h.sent = err == nil
	switch p.Fate {
	case endsWell, lateReset:
		h.sent = c.CloseWrite() == nil && h.sent
		if p.Fate == endsWell {
			reading.Wait()
		}
	case resets:
		lingerNot(c)
	}
	if p.Fate == lateReset {
		lingerNot(c)
	}
	_ = c.Close()
	reading.Wait()
	return h
}

func lingerNot(c net.Conn) {
	if s, ok := c.(*tls.Conn); ok {
		c = s.NetConn()
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// judge holds what one side has heard against what the other one has done.
func (p *part) judge(h *heard, other *part) error {
	if p.Fate != endsWell {
		return nil // it has heard what it wanted to
	}
	want := text(other.total())
	if len(h.bytes) > len(want) || !bytes.Equal(h.bytes, want[:len(h.bytes)]) {
		return fmt.Errorf("heard %d bytes that were not said", len(h.bytes))
	}
	switch {
	case !h.sent && other.Fate != endsWell:
	case errors.Is(h.err, io.EOF) && len(h.bytes) < len(want) && other.Fate != endsAtOnce:
		return fmt.Errorf("%d of %d bytes were passed for the whole", len(h.bytes), len(want))
	case errors.Is(h.err, io.EOF) && other.Fate == resets && len(want) > 0:
		return errors.New("a reset was passed for an end in order")
	case other.Fate == endsWell && (!errors.Is(h.err, io.EOF) || len(h.bytes) != len(want)):
		return fmt.Errorf("heard %d of %d bytes and then %w of one that ends in order", len(h.bytes), len(want), h.err)
	case !errors.Is(h.err, io.EOF) && !errors.Is(h.err, syscall.ECONNRESET):
		return fmt.Errorf("reading ends by %w", h.err)
	}
	return nil
}

// TestConversations: whatever two sides say, in whichever order they end their halves,
// however slowly they read: what one hears is what the other has said, all of it before
// an end in order, and a reset is never passed for such an end.
func TestConversations(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	own := &tls.Config{Certificates: []tls.Certificate{ca.Issue("db.test")}}
	for _, c := range []struct {
		name          string
		front, behind bool // that have TLS
	}{{"in clear", false, false}, {"TLS from the client", true, false}, {"TLS to the backend", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			scripts, outcomes := make(chan part), make(chan heard)
			addr := server(t, func(nc *net.TCPConn) {
				var side halfConn = nc
				if c.behind {
					side = tls.Server(nc, own)
					if side.(*tls.Conn).Handshake() != nil {
						return
					}
				}
				p, ok := <-scripts
				if ok {
					outcomes <- play(p, side)
				}
			})
			r := newRig(t, []string{addr}, func(r *rig, cfg *pool.Config) {
				r.rt.Retry = pool.NewRetryRules(1, false, nil, 0) // one connection for each script
				if c.behind {
					verified(ca)(r, cfg)
				}
				if c.front {
					r.wrap = func(nc net.Conn) *netconn.Conn {
						s := netconn.Server(nc, own)
						_ = s.Handshake(clock.Now().Add(patience)) // as a listener does
						return s
					}
				}
			})
			t.Cleanup(func() { close(scripts) })
			rapid.Check(t, func(rt *rapid.T) {
				ours, theirs := parts.Draw(rt, "client"), parts.Draw(rt, "backend")
				if ours.Waits && theirs.Waits {
					theirs.Waits = false
				}
				var side halfConn = r.dial()
				if c.front {
					s := tls.Client(side, &tls.Config{RootCAs: ca.Pool(), ServerName: "db.test"})
					if err := s.Handshake(); err != nil {
						rt.Fatal(err)
					}
					side = s
				}
				var client heard
				var both sync.WaitGroup
				scripts <- theirs // which its connection has
				both.Go(func() { client = play(ours, side) })
				backend := <-outcomes
				both.Wait()
				var rec observe.Record
				select {
				case rec = <-r.records:
				case <-time.After(patience):
					rt.Fatalf("the session goes on: the client has heard %d bytes and %v, the backend %d and %v", len(client.bytes), client.err, len(backend.bytes), backend.err)
				}
				if err := ours.judge(&client, &theirs); err != nil {
					rt.Fatalf("client: %v (%s, %s)", err, rec.Reason, rec.Detail)
				}
				if err := theirs.judge(&backend, &ours); err != nil {
					rt.Fatalf("backend: %v (%s, %s)", err, rec.Reason, rec.Detail)
				}
				if ours.Fate == endsWell && theirs.Fate == endsWell && ours.total()+theirs.total() > 0 && // else it is called refused
					(rec.Reason != message.OK || rec.BytesIn != int64(ours.total()) || rec.BytesOut != int64(theirs.total())) {
					rt.Fatalf("the record says %s (%s), %d in, %d out", rec.Reason, rec.Detail, rec.BytesIn, rec.BytesOut)
				}
			})
		})
	}
}
