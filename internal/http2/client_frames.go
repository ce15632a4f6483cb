// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"slices"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/http1"
)

// readPayload reads what is behind a frame's header, and does what it says.
func (c *ClientConn) readPayload(fh http2.FrameHeader) error {
	if fh.Type == http2.FrameHeaders {
		return readHeaders(&c.input, c, fh)
	}
	f, err := c.fr.ReadFrameForHeader(fh)
	if err != nil {
		return readFault(err)
	}
	switch f := f.(type) {
	case *http2.ContinuationFrame:
		return readContinuation(&c.input, c, f)
	case *http2.WindowUpdateFrame:
		return readWindow(&c.core, c, c.streams, f)
	case *http2.RSTStreamFrame:
		return c.readReset(f)
	case *http2.SettingsFrame:
		return c.readSettings(f)
	case *http2.PingFrame:
		return c.readPing(f)
	case *http2.GoAwayFrame:
		return c.readGoAway(f)
	case *http2.PushPromiseFrame:
		return protocolError("PUSH_PROMISE, which was not asked for")
	}
	return c.pay(costPriority, CausePriority) // PRIORITY, and types that are ignored (section 4.1)
}

// headerBytes implements blockTaker.
func (c *ClientConn) headerBytes() int { return c.set.Limits.HeaderBytes() }

// isIdle reports a stream that was not opened. Called under mu.
func (c *ClientConn) isIdle(id uint32) bool { return id%2 == 0 || id >= c.nextID }

// readReset ends a stream. An answer that is there in whole stays.
func (c *ClientConn) readReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isIdle(f.StreamID) {
		return protocolError("RST_STREAM on an idle stream")
	}
	s := c.streams[f.StreamID]
	if s == nil {
		return c.payLocked(costLateReset, CauseReset)
	}
	code := Code(f.ErrCode)
	s.spoken = true
	s.refused = code == CodeRefusedStream && !s.started
	s.closed = true
	s.dieLocked(s.resetFault(&StreamError{code}))
	delete(c.streams, f.StreamID)
	return nil
}

// readSettings takes the backend's settings over.
func (c *ClientConn) readSettings(f *http2.SettingsFrame) error {
	more, err := c.takeSettings(f)
	if more && c.startBy == 0 {
		c.owner.More(c)
	}
	return err
}

func (c *ClientConn) takeSettings(f *http2.SettingsFrame) (more bool, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() {
		if c.settled {
			return false, c.payLocked(costSettings, CauseSettings)
		}
		c.settled = true
		return false, nil
	}
	if err := c.payLocked(costSettings+f.NumSettings()/8, CauseSettings); err != nil {
		return false, err
	}
	before := c.room.Load()
	for i := range f.NumSettings() {
		set := f.Setting(i)
		switch set.ID {
		case http2.SettingInitialWindowSize:
			if err := newInitial(&c.core, c.streams, set.Val); err != nil {
				return false, err
			}
		case http2.SettingMaxFrameSize:
			if set.Val < maxFrame || set.Val > 1<<24-1 {
				return false, protocolError("SETTINGS_MAX_FRAME_SIZE out of bounds")
			}
		case http2.SettingEnablePush:
			if set.Val != 0 {
				return false, protocolError("SETTINGS_ENABLE_PUSH of a server")
			}
		case http2.SettingEnableConnectProtocol:
			if set.Val > 1 {
				return false, protocolError("SETTINGS_ENABLE_CONNECT_PROTOCOL is neither 0 nor 1")
			}
			c.connects = c.connects || set.Val == 1
		case http2.SettingMaxConcurrentStreams:
			c.peer = int(min(set.Val, 1<<30))
		}
	}
	c.setRoom()
	c.out = appendSettingsAck(c.output.room())
	return c.room.Load() > before, nil
}

// readPing answers, or takes an answer.
func (c *ClientConn) readPing(f *http2.PingFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() && f.Data == healthPing && c.pingAt != 0 {
		c.pingAt = 0
		return nil
	}
	if err := c.payLocked(costPing, CausePing); err != nil || f.IsAck() {
		return err
	}
	c.out = appendPing(c.output.room(), true, f.Data)
	return nil
}

