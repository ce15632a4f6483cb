// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/weirlb/weir/internal/engine"
	"github.com/weirlb/weir/internal/listen"
	"github.com/weirlb/weir/internal/systemd"
)

// supervised takes what the service manager gives, if there is one, and lets the
// engine talk to it. What is wrong with that is no reason not to serve; a
// listener that needs a socket which did not come says so.
func supervised(stderr io.Writer, opt *engine.Options) {
	m, err := systemd.Open()
	say := func(err error) {
		if err != nil {
			_, _ = fmt.Fprintf(stderr, "weir: %v\n", err)
		}
	}
	say(err)
	opt.Sockets = listen.NewSockets()
	for _, s := range m.Sockets {
		say(opt.Sockets.Inherit("systemd:"+s.Name, s.File))
	}
	if !m.Listens() {
		return
	}
	opt.Watchdog = m.Watchdog
	silent := false
	opt.Notify = func(state string) { // called by one goroutine at a time
		err := m.Notify(state)
		if err != nil && !silent {
			say(err) // once: a manager that is gone is so for good
		}
		silent = err != nil
	}
}
