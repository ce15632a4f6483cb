// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestFloods: whatever a client sends without end, the connection ends after a
// bounded number of frames, with ENHANCE_YOUR_CALM and a counted cause. Nothing
// is read twice as fast because it is sent twice as fast: the clock stands still.
func TestFloods(t *testing.T) {
	id := uint32(1)
	next := func() uint32 { id += 2; return id - 2 }
	for _, c := range []struct {
		name  string
		begin func(p *peer)
		frame func(p *peer)
		most  int
		cause Cause
	}{
		{"rapid reset", nil, func(p *peer) {
			i := next()
			p.headers(i, true, get("/wait")...)
			_ = p.fr.WriteRSTStream(i, http2.ErrCodeCancel)
		}, 400, CauseReset},
		{"reset by window", nil, func(p *peer) { // resets that weir is made to send
			i := next()
			p.headers(i, true, get("/wait")...)
			p.raw("\x00\x00\x04\x08\x00" + u32(i) + u32(0))
		}, 300, CauseMadeReset},
		{"malformed", nil, func(p *peer) { p.headers(next(), true, get("")...) }, 200, CauseMadeReset},
		{"streams never ended", nil, func(p *peer) { p.headers(next(), false, post("/wait")...) }, 600, CauseRefused},
		{"settings", nil, func(p *peer) { _ = p.fr.WriteSettings() }, 200, CauseSettings},
		{"settings acknowledged", nil, func(p *peer) { _ = p.fr.WriteSettingsAck() }, 200, CauseSettings},
		{"ping", nil, func(p *peer) { _ = p.fr.WritePing(false, [8]byte{}) }, 1100, CausePing},
		{"ping acknowledged", nil, func(p *peer) { _ = p.fr.WritePing(true, [8]byte{}) }, 1100, CausePing},
		{"priority", nil, func(p *peer) { _ = p.fr.WritePriority(1, http2.PriorityParam{StreamDep: 3}) }, 1100, CausePriority},
		{"unknown frames", nil, func(p *peer) { _ = p.fr.WriteRawFrame(0x77, 0, 0, nil) }, 1100, CausePriority},
		{"window of the connection", nil, func(p *peer) { _ = p.fr.WriteWindowUpdate(0, 1) }, 1100, CauseWindow},
		{"window of a stream", func(p *peer) { p.headers(1, true, get("/wait")...) }, func(p *peer) { _ = p.fr.WriteWindowUpdate(1, 1) }, 1100, CauseWindow},
		{"window byte by byte", func(p *peer) { // each lets one byte of an answer go
			_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			p.headers(1, true, get("/big")...)
		}, func(p *peer) { _ = p.fr.WriteWindowUpdate(1, 1) }, 1100, CauseWindow},
		{"empty data", func(p *peer) { p.headers(1, false, post("/wait")...) }, func(p *peer) { p.send(1, false, "") }, 300, CauseEmpty},
		{"padding", func(p *peer) { p.headers(1, false, post("/wait")...) }, func(p *peer) { _ = p.fr.WriteDataPadded(1, false, nil, make([]byte, 255)) }, 300, CauseEmpty},
		{"data for a stream that was reset", func(p *peer) {
			p.headers(1, false, post("/ok")...)
		}, func(p *peer) { p.send(1, false, "") }, 300, CauseEmpty},
		{"empty continuation", func(p *peer) {
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get("/")...)})
		}, func(p *peer) { _ = p.fr.WriteContinuation(1, false, nil) }, 300, CauseEmpty},
		{"continuation", func(p *peer) {
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get("/")...)})
		}, func(p *peer) { _ = p.fr.WriteContinuation(1, false, []byte("\x00\x01x\x01y")) }, 64<<10 + maxFrame, CauseHeaders},
		{"trailers again", func(p *peer) { p.headers(1, false, post("/ok")...) }, func(p *peer) { p.headers(1, true, "x: y") }, 300, CauseEmpty},
	} {
		t.Run(c.name, func(t *testing.T) {
			id = 1
			s := &Server{Handler: answers{"/wait": func(s *ServerStream) {
				gone := make(chan struct{})
				s.OnAbort(func() { close(gone) })
				<-gone
			}, "/ok": ok, "/big": big(1 << 20)}.serve}
			play(t, s, func(p *peer) {
				p.begin()
				if c.begin != nil {
					c.begin(p)
					p.wait()
				}
				n := 0
				for ; n <= c.most && !p.over1(); n++ {
					c.frame(p)
					if n%16 == 0 {
						p.wait()
					}
				}
				time.Sleep(2 * time.Second)
				heard := p.take()
				goaway := slices.ContainsFunc(heard, func(h string) bool { return strings.Contains(h, "ENHANCE_YOUR_CALM too much: "+c.cause.String()) })
				if !p.ended() || !goaway || len(p.calms) != 1 || p.calms[0] != c.cause {
					t.Errorf("after %d frames: ended %v, counted %v, heard %q", n, p.ended(), p.calms, tail(heard, 3))
				}
				if n > c.most {
					t.Errorf("%d frames were taken", n)
				}
			})
		})
	}
}

