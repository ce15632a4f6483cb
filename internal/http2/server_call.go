// SPDX-License-Identifier: Apache-2.0

package http2

import "time"

// Unpace lifts the minimum rate from the content that is still to come: the
// messages of a stream come when there are any.
func (s *ServerStream) Unpace() { s.unpaced = true }

// AwaitBody waits until ReadBody would return at once, for d at most, and reports
// whether that is so. The client that waits to be told to go on is told by
// ReadBody, so for that one it does not wait.
func (s *ServerStream) AwaitBody(d time.Duration) bool {
	if s.readable() {
		return true
	}
	late := s.timer(&s.readTimer, d)
	defer s.readTimer.Stop()
	for {
		select {
		case <-s.readWake:
			if s.readable() {
				return true
			}
		case <-late:
			return s.readable()
		}
	}
}

func (s *ServerStream) readable() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.dead != nil || s.bad != nil || s.remote || s.asked || s.content.first != nil || s.cancelled.Load()
}
