// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// fickle is a server half of whose answers are 503, by the throw of a seeded die
// per request, and that counts what reaches it.
func fickle(t *testing.T, seed uint64, asked *atomic.Int64) string {
	t.Helper()
	var n atomic.Uint64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		x := (seed<<32 + n.Add(1)) * 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		if x>>63 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "fine")
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// layer starts a weir with two listeners, so that whoever is in front of it has
// two ways, as pools have: an answer is retried elsewhere or not at all.
func layer(t *testing.T, backends []string, more string) *running {
	t.Helper()
	return start(t, fmt.Sprintf(`
listeners:
  a: {bind: "127.0.0.1:0", pool: below}
  b: {bind: "127.0.0.1:0", pool: below}
admin: {bind: "127.0.0.1:0"}
log: {access: off}
pools:
  below:
    backends: ["%s"]
    health: {active: off, passive: off}
    retry: {attempts: 3, budget: 20%%, min_per_second: 0, backoff: {base: 1ms, max: 2ms}}
%s
`, strings.Join(backends, `", "`), more))
}

// fronts are the URLs of a layer's listeners.
func (r *running) fronts() (list []string) {
	for _, l := range r.Bound().Listeners {
		list = append(list, "http://"+l.Addrs[0])
	}
	return list
}

// amplification sends requests through three weirs in a row while half of the
// answers fail, and returns how many requests the servers got for each, and
// whether a client ever saw a mark.
func amplification(t *testing.T, marks bool) (factor float64, leaked bool) {
	var asked atomic.Int64
	urls := make([]string, 4)
	for i := range urls {
		urls[i] = fickle(t, uint64(i)+1, &asked)
	}
	mark := ""
	for i := range 3 {
		if i == 1 && marks {
			mark = "    weir: true"
		}
		urls = layer(t, urls, mark).fronts()
	}
	const clients, each = 8, 250
	var wg sync.WaitGroup
	var seen atomic.Bool
	for range clients {
		wg.Go(func() {
			c := client(t)
			for range each {
				resp, err := c.Get(urls[0])
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.Header.Get("X-Weir-Retry") != "" {
					seen.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return float64(asked.Load()) / (clients * each), seen.Load()
}

// TestLayersOfRetries: with marks one layer of three retries, within its budget
// of 20 %. Without them each does: 1.2 x 1.2 x 1.2 = 1.73.
func TestLayersOfRetries(t *testing.T) {
	with, leaked := amplification(t, true)
	without, _ := amplification(t, false)
	t.Logf("servers get %.3f requests for one with marks, %.3f without", with, without)
	if with > 1.3 || with < 1.1 {
		t.Errorf("with marks the servers get %.3f requests for one, not 1.2", with)
	}
	if without < 1.5 {
		t.Errorf("without marks the servers get %.3f requests for one: the test shows nothing", without)
	}
	if leaked {
		t.Error("a client that is no weir was told X-Weir-Retry")
	}
}