// readGoAway ends what the backend will not answer. Streams above the last one
// that it names were not processed (section 6.8).
func (c *ClientConn) readGoAway(f *http2.GoAwayFrame) error {
	c.mu.Lock()
	if err := c.payLocked(costSettings, CauseSettings); err != nil {
		c.mu.Unlock()
		return err
	}
	if c.away != nil && f.LastStreamID > c.away.last {
		c.mu.Unlock()
		return protocolError("GOAWAY with a later stream than before")
	}
	text := f.DebugData()
	g := &goAway{last: f.LastStreamID, code: Code(f.ErrCode), text: printable(text[:min(len(text), 100)])}
	c.away, c.leaving = g, g
	for id, s := range c.streams {
		if id > g.last {
			s.refused = true
			s.dieLocked(g)
			delete(c.streams, id)
		}
	}
	c.setRoom()
	if c.running.Load() == 0 {
		c.nc.SetReadDeadline(c.now) // nothing is left to be done
	}
	c.mu.Unlock()
	c.over(g, false)
	return nil
}

// printable is what may stand in a log.
func printable(b []byte) string {
	out := slices.Clone(b)
	for i, ch := range out {
		if ch < ' ' || ch > '~' {
			out[i] = '.'
		}
	}
	return string(out)
}

// beginData finds the stream of a frame of DATA. Called under mu.
func (c *ClientConn) beginData(id uint32, size int) (*ClientStream, Code, error) {
	s := c.streams[id]
	switch {
	case s == nil: // reset, or done with
		return nil, CodeNo, c.payLocked(min(costEmpty, 1+costEmpty*64/(size+64)), CauseEmpty)
	case !s.final:
		return nil, CodeNo, c.breakLocked(s, badAnswer("content before the head"))
	case s.remote:
		return nil, CodeNo, c.breakLocked(s, badAnswer("content behind its end"))
	case !s.window.arrive(size):
		return nil, CodeNo, c.breakCode(s, CodeFlowControl, badAnswer("more content than the window"))
	}
	return s, CodeNo, nil
}

// data keeps a piece for its stream.
func (c *ClientConn) data(s *ClientStream, id uint32, p []byte) Code {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.id != id || s.dead != nil {
		return CodeNo // over meanwhile
	}
	if s.sized {
		if s.expect -= int64(len(p)); s.expect < 0 {
			_ = c.breakLocked(s, badAnswer(s.excess)) // the next frame finds the purse empty
			return CodeNo
		}
	}
	if c.k.Budget.Pressure() >= 1 && s.content.size >= leastWindow {
		c.resetLocked(s, CodeCancel)
		s.dieLocked(ErrNoMemory)
		return CodeNo
	}
	s.receiver.keep(p, c.k.Budget, &c.calm)
	return CodeNo
}

// breakLocked resets a stream whose answer is malformed. Called under mu.
func (c *ClientConn) breakLocked(s *ClientStream, e *http1.Error) error {
	return c.breakCode(s, CodeProtocol, e)
}

func (c *ClientConn) breakCode(s *ClientStream, code Code, e *http1.Error) error {
	s.spoken = true
	c.resetLocked(s, code)
	s.dieLocked(e)
	return c.payLocked(costMadeReset, CauseMadeReset)
}

// resetStream resets a stream because of what the backend did.
func (c *ClientConn) resetStream(id uint32, code Code, e *http1.Error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil {
		return c.breakCode(s, code, e)
	}
	if c.isIdle(id) {
		return protocolError(e.Detail)
	}
	return c.payLocked(costMadeReset, CauseMadeReset)
}

// resetLocked sends RST_STREAM and forgets the stream. Called under mu.
func (c *ClientConn) resetLocked(s *ClientStream, code Code) {
	if s.id == 0 || s.closed {
		return
	}
	s.closed = true
	c.out = appendReset(c.output.room(), s.id, code)
	delete(c.streams, s.id)
	c.unqueue(&s.sender)
}

// headers does what a whole header block says. Whatever it is worth, it must be
// decoded.
func (c *ClientConn) headers(o opening, block []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isIdle(o.stream) {
		return protocolError("HEADERS on an idle stream")
	}
	s := c.streams[o.stream]
	if s == nil {
		if err := c.skipBlock(block); err != nil {
			return err
		}
		return c.payLocked(costEmpty, CauseEmpty)
	}
	s.spoken = true
	var bad *http1.Error
	var err error
	if s.final {
		bad, err = s.readTrailers(&c.dec, block, o.end)
	} else {
		bad, err = s.readHead(&c.dec, block, o.end)
	}
	switch {
	case err != nil:
		return err
	case bad != nil:
		return c.breakLocked(s, bad)
	}
	s.wakeReader()
	return nil
}