func tail(s []string, n int) []string { return s[max(0, len(s)-n):] }

// over1 reports, without waiting, that the server has ended the connection.
func (p *peer) over1() bool {
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

// TestHeaderBomb: a small block that says a lot is decoded, refused, and costs
// memory for no more than the limit.
func TestHeaderBomb(t *testing.T) {
	play(t, &Server{Handler: echo}, func(p *peer) {
		p.begin()
		bomb := p.block(append(get("/"), "x: "+strings.Repeat("a", 4000))...)
		bomb = append(bomb, strings.Repeat("\xbe", 12000)...) // the field again, by its index: 48 MB
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for id := uint32(1); id < 21; id += 2 {
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: bomb, EndStream: true, EndHeaders: true})
			p.wait()
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
			t.Errorf("%d bytes were allocated", n)
		}
		if got := strings.Join(p.take(), "\n"); strings.Count(got, ":status=431") != 10 {
			t.Errorf("heard %.400s", got)
		}
	})
}

// TestHonestClientsAreCalm: what well-behaved clients do a lot of ends nothing.
func TestHonestClientsAreCalm(t *testing.T) {
	play(t, &Server{Handler: answers{"/ok": ok, "/big": big(64 << 10)}.serve}, func(p *peer) {
		p.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		id := uint32(1)
		for range 3000 { // each with a ping, two windows, and every tenth is given up
			p.headers(id, true, get("/big")...)
			_ = p.fr.WritePing(false, [8]byte{})
			_ = p.fr.WriteWindowUpdate(0, 64<<10)
			_ = p.fr.WriteWindowUpdate(id, 100)
			if id%20 == 1 {
				_ = p.fr.WriteRSTStream(id, http2.ErrCodeCancel)
			}
			id += 2
			p.take()
		}
		if p.ended() || len(p.calms) > 0 {
			t.Errorf("ended, %v", p.calms)
		}
	})
}

// TestLateWindowsAreCalm: a client with large windows that has read nothing yet
// gives back what it was sent long afterwards, in small pieces and all at once.
// Those of a Go client were once a flood in the middle of a download of 4 MiB.
func TestLateWindowsAreCalm(t *testing.T) {
	const size, piece = 8 << 20, 4 << 10
	play(t, &Server{Handler: answers{"/big": big(size)}.serve}, func(p *peer) {
		p.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2 * size})
		_ = p.fr.WriteWindowUpdate(0, 2*size)
		for id := uint32(1); id < 7; id += 2 {
			p.headers(id, true, get("/big")...)
			p.take()
			for range size / piece {
				_ = p.fr.WriteWindowUpdate(0, piece)
				_ = p.fr.WriteWindowUpdate(id, piece)
			}
			p.wait()
		}
		if p.ended() || len(p.calms) > 0 {
			t.Errorf("ended, %v", p.calms)
		}
		for n := 0; n < 3*size/256 && !p.ended(); n++ { // what was not sent is not given back either
			_ = p.fr.WriteWindowUpdate(0, 1)
			p.wait()
		}
		if !p.ended() {
			t.Error("a flood after much content does not end")
		}
	})
}
