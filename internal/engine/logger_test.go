// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
)

// Every line says which process wrote it, behind all else.
func TestLogNamesTheProcess(t *testing.T) {
	var b strings.Builder
	log := newLogger(&b, slog.LevelInfo)
	log.Debug("not this")
	log.Info("draining", "delay", "0s")
	log.With("pool", "app").Warn("ejected", "a", 1, "b", 2, "c", 3, "d", 4, "e", 5, "f", 6)
	pid := fmt.Sprintf(" pid=%d", os.Getpid())
	for i, want := range []string{"msg=draining delay=0s" + pid, "msg=ejected pool=app a=1 b=2 c=3 d=4 e=5 f=6" + pid, ""} {
		if line := strings.Split(b.String(), "\n")[i]; !strings.HasSuffix(line, want) || want == "" && line != "" {
			t.Errorf("line %d: %q, want %q", i, line, want)
		}
	}
}
