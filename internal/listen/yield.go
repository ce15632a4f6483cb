// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"slices"
	"time"
)

// A process that has handed its sockets to a successor stops accepting before
// it closes them: as long as it holds them it can serve again at once, and
// until then those who connect wait in the accept queue instead of being
// refused.

// Yield stops accepting on every socket that was handed over and closes none: a
// successor accepts from now on. Socket files and accept queues are left alone
// when a socket is closed, as after KeepPaths. declined are the binds that the
// successor gave up: nobody would serve them, so they go on here until they are
// closed, and then as if there were no successor.
func (s *Sockets) Yield(declined ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepPaths.Store(true)
	if s.yielded != nil {
		return
	}
	s.yielded = make(chan struct{})
	declined = slices.Clone(declined)
	for _, o := range slices.Backward(s.all) { // of those of one name the successor takes the first
		i := slices.Index(declined, o.bind)
		switch {
		case !o.handed: // was about to be closed
			o.declined = true
		case i >= 0:
			declined = slices.Delete(declined, i, i+1)
			o.declined, o.handed = true, false
		default:
			_ = o.until(time.Unix(1, 0)) // wakes the loop
		}
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
		o.declined = false
		if o.ending == nil {
			_ = o.until(time.Time{})
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
	s.recallLocked()
}

func (s *Sockets) recallLocked() {
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
