// SPDX-License-Identifier: Apache-2.0

package listen

// Stalled returns the binds of the sockets on which clients wait although their
// accept loop has done nothing since the previous call, in which somebody waited
// already: a loop that is stuck. One that meets a ceiling or has no descriptors
// left goes round all the time, and is none; a socket whose server takes nothing
// is one. While a successor accepts (Yield) there are none. It is called by one
// goroutine at a time.
func (s *Sockets) Stalled() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, o := range s.all {
		rounds := o.rounds.Load()
		waiting := o.running && s.yielded == nil && o.ending == nil && pending(o.ln)
		if waiting && o.waited && rounds == o.seen {
			out = append(out, o.bind)
		}
		o.waited, o.seen = waiting, rounds
	}
	return out
}
