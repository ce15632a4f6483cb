// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"slices"

	"golang.org/x/net/http2"
)

// readPayload reads what is behind a frame's header, and does what it says.
func (c *conn) readPayload(fh http2.FrameHeader) error {
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
		return c.pay(costPriority, CausePriority) // the client opens no more: it says so for nothing
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return &streamFault{f.StreamID, CodeProtocol}
		}
		return c.pay(costPriority, CausePriority)
	case *http2.PushPromiseFrame:
		return protocolError("PUSH_PROMISE of a client")
	}
	return c.pay(costPriority, CausePriority) // unknown types are ignored (section 4.1)
}

// isIdle reports a stream that has not been opened. Called under mu.
func (c *conn) isIdle(id uint32) bool {
	return id%2 == 0 || id > c.lastID && c.stage != leaveFinal
}

// isCut reports a stream that weir has reset lately, or that came after the last one
// was named: what the client sent for it before it knew is dropped. Called under mu.
func (c *conn) isCut(id uint32) bool {
	return c.stage == leaveFinal && id > c.lastID || slices.Contains(c.resets, id)
}

// readReset ends a stream.
func (c *conn) readReset(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	if c.isIdle(f.StreamID) {
		c.mu.Unlock()
		return protocolError("RST_STREAM on an idle stream")
	}
	s := c.streams[f.StreamID]
	cost := costLateReset
	var leave func()
	if s != nil {
		if c.now.Sub(s.born) < soon {
			cost = costReset
		}
		leave = s.dieLocked(errReset)
		delete(c.streams, f.StreamID)
	}
	err := c.payLocked(cost, CauseReset)
	c.mu.Unlock()
	if leave != nil {
		leave()
	}
	return err
}

// readSettings takes the client's settings over.
func (c *conn) readSettings(f *http2.SettingsFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() {
		if c.settled {
			return c.payLocked(costSettings, CauseSettings)
		}
		c.settled = true
		return nil
	}
	if err := c.payLocked(costSettings+f.NumSettings()/8, CauseSettings); err != nil {
		return err
	}
	for i := range f.NumSettings() {
		set := f.Setting(i)
		switch set.ID {
		case http2.SettingInitialWindowSize:
			if err := newInitial(&c.core, c.streams, set.Val); err != nil {
				return err
			}
		case http2.SettingMaxFrameSize:
			if set.Val < maxFrame || set.Val > 1<<24-1 {
				return protocolError("SETTINGS_MAX_FRAME_SIZE out of bounds")
			}
		case http2.SettingEnablePush:
			if set.Val > 1 {
				return protocolError("SETTINGS_ENABLE_PUSH is neither 0 nor 1")
			}
		case http2.SettingEnableConnectProtocol:
			if set.Val > 1 {
				return protocolError("SETTINGS_ENABLE_CONNECT_PROTOCOL is neither 0 nor 1")
			}
		}
	}
	c.out = appendSettingsAck(c.room())
	return nil
}

// readPing answers.
func (c *conn) readPing(f *http2.PingFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() {
		if f.Data == leavePing && c.stage == leaveTold {
			return c.leaveForGood()
		}
		return c.payLocked(costPing, CausePing)
	}
	if err := c.payLocked(costPing, CausePing); err != nil {
		return err
	}
	c.out = appendPing(c.room(), true, f.Data)
	return nil
}

// beginData finds the stream of a frame of DATA: there is none when weir has reset
// it. Called under mu.
func (c *conn) beginData(id uint32, size int) (*ServerStream, Code, error) {
	s := c.streams[id]
	switch {
	case s == nil && c.isCut(id): // what is large costs the client as much as weir
		return nil, CodeNo, c.payLocked(costEmpty*64/(size+64), CauseEmpty)
	case s != nil && s.bad != nil:
		return nil, CodeNo, nil //nolint:nilerr // it is about to be reset
	case s == nil || s.remote:
		return nil, CodeStreamClosed, nil
	case !s.window.arrive(size):
		return s, CodeFlowControl, nil
	}
	return s, CodeNo, nil
}

// data keeps a piece for its stream.
func (c *conn) data(s *ServerStream, id uint32, p []byte) Code {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.id != id || s.dead != nil {
		return CodeNo // reset meanwhile
	}
	if s.sized {
		if s.expect -= int64(len(p)); s.expect < 0 {
			s.breakContent(errTooMuch)
			return CodeNo
		}
	}
	if s.unwanted || s.bad != nil {
		s.window.take(len(p), nil) // dropped; the client hears of it at the end
		return CodeNo
	}
	if c.srv.Budget.Pressure() >= 1 && s.content.size >= leastWindow {
		return CodeEnhanceYourCalm
	}
	s.asked = false // the client has not waited
	s.keep(p, c.srv.Budget, &c.calm)
	return CodeNo
}

