// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
)

// TestReadyInPanic asks for a pool's readiness while every check of it fails: a
// pool that then serves is ready, one that sheds or was drained is not.
func TestReadyInPanic(t *testing.T) {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/check" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(b.Close)
	url := strings.ReplaceAll(`{backends: ["URL"], health: {active: {path: /check}, panic: {then: `, "URL", b.URL)
	r := start(t, `admin: {bind: "127.0.0.1:0"}
listeners:
  web:
    bind: "127.0.0.1:0"
    routes:
      - {match: {path_prefix: /shed}, pool: shed}
      - {pool: serve}
pools:
  serve: `+url+`serve}}}
  shed: `+url+`shed}}}
`)
	c := client(t)
	ready := "http://" + r.Bound().Admin + "/readyz?pools="
	eventually(t, "panic", func() bool {
		all := r.Pools()
		return len(all) == 2 && all[0].Panic && all[1].Panic && mustGet(t, c, ready).status == 200
	})
	eventually(t, "shedding", func() bool { return mustGet(t, c, r.front+"/shed").status == 503 })
	if got := mustGet(t, c, r.front+"/"); got.status != 200 {
		t.Fatalf("a pool in panic that serves answers %+v", got)
	}
	if got := mustGet(t, c, ready+"serve"); got.status != 200 {
		t.Errorf("and is not ready: %+v", got)
	}
	if got := mustGet(t, c, ready+"serve,shed"); got.status != 503 || !strings.Contains(got.body, "pool shed") || strings.Contains(got.body, "pool serve") {
		t.Errorf("a pool that refuses everything: %+v", got)
	}
	id := strings.TrimPrefix(b.URL, "http://")
	if _, err := r.admin.Patch(t.Context(), "serve", id, admin.Patch{Admin: "draining"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "not ready without a backend", func() bool { return mustGet(t, c, ready+"serve").status == 503 })
}
