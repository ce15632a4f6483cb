// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestBrokenCheckIsNamed asks for a page that no backend has, while they answer
// everything else: status, log, events and metrics say that the check is at fault.
func TestBrokenCheckIsNamed(t *testing.T) {
	var urls []string
	for range 3 {
		b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/raedyz" {
				http.NotFound(w, r)
			}
		}))
		t.Cleanup(b.Close)
		urls = append(urls, `"`+b.URL+`"`)
	}
	r := start(t, `admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", routes: [{pool: app}]}}
pools: {app: {backends: [`+strings.Join(urls, ", ")+`], health: {active: {path: /raedyz, interval: 50ms, fast_interval: 20ms, timeout: 20ms}}}}
`)
	c := client(t)
	eventually(t, "the check is named", func() bool {
		for range 6 {
			if got := mustGet(t, c, r.front+"/"); got.status != 200 {
				t.Fatalf("a pool in panic answers %+v", got)
			}
		}
		return r.Pools()[0].Correlated == "broken_check"
	})
	// Which of the two kinds of evidence comes first depends on how soon requests do.
	if why := r.Pools()[0].CorrelatedWhy; !strings.Contains(why, " of 3 ") || !strings.Contains(why, "succeed") {
		t.Errorf("the words are %q", why)
	}
	if n := strings.Count(r.log.String(), "broken_check"); n != 1 {
		t.Errorf("said %d times in the log", n)
	}
	metrics := mustGet(t, c, "http://"+r.Bound().Admin+"/metrics").body
	for _, want := range []string{`weir_correlated_failure{kind="broken_check",pool="app"} 1`, `weir_correlated_failure{kind="shared_dependency",pool="app"} 0`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
}
