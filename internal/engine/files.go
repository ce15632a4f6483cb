// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// filesEvery is how often it is looked at how many descriptors the process may have.
const filesEvery = time.Second

// watchFiles notices when somebody changes RLIMIT_NOFILE of the process (prlimit)
// while there is still room: descriptors are then reserved below the new limit, and
// limits.max_connections follows it where it is auto. It ends with quit.
func (e *Engine) watchFiles() {
	t := time.NewTicker(filesEvery)
	defer t.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-t.C:
			e.lookAtFiles()
		}
	}
}

// lookAtFiles takes over a limit that has changed. A limit that is not known, or
// none, is left alone.
func (e *Engine) lookAtFiles() {
	limit := e.files.Look()
	if limit <= 0 || uint64(limit) == e.fileLimit.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.fileLimit.Load()
	if was == 0 || was == uint64(limit) {
		return
	}
	e.fileLimit.Store(uint64(limit))
	most := maxConnections(e.gen.Load().Plan.Limits.MaxConnections, uint64(limit))
	e.front.gate.SetLimit(most)
	e.boundFlows(e.gen.Load().Plan)
	say := e.log.Info
	if uint64(limit) < was {
		say = e.log.Warn
	}
	say("the limit of descriptors was changed from outside", "from", was, "to", limit, "max_connections", most)
}
