// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/observe"
)

// accessOptions are the access log's options as a plan has them.
func accessOptions(plan *config.Plan, log *slog.Logger) observe.AccessLogOptions {
	a := &plan.Log.Access
	return observe.AccessLogOptions{
		Path: a.Path, Format: a.Format, Sample: a.Sample, Always: a.Always, Slow: a.Slow,
		Query: a.Query, Fields: a.RequestHeaders, Logger: log,
	}
}
