// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/discover"
)

// brokenSource panics so often, and then finds a backend and waits for its end.
type brokenSource struct {
	panics int
	found  chan struct{}
}

func (s *brokenSource) Run(ctx context.Context, report func(discover.Finding)) error {
	if s.panics--; s.panics >= 0 {
		panic("a broken source")
	}
	report(discover.Finding{Endpoints: endpoints("10.0.0.9:80"), Next: time.Second})
	close(s.found)
	<-ctx.Done()
	return ctx.Err()
}

// TestDiscoveryPanics: a source that panics is a defect that is counted, and is started
// again.
func TestDiscoveryPanics(t *testing.T) {
	e, p := finderRig(t, `{discover: {file: backends.yaml}}`)
	s := &brokenSource{panics: 2, found: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.search(ctx, s, time.Millisecond)
	}()
	select {
	case <-s.found:
	case <-time.After(10 * time.Second):
		t.Error("it is not started again")
	}
	cancel()
	<-ended
	if got := membersOf(p); !strings.HasPrefix(got, "10.0.0.9:80") {
		t.Errorf("members: %s", got)
	}
	rec := httptest.NewRecorder()
	e.metrics.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if want := `weir_bug_total{where="discover"} 2`; !strings.Contains(rec.Body.String(), want) {
		t.Errorf("not counted: %s", want)
	}
}
