// SPDX-License-Identifier: Apache-2.0

package sim

import "time"

// Deploy restarts servers one after another.
type Deploy struct {
	Servers []*Server
	Every   time.Duration // from the beginning of one to that of the next; the one before is waited for
	// Drains says that each announces its end: the readiness check fails, and it
	// accepts for Delay longer. Without it the process is killed.
	Drains bool
	Delay  time.Duration // of a drain; 0 counts as 10s
	Grace  time.Duration // from the announcement until what is left is reset; 0 counts as Delay + 20s
	Then   func()        // when all are done; may be nil
	// Each, if not nil, is told when a server begins to go and when it accepts
	// again.
	Each func(s *Server, up bool)
}

// Deploy begins a rolling deploy now.
func (w *World) Deploy(d Deploy) {
	if d.Delay <= 0 {
		d.Delay = 10 * time.Second
	}
	if d.Grace <= 0 {
		d.Grace = d.Delay + 20*time.Second
	}
	w.deploy(&d, 0)
}

func (w *World) deploy(d *Deploy, i int) {
	if i == len(d.Servers) {
		if d.Then != nil {
			d.Then()
		}
		return
	}
	s := d.Servers[i]
	earliest := w.Now() + d.Every
	if d.Each != nil {
		d.Each(s, false)
	}
	up := func() {
		if d.Each != nil {
			d.Each(s, true)
		}
		w.At(max(earliest, w.Now()), func() { w.deploy(d, i+1) })
	}
	if !d.Drains || s.Down() {
		s.Kill()
		s.Start(up)
		return
	}
	s.Stop(d.Delay, d.Grace, func() { s.Start(up) })
}
