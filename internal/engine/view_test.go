// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
)

// TestBackendFigures looks at what the admin API says of a backend right after
// its first requests.
func TestBackendFigures(t *testing.T) {
	a := backend(t, "a")
	r := start(t, simple("", a))
	c := client(t)
	for range 4 {
		mustGet(t, c, r.front+"/")
	}
	var got admin.Backend
	eventually(t, "proved", func() bool {
		var err error
		if got, err = r.admin.Backend(t.Context(), "app", a.id()); err != nil {
			t.Fatal(err)
		}
		return got.Health == "healthy"
	})
	if got.Latency.EWMA <= 0 {
		t.Errorf("no mean latency after four answers: %+v", got.Latency)
	}
	if got.Flips != 0 {
		t.Errorf("%d flips of a backend that only proved good", got.Flips)
	}
	if h := got.History; len(h) != 1 || h[0].From != "unproven" || h[0].To != "healthy" || h[0].Why == "" || !h[0].At.Equal(got.Since) {
		t.Errorf("history: %+v", h)
	}
}

func TestSharesAreRounded(t *testing.T) {
	if got := fmt.Sprint(round(float64(float32(0.1))), round(1), round(0), round(1.0/3)); got != "0.1 1 0 0.3333" {
		t.Error(got)
	}
}

// TestWeightsOfBothKinds: the API takes the weights that a configuration may
// hold, and no others.
func TestWeightsOfBothKinds(t *testing.T) {
	a := backend(t, "a")
	r := start(t, simple("", a))
	for weight, good := range map[uint32]bool{1000: true, 1001: false} {
		text := fmt.Sprintf("listeners: {web: {bind: \"127.0.0.1:0\", pool: app}}\npools: {app: {backends: [{url: \"http://127.0.0.1:1\", weight: %d}]}}\n", weight)
		if _, err := config.Parse("w.yaml", []byte(text), nil); (err == nil) != good {
			t.Errorf("configured weight %d: %v", weight, err)
		}
		var p *admin.Problem
		_, err := r.admin.Patch(t.Context(), "app", a.id(), admin.Patch{Weight: &weight})
		if good != (err == nil) || err != nil && (!errors.As(err, &p) || p.Status != http.StatusBadRequest || !strings.Contains(p.Detail, "1000")) {
			t.Errorf("weight %d through the API: %v", weight, err)
		}
	}
}

// TestLoadReportIsShown: a backend's own word about its load reaches the API.
func TestLoadReportIsShown(t *testing.T) {
	a := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Endpoint-Load-Metrics", "TEXT application_utilization=0.62")
	}))
	t.Cleanup(a.Close)
	r := start(t, simple("", &server{Server: a}))
	mustGet(t, client(t), r.front+"/")
	b, err := r.admin.Backend(t.Context(), "app", a.Listener.Addr().String())
	if err != nil || b.LoadReport == nil || b.LoadReport.Utilization != 0.62 || time.Since(b.LoadReport.At) > limit {
		t.Errorf("%+v, %v", b.LoadReport, err)
	}
}
