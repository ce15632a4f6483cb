// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weirlb/weir/internal/config"
)

// The watch looks at the files of the configuration by their names, once per
// reload.watch. That sees whatever makes another file of them: writes in place,
// editors that rename, the symbolic links that Kubernetes switches for a
// ConfigMap, other machines that share the disk, a file that begins to match an
// include. It costs a system call for each file. inotify would save those and
// sees neither a link that is switched further up the path nor another machine's
// write, and its watches go with the files that are replaced.

// watchSettle is how long files must be left alone before they are read: whoever
// writes several, or one in pieces, is done by then.
const watchSettle = time.Second

// watcher decides when to read again. It knows no clock and no files: looks are
// put into it.
type watcher struct {
	settle time.Duration

	mark  string    // of the last look
	since time.Time // when it looked like that for the first time
	acted string    // the look that was acted upon; the first one is, too
}

// look takes what the files look like, and reports whether they are to be read
// now: they differ from when they were read last, and have not changed for
// settle.
func (w *watcher) look(now time.Time, mark string) bool {
	if w.mark != mark {
		w.mark, w.since = mark, now
	}
	return w.acted != mark && now.Sub(w.since) >= w.settle
}

// done notes that the files were read as they looked.
func (w *watcher) done() { w.acted = w.mark }

// pause is how long until the next look: a change that was seen is not left
// waiting for a long interval.
func (w *watcher) pause(every time.Duration) time.Duration {
	if w.acted != w.mark {
		return min(every, w.settle)
	}
	return every
}

// watch reloads when the files of the configuration change, while the plan that
// serves says so, until the process ends.
func (e *Engine) watch() {
	w := watcher{settle: e.stable}
	var last attempt
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-e.published: // perhaps with another interval
		case <-t.C:
		}
		plan := e.gen.Load().Plan
		every := plan.Reload.Watch
		if every == 0 {
			w = watcher{settle: e.stable}
			last = attempt{}
			continue // until another plan is published
		}
		files := watched(plan, last.files)
		if w.look(time.Now(), fileMark(files)) && e.reloadNow() {
			w.done()
			last = e.reloadChanged(files, last)
		}
		t.Reset(w.pause(every))
	}
}

// reloadNow reports whether this is a time to reload: during an upgrade it is
// not, and what changes meanwhile is looked at afterwards.
func (e *Engine) reloadNow() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.closed && e.state.Load() == phaseServing && e.reloadable() == nil
}

// attempt is what came of reading changed files.
type attempt struct {
	refused string   // why it is not in force; empty: it is
	content [32]byte // with refused: of what was read
	files   []string // with refused: where faults are, perhaps in files that only the new text names
}

// reloadChanged reads the configuration after a change of its files and puts it
// into force if it says something else than what serves: a file that is only
// touched makes no generation. The same refusal of the same text is said once.
func (e *Engine) reloadChanged(files []string, last attempt) attempt {
	begin := time.Now()
	plan, err := e.opt.Load()
	if err == nil && len(config.Diff(e.gen.Load().Plan, plan)) == 0 {
		return attempt{}
	}
	var d Difference
	if err == nil {
		d, err = e.ReloadFile(ReloadOptions{})
	}
	if err == nil {
		e.sayReloaded(d, "watch", time.Since(begin))
		return attempt{}
	}
	now := attempt{refused: err.Error(), content: contentOf(files), files: faultyFiles(err)}
	if now.refused != last.refused || now.content != last.content {
		e.sayRefused(err, "watch")
	}
	return now
}

// watched returns the files of a plan, with what its patterns match now and
// those beside.
func watched(plan *config.Plan, beside []string) []string {
	files := append(slices.Clone(plan.Files), beside...)
	for _, pattern := range plan.Globs {
		found, _ := filepath.Glob(pattern) // one that is malformed would not have been accepted
		files = append(files, found...)
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// faultyFiles returns the files that an error speaks of.
func faultyFiles(err error) (files []string) {
	var all *config.Errors
	if errors.As(err, &all) {
		for _, f := range all.Faults {
			files = append(files, f.Pos.File)
		}
		slices.Sort(files)
		files = slices.DeleteFunc(slices.Compact(files), func(f string) bool { return f == "" })
	}
	return files
}

// fileMark is another text when a file is another one, was written, or its mode
// was changed. The time of the change of the entry is among it, so that writes
// of one size within a tick of the clock differ.
func fileMark(files []string) string {
	var b strings.Builder
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			fmt.Fprintf(&b, "%s: gone\n", f)
			continue
		}
		fmt.Fprintf(&b, "%s: %d %d", f, info.Size(), info.ModTime().UnixNano())
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			fmt.Fprintf(&b, " %d %d %d", s.Dev, s.Ino, s.Ctim.Nano())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// contentMost bounds what is read of one file: the configuration's own bound is
// far below.
const contentMost = 64 << 20

// contentOf is a sum over what the files hold.
func contentOf(files []string) (sum [32]byte) {
	h := sha256.New()
	for _, name := range files {
		_, _ = fmt.Fprintf(h, "%d %s ", len(name), name)
		f, err := openQuick(name)
		if err == nil {
			var info os.FileInfo
			if info, err = f.Stat(); err == nil && info.Mode().IsRegular() { // a pipe would be waited for
				_, err = io.Copy(h, io.LimitReader(f, contentMost))
			}
			_ = f.Close() // only read from
		}
		_, _ = fmt.Fprintf(h, " %v\n", err)
	}
	h.Sum(sum[:0])
	return sum
}
