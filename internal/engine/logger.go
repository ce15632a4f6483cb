// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/weirlb/weir/internal/observe"
)

// NewLogWriter makes an Options.Stderr of a writer that may hang, as standard error does
// when it is a pipe that nobody reads any more: the balancer does not wait for it.
func NewLogWriter(w io.Writer) io.Writer { return observe.NewLogWriter(w) }

// newLogger writes text for people and collectors, each line with the number of
// the process: in an upgrade two write to one place, and a state that changes in
// both is told twice.
func newLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	if w == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(signed{slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}), slog.Int("pid", os.Getpid())})
}

// signed is a handler that adds an attribute behind those of a record, so that
// what a line is about comes first.
type signed struct {
	slog.Handler
	by slog.Attr
}

// Handle implements slog.Handler.
func (s signed) Handle(ctx context.Context, r slog.Record) error {
	r = r.Clone() // others may hold it
	r.AddAttrs(s.by)
	return s.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (s signed) WithAttrs(list []slog.Attr) slog.Handler {
	return signed{s.Handler.WithAttrs(list), s.by}
}

// WithGroup implements slog.Handler. The attribute is then within the group.
func (s signed) WithGroup(name string) slog.Handler {
	return signed{s.Handler.WithGroup(name), s.by}
}
