// SPDX-License-Identifier: Apache-2.0

package acme

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// core writes what certmagic logs into weir's log, at level debug: what matters of
// it is said in weir's own words.
type core struct{ log *slog.Logger }

func (c core) Enabled(zapcore.Level) bool {
	return c.log.Enabled(context.Background(), slog.LevelDebug)
}

func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{c.log.With(attrs(fields)...)}
}

func (c core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Debug("certmagic: "+e.Message, append(attrs(fields), "of", e.Level.String())...)
	return nil
}

func (core) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	m := zapcore.NewMapObjectEncoder()
	for i := range fields {
		fields[i].AddTo(m)
	}
	out := make([]any, 0, 2*len(m.Fields)+2)
	for k, v := range m.Fields {
		out = append(out, k, v)
	}
	return out
}