// resetStream resets a stream because of what the client did.
func (c *conn) resetStream(id uint32, code Code) error {
	c.mu.Lock()
	var leave func()
	if s := c.streams[id]; s != nil {
		leave = s.dieLocked(errReset)
		delete(c.streams, id)
	}
	c.resetLocked(id, code)
	cause := CauseMadeReset
	if code == CodeEnhanceYourCalm {
		cause = CauseBuffered
	}
	err := c.payLocked(costMadeReset, cause)
	c.mu.Unlock()
	if leave != nil {
		leave()
	}
	return err
}

// resetLocked sends RST_STREAM and remembers that.
func (c *conn) resetLocked(id uint32, code Code) {
	c.out = appendReset(c.room(), id, code)
	if c.resets == nil {
		c.resets = make([]uint32, 2*c.most)
	}
	c.resets[c.reset%len(c.resets)] = id
	c.reset++
}

// headers does what a whole header block says: it opens a stream, or ends one
// with trailers. Whatever it is worth, it must be decoded.
func (c *conn) headers(o opening, block []byte) error {
	if o.stream%2 == 0 {
		return protocolError("stream of an even number")
	}
	c.mu.Lock()
	s := c.streams[o.stream]
	switch {
	case o.stream > c.lastID:
		return c.open(o, block)
	case s == nil && !c.isCut(o.stream):
		c.mu.Unlock()
		return &ConnError{Code: CodeStreamClosed, Detail: "HEADERS on a closed stream"}
	}
	c.mu.Unlock()
	if s == nil {
		if err := c.skipBlock(block); err != nil {
			return err
		}
		return c.pay(costEmpty, CauseEmpty)
	}
	return c.trailers(s, o, block)
}

// headerBytes implements blockTaker.
func (c *conn) headerBytes() int { return c.set.Limits.HeaderBytes() }

// open opens a stream. Called under mu, which it gives up.
func (c *conn) open(o opening, block []byte) error {
	c.set = c.srv.now()
	c.stallBy = c.set.Timeouts.Write
	if c.stage == leaveFinal { // it is not to be answered: the client repeats it elsewhere
		c.mu.Unlock()
		if err := c.skipBlock(block); err != nil {
			return err
		}
		return c.pay(costRefused, CauseRefused)
	}
	c.lastID = o.stream
	if c.isFull() || c.srv.Budget.Pressure() >= 1 && !o.end {
		c.mu.Unlock()
		if err := c.skipBlock(block); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.resetLocked(o.stream, CodeRefusedStream)
		return c.payLocked(costRefused, CauseRefused)
	}
	s := c.newStream(o)
	c.mu.Unlock()
	if c.first.Load() {
		c.first.Store(false)
	}
	e, err := s.readHead(&c.dec, block, &c.set.Limits)
	if err != nil {
		c.serving.Done()
		return err
	}
	c.mu.Lock()
	if c.stage == staying && c.oldAt != 0 && c.now >= c.oldAt {
		c.leaveLocked()
	}
	if o.selfDep && e == nil {
		e = bad("stream depends on itself")
	}
	if e != nil {
		c.mu.Unlock()
		return s.refuse(e)
	}
	c.streams[o.stream] = s
	c.mu.Unlock()
	c.srv.workers.start(s)
	return nil
}

// isFull reports that a further stream would be one too many. Streams that are over
// for the client do not count, since it may have seen their end before whoever serves
// them is done; but no client keeps more than twice as many busy. Called under mu.
func (c *conn) isFull() bool {
	if c.running < c.most {
		return false
	}
	open := 0
	for _, s := range c.streams {
		if !s.local || !s.remote {
			open++
		}
	}
	return open >= c.most || c.running >= 2*c.most
}

// trailers ends a stream's content with trailers.
func (c *conn) trailers(s *ServerStream, o opening, block []byte) error {
	c.mu.Lock()
	if s.remote || !o.end || s.tunnel {
		code := CodeStreamClosed
		if !s.remote {
			code = CodeProtocol // trailers that do not end the stream
		}
		c.mu.Unlock()
		if err := c.skipBlock(block); err != nil {
			return err
		}
		return &streamFault{o.stream, code}
	}
	c.mu.Unlock()
	// The stream's exchange does not look at trailers before the content's end.
	e, err := s.readTrailers(&c.dec, block)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.id != o.stream || s.dead != nil {
		return nil
	}
	if e != nil {
		s.breakContent(e)
		return nil
	}
	return c.endContent(s)
}
