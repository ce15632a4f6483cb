// SPDX-License-Identifier: Apache-2.0

package listen

import "time"

// A process that has handed its sockets to a successor stops accepting before
// it closes them: as long as it holds them it can serve again at once, and
// until then those who connect wait in the accept queue instead of being
// refused.

// Yield stops accepting on every socket and closes none: a successor accepts
// from now on. Socket files and accept queues are left alone when a socket is
// closed, as after KeepPaths.
func (s *Sockets) Yield() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepPaths.Store(true)
	if s.yielded != nil {
		return
	}
	s.yielded = make(chan struct{})
	for _, o := range s.all {
		_ = o.ln.SetDeadline(time.Unix(1, 0)) // wakes the loop
	}
}

// Return takes Yield back: the successor is gone.
func (s *Sockets) Return() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.yielded == nil {
		return
	}
	s.keepPaths.Store(false)
	for _, o := range s.all {
		if o.ending == nil {
			_ = o.ln.SetDeadline(time.Time{})
		}
	}
	close(s.yielded)
	s.yielded = nil
}

// Recall says that nobody has any more what Hand gave: the process that got it
// is dead. The sockets are this process's own again.
func (s *Sockets) Recall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.all {
		o.handed = false
	}
}

// rouse makes loops that yielded look whether their socket is to be closed.
// Called under mu.
func (s *Sockets) rouse() {
	if s.yielded != nil {
		close(s.yielded)
		s.yielded = make(chan struct{})
	}
}

// whileYielded returns when the socket may accept again, or comes to its end.
func (o *open) whileYielded() {
	for {
		o.set.mu.Lock()
		yielded, ending := o.set.yielded, o.ending
		o.set.mu.Unlock()
		if yielded == nil || ending != nil {
			return
		}
		<-yielded
	}
}
